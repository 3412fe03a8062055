"""Memory estimates against a card: activations and peak of a real training step, beside what was said beforehand.

    python -m benchmarks.memory_estimate --out results/memory_estimate.json [--only unet]

Each row is a process of its own. *Activations* are what the allocator holds after the forward pass over what it held
before it, the batch included; *peak* is ``max_memory_allocated`` over three training steps. An error above 0 means that
the estimate was too high.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROWS = {
    "unet": ("unet", (), (16, 64)),
    "bilstm": ("bilstm", (), (64, 512)),
    "resnet50": ("torchvision.models:resnet50", ("3x224x224",), (32, 128)),
}
"""Target, inputs and batches of each row."""
PRECISIONS = ("32-true", "bf16-mixed")


def measure(target: str, inputs: list[str], batch: int, precision: str) -> dict[str, int]:
    """Bytes that three real training steps take on the card, counted by torch's allocator."""
    import torch

    from hotlap.device.seed import generator, seed_everything
    from hotlap.engine.estimate import PRECISIONS as DTYPES
    from hotlap.measure.session import map_tensors
    from hotlap.targets import load_target

    seed_everything(0)
    device, dtype = torch.device("cuda"), DTYPES[precision]
    workload = load_target(target, {}, inputs)
    model = workload.build_model().to(device).train()
    optimizer = workload.optimizer(model)
    drawn = workload.worst_case_batch(batch, torch.device("cpu"), generator(0))
    activations = 0
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        before = torch.cuda.memory_allocated()
        made = map_tensors(drawn, lambda t: t.to(device))
        with torch.autocast("cuda", dtype, enabled=dtype is not None):
            total, count = workload.loss(model, made)
            loss = total / count
        activations = torch.cuda.memory_allocated() - before
        loss.backward()
        optimizer.step()
        del made, total, loss
    return {"activations": activations, "peak": torch.cuda.max_memory_allocated()}


def one_row(name: str, batch: int, precision: str) -> dict[str, Any]:
    """The estimate, the truth from a fresh process, and how far they are apart."""
    from hotlap.engine.estimate import estimate_memory
    from hotlap.targets import load_target

    target, inputs, _ = ROWS[name]
    said = estimate_memory(load_target(target, {}, inputs), batch=batch, precision=precision, device="cuda")
    command = [sys.executable, "-m", "benchmarks.memory_estimate", "--measure", name, str(batch), precision]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} at batch {batch}, {precision}: {done.stderr.strip().splitlines()[-1]}")
    truth = json.loads(done.stdout.splitlines()[-1])
    return {
        "row": name,
        "batch": batch,
        "precision": precision,
        "estimated_activations": said.activations_bytes,
        "measured_activations": truth["activations"],
        "activations_error": said.activations_bytes / truth["activations"] - 1,
        "estimated_total": said.total_bytes,
        "measured_peak": truth["peak"],
        "total_error": said.total_bytes / truth["peak"] - 1,
        "method": said.method,
        "notes": list(said.notes),
    }


def show(row: dict[str, Any]) -> str:
    mib = {key: f"{row[key] / 2**20:,.0f}" for key in row if key.startswith(("estimated", "measured"))}
    return (
        f"| {row['row']} | {row['batch']} | {row['precision']} "
        f"| {mib['estimated_activations']} | {mib['measured_activations']} | {row['activations_error']:+.1%} "
        f"| {mib['estimated_total']} | {mib['measured_peak']} | {row['total_error']:+.1%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--only", choices=ROWS, help="one row")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, batch, precision = options.measure
        print(json.dumps(measure(ROWS[name][0], list(ROWS[name][1]), int(batch), precision)))
        return

    from hotlap.device.probe import require_cuda
    from hotlap.records.codec import encode
    from hotlap.records.environment import capture

    require_cuda()
    print("| row | batch | precision | activations said, MiB | measured | error | total said, MiB | peak | error |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for name in [options.only] if options.only else ROWS:
        if name == "resnet50" and not _has_torchvision():
            print(f"{name} is left out: torchvision is not installed", file=sys.stderr)
            continue
        for precision in PRECISIONS:
            for batch in ROWS[name][2]:
                rows.append(one_row(name, batch, precision))
                print(show(rows[-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps({"environment": encode(capture()), "rows": rows}, indent=1) + "\n")


def _has_torchvision() -> bool:
    from importlib.util import find_spec

    return find_spec("torchvision") is not None


if __name__ == "__main__":
    main()
