"""``hotlap bench``: how fast is this workload, on which arm, and is the difference real?"""

from hotlap.tools.bench.config import QUICK, BenchConfig
from hotlap.tools.bench.run import bench, preview
from hotlap.tools.bench.self_test import self_test

__all__ = ["QUICK", "BenchConfig", "bench", "preview", "self_test"]
