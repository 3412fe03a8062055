"""Traces as Kineto writes them, built by hand so that the right answer is known: host calls, kernels, copies."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

HOST, MAIN, ENGINE, STREAM = 4242, 4242, 4300, 7


class FakeTrace:
    """Collects events; every time is in microseconds from an arbitrary beginning."""

    def __init__(self, *, base: float = 3_867_197_264_000.0, rank: int | None = None, world: int = 1) -> None:
        self.base, self.events = base, list[dict[str, Any]]()
        self.ids = 0
        self.head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA Test Card"}]}
        if rank is not None:
            self.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world}

    def span(self, cat: str, name: str, start: float, length: float, *, pid: Any = HOST, tid: Any = MAIN, **args: Any):
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": self.base + start, "dur": length,
             "args": args}
        )  # fmt: skip

    def step(self, number: int, start: float, length: float) -> None:
        self.span("user_annotation", f"ProfilerStep#{number}", start, length)

    def note(self, name: str, start: float, length: float) -> None:
        self.span("user_annotation", name, start, length)

    def op(
        self,
        name: str,
        start: float,
        length: float,
        *,
        tid: int = MAIN,
        sequence: int | None = None,
        dims: list[Any] | None = None,
        kinds: list[str] | None = None,
        values: list[str] | None = None,
    ) -> int:
        """An operator; its id, for the work it launches."""
        self.ids += 1
        args: dict[str, Any] = {"External id": self.ids, "Record function id": 0, "Ev Idx": self.ids}
        if sequence is not None:
            args |= {"Sequence number": sequence, "Fwd thread id": 0}
        if dims is not None:
            kinds = kinds or ["float"] * len(dims)
            args |= {"Input Dims": dims, "Input type": kinds, "Concrete Inputs": values or [""] * len(dims)}
        self.span("cpu_op", name, start, length, tid=tid, **args)
        return self.ids

    def launch(
        self,
        kernel: str,
        call: tuple[float, float],
        work: tuple[float, float],
        *,
        op: int | None = None,
        tid: int = MAIN,
        stream: int = STREAM,
        device: int = 0,
        cat: str = "kernel",
        function: str = "cudaLaunchKernel",
    ) -> None:
        """A runtime call at (start, length) and the work it puts on the device at (start, length)."""
        self.ids += 1
        ids = {"correlation": 10_000 + self.ids, **({"External id": op} if op is not None else {})}
        self.span("cuda_runtime", function, *call, tid=tid, cbid=211, **ids)
        place = {"device": device, "context": 1, "stream": stream}
        self.span(cat, kernel, *work, pid=device, tid=stream, queued=0, **place, **ids)
        flow = {"id": self.ids, "cat": "ac2g", "name": "ac2g"}
        self.events.append({"ph": "s", "pid": HOST, "tid": tid, "ts": self.base + call[0], **flow})
        self.events.append({"ph": "f", "bp": "e", "pid": device, "tid": stream, "ts": self.base + work[0], **flow})

    def sync(self, start: float, length: float, function: str = "cudaStreamSynchronize") -> None:
        self.ids += 1
        self.span("cuda_runtime", function, start, length, cbid=131, correlation=10_000 + self.ids)

    def python(self, name: str, start: float, length: float, *, called_from: str = "") -> None:
        self.span("python_function", name, start, length, **({"CallFrom": called_from} if called_from else {}))

    def memory(self, time: float, address: int, size: int, total: int, *, device: int = 0) -> None:
        args = {"Total Reserved": 0, "Total Allocated": total, "Bytes": size, "Addr": address, "Device Id": device,
                "Device Type": 1 if device >= 0 else 0}  # fmt: skip
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": HOST, "tid": MAIN,
             "ts": self.base + time, "args": args}
        )  # fmt: skip

    def text(self, *, indent: int | None = 2) -> str:
        head = json.dumps(self.head)[1:-1]
        body = json.dumps(self.events, indent=indent)
        return "{" + head + ', "traceEvents": ' + body + ', "traceName": "fake"}'

    def write(self, path: Path, *, indent: int | None = 2) -> Path:
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(self.text(indent=indent).encode()))
        else:
            path.write_text(self.text(indent=indent))
        return path


def training_step(trace: FakeTrace, number: int, start: float, *, sequence: int = 0) -> None:
    """A step of 1000 us on a card: a convolution forward and backward, a norm, the optimizer, one wait.

    Work and gaps, from ``start``: 0-40 idle (launch), conv 40-240, gap of 10 (queued), norm 250-300, backward conv
    300-700, 700-760 idle (the host waited from 650 to 720), optimizer 760-900, 900-1000 idle (launch).
    """
    trace.step(number, start, 1000.0)
    trace.note("hotlap.loss", start + 5, 100)
    trace.note("hotlap.module: model (Net)", start + 10, 80)
    trace.note("hotlap.module: conv (Conv2d)", start + 15, 30)
    dims = [[8, 16, 32, 32], [32, 16, 3, 3], [32], [], [], [], [], [], []]
    values = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    kinds = ["float"] * 3 + ["ScalarList"] * 6
    conv = trace.op("aten::convolution", start + 20, 20, sequence=sequence, dims=dims, kinds=kinds, values=values)
    trace.launch("sm80_xmma_fprop_implicit_gemm_tf32f32_tensor16x8x8", (start + 30, 5), (start + 40, 200), op=conv)
    norm = trace.op("aten::batch_norm", start + 60, 20, sequence=sequence + 1, dims=[[8, 32, 32, 32], [32]])
    trace.launch("batch_norm_fwd", (start + 65, 5), (start + 250, 50), op=norm)
    node = "autograd::engine::evaluate_function: ConvolutionBackward0"
    trace.op(node, start + 120, 60, tid=ENGINE, sequence=sequence)
    back = trace.op("aten::convolution_backward", start + 125, 50, tid=ENGINE)
    trace.launch("sm80_xmma_dgrad_implicit_gemm_tf32f32", (start + 130, 5), (start + 300, 400), op=back, tid=ENGINE)
    trace.op("aten::item", start + 640, 90)
    trace.sync(start + 650, 70)
    trace.note("Optimizer.step#Adam.step", start + 740, 100)
    adam = trace.op("aten::_foreach_add_", start + 745, 20)
    trace.launch("multi_tensor_apply_kernel", (start + 750, 5), (start + 760, 140), op=adam)


def training_trace(steps: int = 2, **settings: Any) -> FakeTrace:
    trace = FakeTrace(**settings)
    for number in range(steps):
        training_step(trace, number, 1000.0 * number, sequence=10 * number)
    return trace
