"""Hotlap takes a PyTorch workload from "it runs" to "as fast as this hardware allows", and proves it.

Importing this package imports nothing heavy: the names below load what they need when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hotlap import splat as splat
    from hotlap.api import bench as bench
    from hotlap.api import compare as compare
    from hotlap.api import doctor as doctor
    from hotlap.api import estimate_memory as estimate_memory
    from hotlap.api import export as export
    from hotlap.api import lap as lap
    from hotlap.api import loader as loader
    from hotlap.api import loader_settings as loader_settings
    from hotlap.api import profile as profile
    from hotlap.api import quicktest as quicktest
    from hotlap.api import report as report
    from hotlap.api import suggest as suggest
    from hotlap.api import train as train
    from hotlap.api import tune as tune
    from hotlap.base.errors import HotlapError as HotlapError
    from hotlap.device.probe import device_summary as device_summary
    from hotlap.device.probe import get_device as get_device
    from hotlap.engine.exact import ExactStep as ExactStep
    from hotlap.engine.mean_loss import sum_of_mean as sum_of_mean
    from hotlap.records.run import RunRecord as RunRecord
    from hotlap.records.run import load_record as load_record
    from hotlap.targets import load_target as load_target
    from hotlap.workload import Agreement as Agreement
    from hotlap.workload import Workload as Workload

_PUBLIC = {
    "bench": "hotlap.api:bench",
    "compare": "hotlap.api:compare",
    "doctor": "hotlap.api:doctor",
    "estimate_memory": "hotlap.api:estimate_memory",
    "export": "hotlap.api:export",
    "profile": "hotlap.api:profile",
    "quicktest": "hotlap.api:quicktest",
    "lap": "hotlap.api:lap",
    "loader": "hotlap.api:loader",
    "loader_settings": "hotlap.api:loader_settings",
    "report": "hotlap.api:report",
    "train": "hotlap.api:train",
    "tune": "hotlap.api:tune",
    "suggest": "hotlap.api:suggest",
    "HotlapError": "hotlap.base.errors:HotlapError",
    "device_summary": "hotlap.device.probe:device_summary",
    "get_device": "hotlap.device.probe:get_device",
    "ExactStep": "hotlap.engine.exact:ExactStep",
    "sum_of_mean": "hotlap.engine.mean_loss:sum_of_mean",
    "RunRecord": "hotlap.records.run:RunRecord",
    "load_record": "hotlap.records.run:load_record",
    "load_target": "hotlap.targets:load_target",
    "Agreement": "hotlap.workload:Agreement",
    "Workload": "hotlap.workload:Workload",
}


_ROOMS = ("splat",)
"""Parts of the package that are used by their own names, as in ``hotlap.splat.rasterize``."""


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"hotlap.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hotlap' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC, *_ROOMS])
