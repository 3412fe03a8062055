"""Trains unet and bilstm from one seed on each device asked for, and shows that the scores are real and agree.

    PYTHONPATH=src python benchmarks/train_scores.py --device cpu cuda --out scores.json

Float32 throughout, without TF32, so that devices differ by rounding (and in the draws of dropout) alone. That grows
with every step: the losses of the fresh networks agree closely (FRESH_LOSS_RTOL), the final scores only as far as two
good runs do (SCORE_ATOL).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from hotlap.records.environment import capture
from hotlap.segment import presets as segment_presets
from hotlap.segment.workload import UNetWorkload
from hotlap.sequence import presets as sequence_presets
from hotlap.sequence.workload import BiLSTMWorkload
from hotlap.workload import Workload

FRESH_LOSS_RTOL = 1e-4
"""On the loss before any step, before the devices' rounding has fed back into the weights."""
SCORE_ATOL = 0.05
"""On the final scores: two runs that only differ in rounding end as two seeds would."""
MAIN_SCORE = {"unet": "dice", "bilstm": "accuracy"}
SENSIBLE = {"unet": 0.85, "bilstm": 0.95}
"""What the full size must reach."""


def workloads(quick: bool) -> list[Workload]:
    """Both applications, at full size or the small one."""
    segment = segment_presets.small() if quick else segment_presets.full()
    sequence = sequence_presets.small() if quick else sequence_presets.full()
    return [UNetWorkload(segment), BiLSTMWorkload(sequence)]


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with its tensors on ``device``."""
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {name: to_device(value, device) for name, value in batch.items()}
    return [to_device(value, device) for value in batch]


def train(workload: Workload, device: torch.device, epochs: int, seed: int) -> dict[str, Any]:
    """Losses and scores of each epoch of a plain training, the same batches in the same order on every device."""
    torch.manual_seed(seed)
    model = workload.build_model().to(device)
    optimizer = workload.optimizer(model)
    order = torch.Generator().manual_seed(seed)
    loader = DataLoader(
        workload.train_data(), workload.default_batch, shuffle=True, generator=order, collate_fn=workload.collate
    )
    fresh_loss = loss_of_fresh_model(workload, model, device, seed)
    history = []
    for epoch in range(epochs):
        start = time.perf_counter()
        total, count = torch.zeros((), dtype=torch.float64, device=device), torch.zeros((), device=device)
        for samples in loader:
            loss, number = workload.loss(model, to_device(samples, device))
            optimizer.zero_grad()
            (loss / number).backward()
            optimizer.step()
            total, count = total + loss.detach(), count + number
        mean_loss = (total / count).item()  # waits for the device, so the seconds are true
        seconds = time.perf_counter() - start
        scores = workload.metrics(model, workload.eval_data(), device)
        history.append({"loss": mean_loss, "seconds": seconds, "scores": scores})
        shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(
            f"{workload.name} {device.type} epoch {epoch + 1}: loss {mean_loss:.4f}  {seconds:.1f} s  {shown}",
            flush=True,
        )
    return {"fresh_loss": fresh_loss, "epochs": history}


@torch.no_grad()
def loss_of_fresh_model(workload: Workload, model: torch.nn.Module, device: torch.device, seed: int) -> float:
    """The mean loss of one batch before any step, without dropout, whose draws differ between devices."""
    batch = workload.make_batch(workload.default_batch, torch.device("cpu"), torch.Generator().manual_seed(seed))
    model.eval()
    loss, number = workload.loss(model, to_device(batch, device))
    model.train()
    return (loss / number).item()


def use_plain_float32() -> None:
    """Float32 as IEEE has it on every device: no TF32 in matrix products, convolutions or recurrences."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    torch.backends.cudnn.rnn.fp32_precision = "ieee"


def check(runs: dict[str, dict[str, Any]], quick: bool) -> list[str]:
    """What is wrong with the scores, or between the devices; empty when all is well."""
    wrong = []
    for name, by_device in runs.items():
        main = MAIN_SCORE[name]
        finals = {device: run["epochs"][-1]["scores"][main] for device, run in by_device.items()}
        if not quick:
            wrong += [
                f"{name} on {device}: {main} {score:.4f} is below {SENSIBLE[name]}"
                for device, score in finals.items()
                if not score >= SENSIBLE[name]
            ]
        fresh = [run["fresh_loss"] for run in by_device.values()]
        if max(fresh) - min(fresh) > FRESH_LOSS_RTOL * abs(fresh[0]):
            wrong.append(f"{name}: fresh losses {fresh} differ by more than {FRESH_LOSS_RTOL} of the first")
        if max(finals.values()) - min(finals.values()) > SCORE_ATOL:
            wrong.append(f"{name}: final {main} {finals} differ by more than {SCORE_ATOL}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", nargs="+", default=["cuda" if torch.cuda.is_available() else "cpu"])
    parser.add_argument("--only", choices=sorted(MAIN_SCORE), help="train one of the two")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="the small presets: minutes on two cores")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()

    use_plain_float32()
    runs: dict[str, dict[str, Any]] = {}
    configs = {}
    for workload in workloads(args.quick):
        if args.only not in (None, workload.name):
            continue
        configs[workload.name] = dataclasses.asdict(workload.config)  # type: ignore[attr-defined]
        runs[workload.name] = {
            name: train(workload, torch.device(name), args.epochs, args.seed) for name in args.device
        }
    wrong = check(runs, args.quick)
    print("\n".join(wrong) or "ok")
    if args.out:
        record = {
            "seed": args.seed,
            "quick": args.quick,
            "configs": configs,
            "fresh_loss_rtol": FRESH_LOSS_RTOL,
            "score_atol": SCORE_ATOL,
            "runs": runs,
            "wrong": wrong,
            "environment": dataclasses.asdict(capture()),
        }
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
