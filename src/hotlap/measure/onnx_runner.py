"""An ONNX file under onnxruntime, with torch's tensors in and out: on the CPU, or in the card's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hotlap.base.errors import EnvironmentUnusable
from hotlap.measure.arms import ArmSpec

QUIET = 3
"""onnxruntime's log level for errors only."""


class OnnxRunner:
    """Runs the model of a file on flat tensors; inputs that the model does not use may be missing from the file."""

    def __init__(self, file: Path, spec: ArmSpec, names: Sequence[str]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = QUIET
        self._on_cuda, self._index = spec.device == "cuda", spec.index
        if self._on_cuda:
            onnxruntime.preload_dlls()
        self.session = onnxruntime.InferenceSession(str(file), options, providers=_providers(spec))
        taken = self.session.get_providers()
        if self._on_cuda and taken[0] != "CUDAExecutionProvider":
            # It falls back to the CPU by itself, with a line in its log.
            raise EnvironmentUnusable(
                f"arm {spec.name!r}: onnxruntime could not start its CUDAExecutionProvider and took {taken[0]}",
                remedy="Its CUDA and cuDNN must be the versions that onnxruntime-gpu was built for",
            )
        wanted = {value.name for value in self.session.get_inputs()}
        self._inputs = [(place, name) for place, name in enumerate(names) if name in wanted]
        self._outputs = [value.name for value in self.session.get_outputs()]
        self._shapes: dict[tuple[torch.Size, ...], list[tuple[tuple[int, ...], torch.dtype]]] = {}

    def __call__(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if self._on_cuda:
            return self._run_on_card(tensors)
        feeds = {name: tensors[place].contiguous().numpy() for place, name in self._inputs}
        return [torch.from_numpy(out) for out in self.session.run(self._outputs, feeds)]

    def _run_on_card(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Results in tensors of our own: onnxruntime would hand out its memory, and only for its next run."""
        held = [tensor.contiguous() for tensor in tensors]
        key = tuple(tensor.shape for tensor in held)
        if key not in self._shapes:
            self._shapes[key] = self._learn_shapes(held)
        device = held[0].device
        results = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self._shapes[key]]
        binding = self._bind(held)
        for name, result in zip(self._outputs, results, strict=True):
            binding.bind_output(
                name, "cuda", self._index, _numpy_type(result.dtype), tuple(result.shape), result.data_ptr()
            )
        torch.cuda.current_stream(device).synchronize()  # onnxruntime works on a stream of its own
        self.session.run_with_iobinding(binding)
        return results

    def _bind(self, tensors: Sequence[Tensor]) -> Any:
        binding = self.session.io_binding()
        for place, name in self._inputs:
            tensor = tensors[place]
            binding.bind_input(
                name, "cuda", self._index, _numpy_type(tensor.dtype), tuple(tensor.shape), tensor.data_ptr()
            )
        return binding

    def _learn_shapes(self, tensors: Sequence[Tensor]) -> list[tuple[tuple[int, ...], torch.dtype]]:
        binding = self._bind(tensors)
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        torch.cuda.current_stream(tensors[0].device).synchronize()
        self.session.run_with_iobinding(binding)
        return [(tuple(out.shape), torch.from_numpy(out).dtype) for out in binding.copy_outputs_to_cpu()]


def _providers(spec: ArmSpec) -> list[Any]:
    if spec.device == "cpu":
        return ["CPUExecutionProvider"]
    # It takes TF32 unless told not to, which would not be the float32 that the arm's name promises.
    options = {"device_id": str(spec.index), "use_tf32": "1" if spec.precision == "tf32" else "0"}
    return [("CUDAExecutionProvider", options), "CPUExecutionProvider"]


def _numpy_type(dtype: torch.dtype) -> Any:
    return torch.empty(0, dtype=dtype).numpy().dtype.type
