"""Is the loader's choice as good as the best of the whole grid? Judged by how fast training really goes.

    python -m benchmarks.loader_grid --out loader_grid.json [--target classify] [--device cuda] [--small]

First ``hotlap loader`` chooses, as a user would have it. Then every setting of the grid trains for some seconds in one
process, and the choice and the grid's best take turns for the verdict. The choice may be 5% slower.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS = (0, 1, 2, 4, 6, 8, 12, 16)
PREFETCH = (2, 4)
PAIRS = 4
ALLOWED = 0.05
LOG_EVERY = 8
"""Steps from one look at the clock to the next; each waits for the device."""
SMALL = {"model": "tiny", "size": 64, "train_images": 300, "eval_images": 20}


def training_rate(
    target: str, options: dict[str, Any], device: str, workers: int, prefetch: int, seconds: float
) -> float:
    """Samples a second of a training with these settings over about so many seconds, its start apart."""
    import torch

    from hotlap.engine.config import TrainConfig
    from hotlap.engine.loop import Trainer
    from hotlap.engine.parts import pick_device
    from hotlap.targets import load_target

    marks: list[tuple[float, float]] = []

    def heard(event: Any) -> None:
        if event.kind == "advance":
            marks.append((time.perf_counter(), event.done))

    # What was made while the workers started is used up first; it says nothing of the speed at which more will come.
    warm = workers * prefetch

    def steady() -> list[tuple[float, float]]:
        return [mark for mark in marks if mark[1] >= warm]

    def over() -> bool:
        return len(steady()) > 1 and marks[-1][0] - steady()[0][0] >= seconds

    config = TrainConfig(
        target=target, workload=options, device=device, epochs=10_000, log_every=LOG_EVERY, workers=workers,
        prefetch=prefetch, eval_every=0, precision="bf16-mixed", channels_last=True,
    )  # fmt: skip
    workload = load_target(target, options)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(workload, config, Path(folder), pick_device(device), emit=heard, should_stop=over)
        trainer._evaluate = lambda: None  # type: ignore[method-assign]
        trainer._save = lambda score=None: None  # type: ignore[method-assign]
        trainer.run()
        batch = trainer.parts.loader.batch
    del trainer
    if device == "cuda":
        torch.cuda.empty_cache()
    (began, first), *_, (ended, last) = steady()
    return batch * (last - first) / (ended - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("loader_grid.json"))
    parser.add_argument("--target", default="classify")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=2.5, help="of training with each setting, after its start")
    parser.add_argument("--small", action="store_true", help="a small model and few pictures, for a laptop")
    given = parser.parse_args()
    import hotlap
    from hotlap.base import stats
    from hotlap.device.host import read_host
    from hotlap.records.codec import encode
    from hotlap.records.environment import capture

    options: dict[str, Any] = SMALL if given.small and given.target == "classify" else {}
    arm = "cuda:bf16+channels_last" if given.device == "cuda" else "cpu:bf16+channels_last"
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as runs:
        record = hotlap.loader(given.target, arm=arm, workload=options, runs=runs)
    choosing_s = time.perf_counter() - began
    chosen = next(row["settings"] for row in record.extra["loader"]["rows"] if row["chosen"])
    choice = (chosen["num_workers"], chosen["prefetch_factor"] or 2)
    print(f"chosen in {choosing_s:.0f} s: {record.verdict.headline if record.verdict else ''}", flush=True)

    def rate(setting: tuple[int, int]) -> float:
        return training_rate(given.target, options, given.device, setting[0], setting[1], given.seconds)

    began = time.perf_counter()
    cpus = read_host().usable_cpus
    grid = {}
    for setting in [(n, p) for n in WORKERS if n <= cpus for p in (PREFETCH if n else (2,))]:
        grid[setting] = rate(setting)
        print(f"workers {setting[0]}, prefetch {setting[1]}: {grid[setting]:.0f} samples/s", flush=True)
    grid_s = time.perf_counter() - began
    best = max(grid, key=lambda setting: grid[setting])
    pairs = [(rate(choice), rate(best)) for _ in range(PAIRS)] if choice != best else [(1.0, 1.0)]
    ratio = stats.ratio_interval([[b] for _, b in pairs], [[c] for c, _ in pairs], paired=True)
    answer = {
        "target": given.target, "options": options, "device": given.device, "allowed": ALLOWED, "choice": choice,
        "best": best, "grid": [{"workers": n, "prefetch": p, "samples_per_s": r} for (n, p), r in grid.items()],
        "pairs_choice_best": pairs, "slower_by": 1 - 1 / ratio.value, "low": 1 - 1 / ratio.low,
        "high": 1 - 1 / ratio.high, "choosing_s": choosing_s, "grid_s": grid_s, "record": encode(record),
        "environment": dataclasses.asdict(capture()),
    }  # fmt: skip
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    verdict = "ok" if answer["slower_by"] <= ALLOWED else "TOO SLOW"
    figures = f"{answer['slower_by']:+.2%} slower [{answer['low']:+.2%}, {answer['high']:+.2%}]"
    print(f"choice {choice} against best {best}: {figures} {verdict}; choosing {choosing_s:.0f} s, grid {grid_s:.0f} s")


if __name__ == "__main__":
    main()
