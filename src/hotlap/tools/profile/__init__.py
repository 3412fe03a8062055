"""``hotlap profile``: where does the time of a step go, and what would shorten it?"""

from hotlap.tools.profile.config import ProfileConfig
from hotlap.tools.profile.run import profile

__all__ = ["ProfileConfig", "profile"]
