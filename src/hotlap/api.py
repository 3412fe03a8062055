"""The verbs as functions, for a user's own script: settings by keyword, a typed record back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.base.errors import TargetError
from hotlap.base.events import Emit, ignore
from hotlap.base.settings import Layer, env_layer, resolve
from hotlap.records.run import RunRecord

if TYPE_CHECKING:
    import torch

    from hotlap.engine.estimate import MemoryEstimate
    from hotlap.engine.loader_settings import LoaderSettings
    from hotlap.engine.suggest import Suggestion


def _layers(cls: type, settings: dict[str, Any]) -> list[Layer]:
    return [Layer("the call", settings), env_layer(cls)]


def bench(target: str | Callable[..., Any], *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """Times ``target``: a name as on the command line, or a factory function that a fresh process can import.

    >>> record = hotlap.bench("unet", arms=("cpu", "cuda:bf16"), quick=True)
    >>> record.verdict.headline, record.arm("cuda:bf16").samples_per_s
    """
    from hotlap.tools.bench import BenchConfig, self_test
    from hotlap.tools.bench import bench as run

    resolved = resolve(BenchConfig, _layers(BenchConfig, {"target": target_name(target), **settings}))
    tool = self_test if resolved.config.self_test else run
    return tool(resolved.config, emit, sources=resolved.sources)


def lap(target: str | Callable[..., Any] = "", *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """The whole round for ``target``: health, profile, search, proof, report; ``resume="latest"`` goes on with one.

    >>> record = hotlap.lap("unet", mode="infer", quick=True)
    >>> record.verdict.headline, record.extra["lap"]["table"], record.extra["lap"]["paste"]
    """
    from hotlap.tools.lap import LapConfig
    from hotlap.tools.lap import lap as run

    given = {"target": target_name(target), **settings} if target else settings
    resolved = resolve(LapConfig, _layers(LapConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def loader(target: str | Callable[..., Any], *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """The loader settings that ``target`` needs here; ``record.extra["loader"]["arguments"]`` are DataLoader's."""
    from hotlap.tools.loader import LoaderConfig
    from hotlap.tools.loader import loader as run

    resolved = resolve(LoaderConfig, _layers(LoaderConfig, {"target": target_name(target), **settings}))
    return run(resolved.config, emit, sources=resolved.sources)


def loader_settings(
    data: Any,
    *,
    batch: int,
    step_ms: float,
    device: str | torch.device = "cpu",
    collate: Callable[[list[Any]], Any] | None = None,
) -> LoaderSettings:
    """The loader settings for a dataset of one's own, or a target's, measured in this process within seconds.

    >>> settings = hotlap.loader_settings(dataset, batch=64, step_ms=20, device="cuda")
    >>> DataLoader(dataset, batch_size=64, **settings.dataloader_arguments())
    """
    from torch.utils.data import default_collate

    from hotlap.device.probe import get_device
    from hotlap.engine.loader_speed import quick_choice
    from hotlap.targets import load_target

    place = get_device(str(device))  # before anything is loaded
    if isinstance(data, str):
        workload = load_target(data)
        collate, name, data = collate or workload.collate, data, workload.train_data()
        if data is None:
            raise TargetError(
                f"target {name!r} has no train_data", expected="a Workload whose train_data() gives a dataset"
            )
    choice = quick_choice(data, batch=batch, step_ms=step_ms, device=place, collate=collate or default_collate)
    return choice.settings


def target_name(target: str | Callable[..., Any]) -> str:
    """How a fresh process finds ``target`` again."""
    if isinstance(target, str):
        return target
    module = inspect.getmodule(target)
    name = getattr(target, "__qualname__", "")
    if module is None or not name or "<" in name:
        raise TargetError(
            f"{name or 'an object of type ' + type(target).__name__} cannot be imported by a fresh process",
            expected="a function or class at the top level of a module or script",
        )
    if module.__name__ == "__main__":
        file = getattr(module, "__file__", None) or ""
        if not file.endswith(".py") or not Path(file).is_file():
            raise TargetError(
                f"{name!r} was typed at a prompt, or lies in no file whose name ends in .py, where a fresh process "
                "cannot find it",
                remedy="Save it to a file and import it from there",
            )
        return f"{Path(file).resolve()}:{name}"
    return f"{module.__name__}:{name}"


