"""``serve``: models behind a bounded line that really batches; the web is another room's."""

from hotlap.tools.serve.config import ServeConfig as ServeConfig
from hotlap.tools.serve.plan import build_service as build_service
from hotlap.tools.serve.service import Service as Service
from hotlap.tools.serve.service import ServiceSettings as ServiceSettings
