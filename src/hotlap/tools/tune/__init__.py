"""``tune``: the fastest configuration that still gives the right answer, stored as a profile."""

from hotlap.tools.tune.config import TuneConfig as TuneConfig
from hotlap.tools.tune.run import preview as preview
from hotlap.tools.tune.run import tune as tune
