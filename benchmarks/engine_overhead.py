"""What the engine costs: its step against a bare loop's, and a whole training against a bare loop with a plain loader.

    python -m benchmarks.engine_overhead --out engine_overhead.json [--devices cuda] [--only unet] [--small] [--graph]
        [--pairs 60,20] [--profile]

Both run in turn in one process, so that the machine's noise falls on both. The engine may take 2% longer.
The bare loop is written here without any part of the engine. With --graph the engine replays recorded passes, and
the bare loop does what it always does.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TARGETS = ("unet", "bilstm")
SMALL: dict[str, dict[str, Any]] = {"unet": {"width": 8, "size": 64}, "bilstm": {"hidden": 64, "length": 32}}
PAIRS = {"step": 180, "run": 50}
TURNS_AN_EPOCH = 2
SETTLE_SECONDS = 0.05
CHUNK_SECONDS = 0.05
ALLOWED = 0.02


def num_pairs(what: str, device: str) -> int:
    return PAIRS[what] if device == "cuda" else PAIRS[what] // 5


def set_pairs(text: str) -> None:
    """``60,20``: of steps and of turns of a whole training."""
    PAIRS["step"], PAIRS["run"] = map(int, text.split(","))


def stepping(target: str, device: str, options: dict[str, Any], *, engine: bool, graph: bool) -> Callable[[int], float]:
    """A function that runs so many steps on batches that lie on the device; milliseconds a step."""
    import torch

    from hotlap.engine.exact import ExactStep
    from hotlap.targets import load_target

    workload = load_target(target, options)
    torch.manual_seed(0)
    model = workload.build_model().to(device).train()
    optimizer = workload.optimizer(model)
    size, where = workload.default_batch, torch.device(device)
    batches = [workload.make_batch(size, where, torch.Generator().manual_seed(i)) for i in range(4)]
    exact = ExactStep(model, optimizer, workload.loss, graph=graph) if engine else None

    def step(number: int) -> None:
        batch = batches[number % 4]
        if exact is not None:
            exact(batch)
            return
        optimizer.zero_grad(set_to_none=True)
        total, count = workload.loss(model, batch)
        (total / count).backward()
        optimizer.step()

    def run(iterations: int) -> float:
        step(0)
        _wait(device)
        begin = time.perf_counter()
        for number in range(iterations):
            step(number)
        _wait(device)
        return 1e3 * (time.perf_counter() - begin) / iterations

    return run


def bare_turns(workload: Any, device: str, num_steps: int) -> Iterator[float]:
    """Milliseconds a step of each ``num_steps`` steps of a plain training with torch's own loader and two workers."""
    import torch
    from torch.utils._pytree import tree_map
    from torch.utils.data import DataLoader

    where = torch.device(device)
    torch.manual_seed(0)
    model = workload.build_model().to(device).train()
    optimizer = workload.optimizer(model)
    loader = DataLoader(
        workload.train_data(), batch_size=workload.default_batch, shuffle=True, num_workers=2,
        pin_memory=device == "cuda", persistent_workers=True, collate_fn=workload.collate, drop_last=False,
    )  # fmt: skip
    gc.collect()  # tensors of the card that wait for it must not be collected by forked workers
    began, done = time.perf_counter(), 0
    while True:
        for batch in loader:
            placed = tree_map(lambda tensor: tensor.to(where, non_blocking=True), batch)
            optimizer.zero_grad(set_to_none=True)
            total, count = workload.loss(model, placed)
            (total / count).backward()
            optimizer.step()
            done += 1
            if done % num_steps == 0:
                _wait(device)
                yield 1e3 * (time.perf_counter() - began) / num_steps
                began = _settled()


def _settled() -> float:
    """When the next turn begins: after the workers of both have read ahead, so that none reads in the other's turn."""
    time.sleep(SETTLE_SECONDS)
    return time.perf_counter()


