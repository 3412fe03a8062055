"""``hotlap lap``: the whole round in one command, from the machine's health to a speed-up with its proof."""

from hotlap.tools.lap.config import LapConfig
from hotlap.tools.lap.run import lap, preview

__all__ = ["LapConfig", "lap", "preview"]
