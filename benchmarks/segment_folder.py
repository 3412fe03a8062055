"""What share of the time do results take, when a folder of pictures goes through a network at its tuned batch?

    hotlap tune hrnet --for infer --export tuned
    PYTHONPATH=src:. python -m benchmarks.segment_folder --models hrnet --batch-sizes tuned/batch_sizes.json

A network that has learned drawn cells for some steps, or has the weights of a training (--weights), goes through a
folder of pictures as ``hotlap segment predict`` does: read, tiles, network, objects told apart, outlined, measured,
written. First the same folder goes through it with all maps thrown away: what the whole takes longer than that is the
share of results, which must be at most 25%. Seconds of the main thread are counted as the command counts them: waiting
for pictures, in the network, waiting for results; where cores are the limit, in which of these it waits says little.
Beside it stands what one picture's results cost one core, step by step, and how many pictures a second the network
alone takes at the same batch on the same arm, and which share of that the folder reached. A small folder before it
warms the machine up and is not counted, and neither is the loading of the network. The processes for results get ready
meanwhile, which takes seconds: before that they are worked out in threads, so that a folder of a hundred pictures is
over too soon to show what processes do. With --batch-sizes, arm and batch are those that ``hotlap tune`` found. Batches
are full and at least four: a single or ragged one shows no shares. Each of several sets of formats, as in ``--formats
labels,csv labels,csv,overlay``, gets a folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from benchmarks.segment_speed import learned
from benchmarks.timed_training import add_result
from PIL import Image

from hotlap.data.batch_sizes import read_batch_size
from hotlap.data.drawn_cells import draw_cells
from hotlap.engine.parts import pick_device
from hotlap.kernels.instances.op import trace
from hotlap.measure.loaded_workload import arm_on
from hotlap.measure.weights import with_weights
from hotlap.records.codec import encode
from hotlap.records.environment import capture
from hotlap.segment.cells import cells
from hotlap.segment.contours import outlines
from hotlap.segment.exports import picture_files
from hotlap.segment.instances import split
from hotlap.segment.normalise import normalise
from hotlap.segment.objects import measure_objects
from hotlap.segment.predict import segment_maps
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predict_folder import PredictedFolder, predict_folder
from hotlap.segment.predictor import Predictor

ASKED_SHARE = 0.25
ON_CARD = "cuda:bf16+cudnn_benchmark+graph"
FEWEST_BATCHES = 4
DISTINCT = 8
"""Drawing is slow: pictures are repeated, as links under other names."""


class Dropped:
    """Takes the place of the work on results, and does none."""

    def __init__(self, *_: int) -> None: ...

    def submit(self, *_: Any) -> None: ...

    def finish(self) -> None: ...


def draw_folder(folder: Path, count: int, size: int, suffix: str) -> None:
    """Pictures of drawn cells as files: PNG compressed a little, TIFF not at all."""
    folder.mkdir()
    drawn = [draw_cells(n, size=size, seed=0)[0] for n in range(min(count, DISTINCT))]
    for number in range(count):
        file = folder / f"{number:05d}{suffix}"
        if number < len(drawn):
            Image.fromarray(drawn[number]).save(file, **({"compress_level": 1} if suffix == ".png" else {}))
        else:
            os.link(folder / f"{number % len(drawn):05d}{suffix}", file)


def milliseconds(run: Callable[[], Any], times: int = 5) -> float:
    """The median processor time of this thread."""
    run()
    found = []
    for _ in range(times):
        began = time.thread_time()
        run()
        found.append(1e3 * (time.thread_time() - began))
    return statistics.median(found)


def one_picture(predictor: Predictor, size: int, formats: tuple[str, ...]) -> dict[str, Any]:
    """What the results of one picture cost one core."""
    pixels = draw_cells(0, size=size, seed=0)[0]
    tile = torch.from_numpy(normalise(pixels)).permute(2, 0, 1)[None]
    maps = predictor(tile)[0].float().cpu().numpy()
    found, names = segment_maps(maps, predictor.names), predictor.names
    rings = trace(found.labels)
    return {
        "objects": len(found.objects),
        "normalise_ms": milliseconds(lambda: normalise(pixels)),
        "split_ms": milliseconds(lambda: split(maps, names)),
        "outlines_ms": milliseconds(lambda: outlines(found.labels, tolerance=0.75, rings=rings)),
        "measure_ms": milliseconds(lambda: measure_objects(found.labels, maps[0], rings=rings)),
        "results_ms": milliseconds(lambda: segment_maps(maps, names)),
        "files_ms": milliseconds(lambda: picture_files("a", found, pixels, formats, "cell")),
    }


def network_alone(predictor: Predictor, batch: int, size: int, seconds: float) -> float:
    """Pictures a second through the network, bytes from host memory, nothing brought back; one batch is begun ahead."""
    # A card computes on black pictures with less power, and so faster.
    tiles = torch.from_numpy(np.random.default_rng(0).integers(256, size=(batch, 3, size, size), dtype=np.uint8))
    on_card = predictor.device.type == "cuda"

    def begin() -> Callable[[], None]:
        predictor(tiles)
        if not on_card:
            return lambda: None
        ended = torch.cuda.Event()
        ended.record(torch.cuda.current_stream(predictor.device))
        return ended.synchronize

    for _ in range(3):
        begin()()
    done, began, wait = 0, time.perf_counter(), begin()
    while done < 3 or time.perf_counter() - began < seconds:
        ahead = begin()
        wait()
        wait, done = ahead, done + 1
    wait()
    return (done + 1) * batch / (time.perf_counter() - began)


def tuned_arm(file: Path, model: str) -> str:
    """The arm for which a batch_sizes.json names the batch."""
    note: str = json.loads(file.read_text(encoding="utf-8"))["batch_configurations"][model]["note"]
    return note.partition(",")[0]


def one_model(args: argparse.Namespace, model: str) -> Iterator[dict[str, Any]]:
    """The whole way of a folder with one network, for each set of formats."""
    device = pick_device(args.device)
    batch = read_batch_size(args.batch_sizes, model) if args.batch_sizes else args.batch
    tuned = tuned_arm(args.batch_sizes, model) if args.batch_sizes else ""
    arm = arm_on(args.arm or tuned or (ON_CARD if device.type == "cuda" else "cpu"), str(device))
    workload = cells(model=model, size=args.size, width=args.width, augment=False)
    if args.weights:
        workload = with_weights(workload, Path(args.weights.format(model=model)))  # type: ignore[assignment]
    else:
        workload = learned(workload, args.steps, 60.0)
    count = batch * max(FEWEST_BATCHES, -(-args.pictures // batch))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        draw_folder(folder / "warm", batch, args.size, args.suffix)
        draw_folder(folder / "pictures", count, args.size, args.suffix)

        def predict(pictures: Path, formats: tuple[str, ...]) -> tuple[PredictedFolder, Predictor]:
            # As the command does, loaded with the first batch, while the processes for results get ready.
            predictor = Predictor(
                workload.build_model(), arm=arm, batch=batch, name=model, digest=model,
                emit=lambda event: print(f"{model}: {event.text}", flush=True),
            )  # fmt: skip
            with tempfile.TemporaryDirectory(dir=folder) as out:
                config = SegmentPredictConfig(
                    folder=pictures, out=Path(out), formats=formats, batch=batch, workers=args.workers
                )
                return predict_folder(config, predictor=predictor), predictor

        predict(folder / "warm", tuple(args.formats[0].split(",")))
        with patch("hotlap.segment.predict_folder.Beside", Dropped):
            without = predict(folder / "pictures", ("labels",))[0].seconds["wall"]
        for formats in (tuple(one.split(",")) for one in args.formats):
            found, predictor = predict(folder / "pictures", formats)
            alone, wall = network_alone(predictor, batch, args.size, 2.0), found.seconds["wall"]
            yield {
                "arm": arm.name,
                "batch": predictor.batch,
                "formats": formats,
                "tuned": {"arm": tuned, "batch": batch} if tuned else None,
                "load_s": predictor.load_s,
                "pictures": found.num_images,
                "objects": found.num_objects,
                "seconds": found.seconds,
                "pictures_per_s": found.num_images / wall,
                "network_alone_per_s": alone,
                "of_network_alone": found.num_images / wall / alone,
                "without_results_s": without,
                "results_share": max(0.0, 1 - without / wall),
                "one_picture": one_picture(predictor, args.size, formats),
            }


def tell(model: str, answer: dict[str, Any]) -> None:
    wall = answer["seconds"]["wall"]
    shares = ", ".join(f"{name} {answer['seconds'][name] / wall:.0%}" for name in ("read", "network", "results"))
    each = "  ".join(f"{name} {value:.4g}" for name, value in answer["one_picture"].items())
    word = "reached" if answer["results_share"] <= ASKED_SHARE else "MISSED"
    arm, formats = f"{answer['arm']} at batch {answer['batch']}", ",".join(answer["formats"])
    print(f"{model}, {arm}, {formats}: {answer['pictures_per_s']:.1f} pictures/s ({shares}), "
          f"{answer['of_network_alone']:.0%} of the {answer['network_alone_per_s']:.1f} of the network alone; results "
          f"take {answer['results_share']:.0%} of the time, at most {ASKED_SHARE:.0%}: {word}\n  one picture: {each}",
          flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="hrnet,resunet-small,ma-resunet")
    parser.add_argument("--pictures", type=int, default=1024, help="at least; as many more as fill the last batch")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--suffix", default=".png", choices=(".png", ".tif"))
    parser.add_argument("--width", type=int, default=0)
    parser.add_argument("--arm", default="", help=f"how the network runs; by default tuned, else {ON_CARD}, or cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument(
        "--batch-sizes", type=Path, help="of 'hotlap tune --export': its batch, and its arm without --arm"
    )
    parser.add_argument("--formats", nargs="+", default=["labels,csv"], help="one set or several")
    parser.add_argument("--steps", type=int, default=300, help="learned before; at most a minute")
    parser.add_argument("--weights", default="", help="file of weights, as segment-train/{model}/weights.pt")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("segment_folder.json"))
    args = parser.parse_args()
    config, environment = {name: str(value) for name, value in vars(args).items()}, encode(capture())
    for model in args.models.split(","):
        for answer in one_model(args, model):
            tell(model, answer)
            name = f"{model}, {','.join(answer['formats'])}"
            add_result(args.out, "models", name, {**answer, "config": config, "environment": environment})
    return 0


if __name__ == "__main__":
    sys.exit(main())
