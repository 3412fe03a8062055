"""``hotlap doctor``: whether this machine can do what it has the parts for, and what to do where it cannot."""

from hotlap.tools.doctor.config import DoctorConfig
from hotlap.tools.doctor.fixes import fix_script
from hotlap.tools.doctor.run import doctor
from hotlap.tools.doctor.shelf import Unkept

__all__ = ["DoctorConfig", "Unkept", "doctor", "fix_script"]