def train_in_turn(target: str, device: str, options: dict[str, Any], *, graph: bool) -> list[tuple[float, float]]:
    """Milliseconds a step of the engine and of a bare loop, half an epoch at a time; the first epoch of both is apart.

    The engine stops where it tells of its progress, which follows a wait for the device, and the bare loop runs there:
    engine, bare, bare, engine, and so on, so that each goes first as often. Both read with two workers, and both find
    batches waiting. The engine logs at the end of its turn, the bare loop does not.
    """
    import torch

    from hotlap.engine.config import TrainConfig
    from hotlap.engine.loop import Trainer
    from hotlap.targets import load_target

    workload = load_target(target, options)
    length = -(-len(workload.train_data()) // workload.default_batch)  # type: ignore[arg-type]
    turn = max(1, length // TURNS_AN_EPOCH)
    bare = bare_turns(workload, device, turn)
    engine_ms: list[float] = []
    bare_ms: list[float] = []
    resumed = 0.0

    def heard(event: Any) -> None:
        nonlocal resumed
        if event.kind != "advance":
            return
        engine_ms.append(1e3 * (time.perf_counter() - resumed) / turn)
        if len(engine_ms) % 2:
            bare_ms.extend((next(bare), next(bare)))
        resumed = _settled()

    config = TrainConfig(
        target=target, workload=options, epochs=10_000, steps=(num_pairs("run", device) + TURNS_AN_EPOCH) * turn,
        log_every=turn, workers=2, eval_every=0, device=device, graph=graph,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(workload, config, Path(folder), torch.device(device), emit=heard)
        trainer._evaluate = lambda: True  # type: ignore[method-assign]
        trainer._save = lambda score=None: None  # type: ignore[method-assign]
        trainer.run()
    return list(zip(engine_ms, bare_ms, strict=True))[TURNS_AN_EPOCH:]


def step_in_turn(target: str, device: str, options: dict[str, Any], *, graph: bool) -> list[tuple[float, float]]:
    """Milliseconds a step of the engine and of a bare loop in short turns, so that the host's drift falls on both."""
    bare, engine = (stepping(target, device, options, engine=engine, graph=graph) for engine in (False, True))
    bare(5), engine(5)
    iterations = max(1, min(300, math.ceil(1e3 * CHUNK_SECONDS / min(bare(1), engine(1), bare(1)))))
    pairs = []
    for number in range(num_pairs("step", device)):
        if number % 2:
            first = engine(iterations)
            pairs.append((first, bare(iterations)))
        else:
            second = bare(iterations)
            pairs.append((engine(iterations), second))
    return pairs


def profile_host(target: str, device: str, options: dict[str, Any], *, graph: bool) -> None:
    """Prints where the host's time of a step goes, of the bare loop and then of the engine."""
    import cProfile
    import pstats

    for engine in (False, True):
        run = stepping(target, device, options, engine=engine, graph=graph)
        run(10)
        found = cProfile.Profile()
        found.enable()
        ms = run(100)
        found.disable()
        print(f"{target} {device} {'engine' if engine else 'bare loop'}: {ms:.3f} ms a step, profiled; of 100 steps:")
        pstats.Stats(found).sort_stats("tottime").print_stats(25)


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def one_row(target: str, device: str, options: dict[str, Any], what: str, *, graph: bool) -> dict[str, Any]:
    """Both in turn; the median of the pairs' ratios with its interval."""
    from hotlap.base import stats
    from hotlap.device.precision import set_fp32_precision

    set_fp32_precision("ieee")
    in_turn = step_in_turn if what == "step" else train_in_turn
    pairs = in_turn(target, device, options, graph=graph)
    ratio = stats.ratio_interval([[e] for e, _ in pairs], [[b] for _, b in pairs], paired=True)
    return {
        "target": target,
        "device": device,
        "what": what,
        "graph": graph,
        "engine_ms": [e for e, _ in pairs],
        "bare_ms": [b for _, b in pairs],
        "difference": ratio.value - 1,
        "low": ratio.low - 1,
        "high": ratio.high - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("engine_overhead.json"))
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--only", default=",".join(TARGETS))
    parser.add_argument("--small", action="store_true", help="small models, for a laptop")
    parser.add_argument("--graph", action="store_true", help="the engine records its passes and replays them")
    parser.add_argument("--profile", action="store_true", help="where the host's time goes, in both, instead")
    parser.add_argument("--pairs", default=f"{PAIRS['step']},{PAIRS['run']}", help="of steps and of turns, on a card")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    set_pairs(given.pairs)
    if given.profile:
        for target, device in itertools.product(given.only.split(","), given.devices.split(",")):
            profile_host(target, device, SMALL[target] if given.small else {}, graph=given.graph)
        return
    if given.worker:
        options = SMALL[given.worker] if given.small else {}
        cases = [(device, what) for device in given.devices.split(",") for what in ("step", "run")]
        rows = [one_row(given.worker, device, options, what, graph=given.graph) for device, what in cases]
        print(json.dumps(rows))
        return
    from hotlap.records.environment import capture

    rows = []
    for target in given.only.split(","):
        command = [sys.executable, "-m", "benchmarks.engine_overhead", "--worker", target, "--devices", given.devices]
        command += ["--pairs", given.pairs]
        command += ["--small"] * given.small + ["--graph"] * given.graph
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for found in json.loads(done.stdout.splitlines()[-1]):
            rows.append(found)
            figures = f"{found['difference']:+.2%} [{found['low']:+.2%}, {found['high']:+.2%}]"
            verdict = "ok" if found["difference"] <= ALLOWED else "TOO SLOW"
            print(f"{target} {found['device']} {found['what']}: engine over bare loop {figures} {verdict}", flush=True)
        answer = {"allowed": ALLOWED, "pairs": PAIRS, "rows": rows, "environment": dataclasses.asdict(capture())}
        given.out.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
