"""Were the choices inside the splatting kernels right on this card? The time of each kernel, one choice at a time.

    python -m benchmarks.splat_choices --out splat_choices.json [--scenes 20k,200k,1M,3M]

A frame is drawn and differentiated for eight cameras under torch's profiler, first as the kernels are, then with one,
two and four pixels a thread, with each splat's sums folded by themselves, and with every list sorted by a block. The
picture of every choice has to be the same bits as that of the first, and its gradients the same but for rounding; a
choice that fails that is reported and its times are not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.splat_contenders import Ours, profiled
from benchmarks.splat_scene import SCENES, make_scene

MAX_ERROR = 1e-3
"""Of a gradient's difference over its norm; sums in another order are within 1e-5."""


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, the attribute has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def choices(cuda: Any, program: Any) -> dict[str, Callable[[], Any]]:
    """What is changed, by name."""
    chosen, compiled = cuda._variant, program.Variant.program

    def pixels(number: int) -> Any:
        return changed(cuda, "_variant", lambda *given: dataclasses.replace(chosen(*given), pixels=number))

    def macros(**more: int) -> Any:
        def build(variant: Any, way: str) -> Any:
            made = compiled(variant, way)
            return dataclasses.replace(made, macros=(*made.macros, *more.items()))

        program._loaded.cache_clear()
        return changed(program.Variant, "program", build)

    return {
        "as it is": lambda: changed(cuda, "SHORT_LISTS", cuda.SHORT_LISTS),
        "1 pixel a thread": lambda: pixels(1),
        "2 pixels a thread": lambda: pixels(2),
        "4 pixels a thread": lambda: pixels(4),
        "sums folded splat by splat": lambda: macros(BUNDLE=0),
        "lists sorted by blocks": lambda: changed(cuda, "SHORT_LISTS", 0),
        "lists sorted by warps": lambda: changed(cuda, "SHORT_LISTS", 10**6),
    }


def measure(scene_name: str) -> dict[str, Any]:
    """For each choice the milliseconds of each kernel, or why they are not given."""
    import torch

    from hotlap.kernels.splat import cuda, cuda_program

    scene = SCENES[scene_name]
    ours = Ours(scene, *make_scene(scene, "cuda"))
    v_colors = torch.randn(1, scene.height, scene.width, 3, device="cuda") / (scene.height * scene.width)
    found: dict[str, Any] = {}
    wanted: Any = None
    for name, change in choices(cuda, cuda_program).items():
        with change():
            ours.step = 0
            picture, grads = ours.run(v_colors)
            if wanted is None:
                wanted = picture, grads
            errors = {n: ((grads[n] - g).norm() / g.norm()).item() for n, g in wanted[1].items()}
            if not torch.equal(picture, wanted[0]) or max(errors.values()) > MAX_ERROR:
                found[name] = {"same_picture": torch.equal(picture, wanted[0]), "errors": errors}
            else:
                times = profiled(ours.run, v_colors)
                found[name] = {kernel: ms for kernel, ms in times.items() if kernel.startswith("splat_")}
        cuda_program._loaded.cache_clear()
    return found


def _show(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("splat_choices.json"))
    parser.add_argument("--scenes", default="20k,200k,1M,3M")
    given = parser.parse_args()
    from hotlap.records.environment import capture

    answer: dict[str, Any] = {"environment": dataclasses.asdict(capture()), "ms": {}}
    for scene in given.scenes.split(","):
        answer["ms"][scene] = measure(scene)
        for name, times in answer["ms"][scene].items():
            told = ", ".join(
                f"{key.removeprefix('splat_').removesuffix('_kernel')} {_show(times[key])}" for key in times
            )
            print(f"{scene}, {name}: {told}", flush=True)
        given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