def train(target: str | Callable[..., Any] = "", *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """Trains ``target`` in a supervised process of its own; the record's folder holds checkpoints and metrics.

    >>> record = hotlap.train("unet", epochs=3, precision="bf16-mixed")
    >>> record.extra["outcome"]["metrics"]
    """
    from hotlap.tools.train import TrainConfig
    from hotlap.tools.train import train as run

    given = {"target": target_name(target), **settings} if target else settings
    resolved = resolve(TrainConfig, _layers(TrainConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def tune(target: str | Callable[..., Any] = "", *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """The fastest configuration of ``target`` that still gives the right answer; ``mode`` is "train" or "infer".

    >>> record = hotlap.tune("unet", mode="train", budget="5m")
    >>> record.extra["tune"]["winner"]
    """
    from hotlap.tools.tune import TuneConfig
    from hotlap.tools.tune import tune as run

    given = {"target": target_name(target), **settings} if target else settings
    resolved = resolve(TuneConfig, _layers(TuneConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def export(target: str | Callable[..., Any], out: str | Path, *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """``target`` in forms for production, in the folder ``out``; only those that gave the right answer are there.

    >>> record = hotlap.export("unet", "deploy", formats=("aoti", "onnx"), weights="runs/unet/.../step-....pt")
    >>> record.extra["export"]["forms"]
    """
    from hotlap.tools.export import ExportConfig
    from hotlap.tools.export import export as run

    given = {"target": target_name(target), "out": out, **settings}
    resolved = resolve(ExportConfig, _layers(ExportConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def profile(target: str | Callable[..., Any] = "", *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """Where the time of a step of ``target`` goes; with ``trace=[...]`` that of traces which are there already.

    >>> record = hotlap.profile("unet", arm="cuda:bf16")
    >>> record.extra["profile"]["analysis"]["categories"], record.extra["profile"]["advice"]
    """
    from hotlap.tools.profile import ProfileConfig
    from hotlap.tools.profile import profile as run

    given = {**({"target": target_name(target)} if target else {}), **settings}
    resolved = resolve(ProfileConfig, _layers(ProfileConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def compare(before: str | Path, after: str | Path, *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """Whether the second record is slower than the first; ``record.verdict.exit_code`` is 0, 1 or 3."""
    from hotlap.tools.compare import CompareConfig
    from hotlap.tools.compare import compare as run

    given = {"records": [str(before), str(after)], **settings}
    resolved = resolve(CompareConfig, _layers(CompareConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def doctor(*, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """The checks of this machine; ``record.checks`` holds them."""
    from hotlap.tools.doctor import DoctorConfig
    from hotlap.tools.doctor import doctor as run

    resolved = resolve(DoctorConfig, _layers(DoctorConfig, settings))
    return run(resolved.config, emit, sources=resolved.sources)


def quicktest(target: str | Callable[..., Any] = "", *, emit: Emit = ignore, **settings: Any) -> RunRecord:
    """Six steps from the device to ten training steps; ``record.verdict.exit_code`` is 0 when all of them work."""
    from hotlap.tools.quicktest import QuickTestConfig
    from hotlap.tools.quicktest import quicktest as run

    given = {**({"target": target_name(target)} if target else {}), **settings}
    resolved = resolve(QuickTestConfig, _layers(QuickTestConfig, given))
    return run(resolved.config, emit, sources=resolved.sources)


def report(records: str | Path | Sequence[str | Path], *, emit: Emit = ignore, **settings: Any) -> Path:
    """A report drawn from records, one HTML page unless ``formats`` says otherwise; the path of its first form."""
    from hotlap.tools.report import ReportConfig
    from hotlap.tools.report import report as run

    names = [str(records)] if isinstance(records, (str, Path)) else [str(r) for r in records]
    resolved = resolve(ReportConfig, _layers(ReportConfig, {"records": names, **settings}))
    return run(resolved.config, emit)


def estimate_memory(
    target: Any,
    *,
    batch: int,
    input: str | Sequence[str] | None = None,
    workload: Mapping[str, Any] | None = None,
    precision: str = "32-true",
    optimizer: bool = True,
    device: str = "cpu",
) -> MemoryEstimate:
    """The memory a training step of ``target`` needs, part by part, without running one.

    ``target`` is a name, a factory, a Workload, or a module with its ``input``; ``workload`` are its options.
    """
    from hotlap.engine import estimate
    from hotlap.targets import as_workload

    made = as_workload(target, workload, input)
    return estimate.estimate_memory(made, batch=batch, precision=precision, optimizer=optimizer, device=device)


def suggest(
    target: Any,
    *,
    device: str = "auto",
    input: str | Sequence[str] | None = None,
    workload: Mapping[str, Any] | None = None,
    batch: int | None = None,
    precision: str | None = None,
    vram_bytes: int | None = None,
) -> Suggestion:
    """Settings to begin with, each with its reason; print it. The batch is an estimate: nothing was run.

    >>> print(hotlap.suggest("unet", vram_bytes=12 * 2**30))
    """
    from hotlap.engine.suggest import suggest_for
    from hotlap.targets import as_workload

    made = as_workload(target, workload, input)
    return suggest_for(made, device=device, batch=batch, precision=precision, vram_bytes=vram_bytes)
