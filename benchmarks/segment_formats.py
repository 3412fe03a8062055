"""What does each format of ``hotlap segment predict`` cost one core for a picture, and what does it cost to read one?

    PYTHONPATH=src:. python -m benchmarks.segment_formats --out segment_formats.json [--rounds 15] [--size 1024]

Drawn pictures of cells, with maps as a network would give that has learned them: the truth, blurred. The parts take
turns, a round each: the picture read from PNG by ours and by Pillow, objects told apart and measured, with and without
outlines, then what each format adds to that, in memory. Milliseconds are those of the thread's processor. First it is
seen that the picture read is the one written, that the objects found are those drawn, and that the lines of a JPEG
overlay have their colours; else there are no figures.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy import ndimage

from hotlap.data.drawn_cells import draw_cells
from hotlap.data.micrograph import pictures_in
from hotlap.kernels.unfilter.op import compiled_rows
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.exports import picture_entry, picture_files
from hotlap.segment.instance_metrics import score_image
from hotlap.segment.overlay import draw_overlay, encode_overlay, encode_png
from hotlap.segment.predict import segment_maps

NAMES = ("foreground", "core")
PICTURES = 3
FEWEST_FOUND = 0.95
"""AP at 0.5 of the objects found, against those drawn."""
MOST_TINT = 8.0
"""Levels of 255 by which the lines of an overlay may be off in the mean."""


def blurred_maps(labels: np.ndarray) -> np.ndarray:  # [H, W] -> [2, H, W] float32
    """Probabilities of an object, and of its core, two pixels inside of it."""
    same = np.ones(labels.shape, bool)
    for shift, axis in ((1, 0), (-1, 0), (1, 1), (-1, 1)):
        same &= np.roll(labels, shift, axis) == labels
    masks = np.stack([labels > 0, ndimage.binary_erosion(same & (labels > 0))])
    return np.clip(ndimage.gaussian_filter(masks.astype(np.float32), (0, 1, 1)), 0.01, 0.99)


def parts(number: int, size: int) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What is timed for one picture, and what is seen of it before."""
    picture, truth = draw_cells(number, size=size, seed=0)[:2]
    maps = blurred_maps(truth)
    found = segment_maps(maps, NAMES)
    drawn = draw_overlay(picture, found.labels)
    with Image.open(io.BytesIO(encode_overlay(drawn)[1])) as image:
        tint = abs(np.asarray(image).astype(int) - drawn)[(drawn != picture).any(2)].mean()
    seen = {"objects": len(found.objects), "ap50": score_image(truth, found.labels).at[0.5].ap, "tint": float(tint)}
    files = ("labels", "overlay", "yolo", "roi", "geojson")
    content, path, rows = encode_png(picture), Path("a.png"), compiled_rows()
    (same,) = (np.array_equal(one.pixels, picture) for one in pictures_in(content, path, rows=rows))
    seen["read"] = float(same)
    return {
        "PNG read": lambda: list(pictures_in(content, path, rows=rows)),
        "PNG read by Pillow": lambda: list(pictures_in(content, path)),
        "objects": lambda: segment_maps(maps, NAMES, outlined=False),
        "objects, outlined": lambda: segment_maps(maps, NAMES, outlined=True),
        **{kind: lambda kind=kind: picture_files("a", found, picture, (kind,), "cell") for kind in files},
        "overlay as PNG": lambda: encode_png(draw_overlay(picture, found.labels)),
        **{kind: lambda kind=kind: picture_entry("a", "a.png", found, (kind,)) for kind in ("csv", "coco")},
    }, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("segment_formats.json"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--size", type=int, default=1024)
    given = parser.parse_args()
    made = [parts(number, given.size) for number in range(PICTURES)]
    checks = [seen for _, seen in made]
    samples: dict[str, list[float]] = {}
    for turn in range(given.rounds + 1):
        for work, _ in made:
            for name, run in work.items():
                began = time.thread_time()
                run()
                if turn:  # the first warms up
                    samples.setdefault(name, []).append(1e3 * (time.thread_time() - began))
        print(f"round {turn} of {given.rounds}", flush=True)
    answer = {"size": given.size, "checks": checks, "ms": samples, "environment": encode(capture())}
    given.out.write_text(json.dumps(answer, indent=1, default=str) + "\n")
    if any(seen["ap50"] < FEWEST_FOUND or seen["tint"] > MOST_TINT or not seen["read"] for seen in checks):
        print(f"no figures: {checks}")
        return
    for name, ms in samples.items():
        low, middle, high = np.percentile(ms, [5, 50, 95])
        print(f"{name:20} {middle:6.2f} ms [{low:.2f}, {high:.2f}]")
    times = [b / a for a, b in zip(samples["overlay"], samples["overlay as PNG"], strict=True)]
    print(f"a JPEG overlay takes 1 / {statistics.median(times):.1f} of a PNG's time")


if __name__ == "__main__":
    main()
