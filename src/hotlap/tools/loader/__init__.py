"""``hotlap loader``: how many workers does this data need, so that this model never waits?"""

from hotlap.tools.loader.config import LoaderConfig
from hotlap.tools.loader.run import loader

__all__ = ["LoaderConfig", "loader"]
