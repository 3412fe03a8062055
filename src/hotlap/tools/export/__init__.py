"""``hotlap export``: a model in the forms in which it is used elsewhere, each proved right and timed here."""

from hotlap.tools.export.config import ExportConfig
from hotlap.tools.export.run import export, preview

__all__ = ["ExportConfig", "export", "preview"]
