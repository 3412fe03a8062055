"""What lies beside the forms: a manifest for programs, a page for people, and the code that loads each form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotlap.base.format import format_bytes
from hotlap.measure.arms import FORMS, ArmSpec
from hotlap.measure.deploy_files import TensorInfo
from hotlap.records.codec import encode
from hotlap.records.environment import Environment, versions_of
from hotlap.tools.export.folder import MARK
from hotlap.tools.export.rows import FormRow

FORMAT = 1
_LOADERS = {
    "exported": 'model = torch.export.load("{file}").module()',
    "aoti": 'model = torch._inductor.aoti_load_package("{file}")',
    "torchscript": 'model = torch.jit.load("{file}")  # deprecated by torch; prefer another form for new programs',
}
_REMARKS = {
    "exported": "Torch's own graph of the model, for its compilers and converters.",
    "aoti": "Machine code for this kind of device, this torch and these CPU threads; it takes tensors of this layout.",
    "onnx": "Needs onnxruntime (or another ONNX runtime), and no torch.",
    "torchscript": "Torch has deprecated TorchScript: it still works here, and a later torch may not read it.",
}


def make_manifest(
    rows: Sequence[FormRow], *, target: dict[str, Any], arm: ArmSpec, batch: int, dynamic: bool, where: Environment
) -> dict[str, Any]:
    """Everything a program needs to load the forms, and a person to know what they are."""
    first = rows[0]
    packages = {name: where.packages[name] for name in ("torch", "numpy") if name in where.packages}
    return {
        MARK: FORMAT,
        "target": target,
        "arm": arm.name,
        "batch": batch,
        "dynamic_batch": dynamic,
        "inputs": encode(first.inputs),
        "outputs": encode(first.outputs),
        "versions": {
            "hotlap": where.hotlap,
            "python": where.python,
            **packages,
            **versions_of("onnx", "onnxscript", "onnxruntime"),
            **({"cuda": where.cuda} if arm.device == "cuda" else {}),
        },
        "made_on": where.device_line(),
        "forms": {row.form: _entry(row, arm, batch) for row in rows},
    }


def _entry(row: FormRow, arm: ArmSpec, batch: int) -> dict[str, Any]:
    return {
        "what": FORMS[row.form],
        "arm": row.arm,
        "files": encode(row.files),
        "gate_error": row.error,
        "gate_allowed": row.allowed,
        "remark": " ".join(filter(None, (_REMARKS[row.form], row.warning))),
        "load": loading_code(row, arm, batch),
    }


def loading_code(row: FormRow, arm: ArmSpec, batch: int) -> str:
    """Python that loads a form and runs it once, beside its file."""
    file = row.files[0].name
    return _onnx_code(row, arm, batch, file) if row.form == "onnx" else _torch_code(row, arm, batch, file)


def _torch_code(row: FormRow, arm: ArmSpec, batch: int, file: str) -> str:
    lines = ["import torch", "", _LOADERS[row.form].format(file=file)]
    for value in row.inputs:
        sizes = ", ".join(str(size) for size in _sizes(value, batch))
        draw = "torch.randn" if value.dtype.startswith("float") else "torch.ones"
        device = f', device="{arm.torch_device}"' if arm.device != "cpu" else ""
        text = f"{value.name} = {draw}({sizes}, dtype=torch.{value.dtype}{device})"
        layout = {4: "channels_last", 5: "channels_last_3d"}.get(len(value.shape))
        if arm.channels_last and layout and draw == "torch.randn":
            text += f".contiguous(memory_format=torch.{layout})"
        lines.append(text)
    call = ", ".join(value.name for value in row.inputs)
    lines += ["with torch.inference_mode():", f"    {_results(row)} = model({call})"]
    return "\n".join(lines) + "\n"


def _onnx_code(row: FormRow, arm: ArmSpec, batch: int, file: str) -> str:
    provider = "CUDAExecutionProvider" if arm.device == "cuda" else "CPUExecutionProvider"
    feeds = []
    for value in row.inputs:
        sizes = _sizes(value, batch)
        drawn = (
            f"rng.standard_normal({sizes}).astype" if value.dtype.startswith("float") else f"np.ones({sizes}).astype"
        )
        feeds.append(f'    "{value.name}": {drawn}("{value.dtype}"),')
    results = _results(row) if len(row.outputs) > 1 else f"({_results(row)},)"
    lines = [
        "import numpy as np",
        "import onnxruntime",
        "",
        f'session = onnxruntime.InferenceSession("{file}", providers=["{provider}"])',
        "rng = np.random.default_rng(0)",
        "feeds = {",
        *feeds,
        "}",
        f"{results} = session.run(None, feeds)",
    ]
    return "\n".join(lines) + "\n"


def _results(row: FormRow) -> str:
    return ", ".join(value.name for value in row.outputs)


def _sizes(value: TensorInfo, batch: int) -> tuple[int, ...]:
    return tuple(batch if size is None else size for size in value.shape)


def make_page(manifest: dict[str, Any], rows: Sequence[FormRow]) -> str:
    """The manifest as a page for people."""
    target = manifest["target"]
    any_batch = "any number of samples" if manifest["dynamic_batch"] else f"exactly {manifest['batch']} samples"
    lines = [
        f"# {target['name']}",
        "",
        f"{target['summary']}. Exported as `{manifest['arm']}`, for {any_batch} at a time; made on "
        f"{manifest['made_on']} with torch {manifest['versions'].get('torch', '?')}.",
        "",
        "| Tensor | Type | Shape |",
        "| --- | --- | --- |",
        *(_tensor_line(value, "input") for value in rows[0].inputs),
        *(_tensor_line(value, "output") for value in rows[0].outputs),
        "",
        "Every form gives the right answer to within the error below, against the same model in float64, in a process "
        "that had only the file. `manifest.json` has all of this for programs, with digests.",
    ]
    for row in rows:
        size = format_bytes(row.size_bytes)
        lines += [
            "",
            f"## {row.form}",
            "",
            f"{manifest['forms'][row.form]['remark']} `{row.files[0].name}`, {size}, error {row.error or 0.0:.1e}.",
            "",
            "```python",
            manifest["forms"][row.form]["load"].rstrip(),
            "```",
        ]
    return "\n".join(lines) + "\n"


def _tensor_line(value: TensorInfo, kind: str) -> str:
    shape = " x ".join("batch" if size is None else str(size) for size in value.shape)
    return f"| {kind} `{value.name}` | {value.dtype} | {shape or 'scalar'} |"
