"""Pictures and results that wait: as many as are useful, and never more bytes than a machine has for them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hotlap.segment.done import Done, prepare
from hotlap.segment.predict import Beside
from hotlap.segment.reading import PIXEL_BYTES, Bad, Loaded, Reader, Reading

PICTURE = np.zeros((10, 10, 3), np.uint8)


class Counted:
    """Reads a picture of 300 bytes for every file, and counts how many were asked for."""

    def __init__(self):
        self.num = 0
        self._lock = threading.Lock()

    def __call__(self, name, path):
        with self._lock:
            self.num += 1
        yield Loaded(name, path, "", 1, PICTURE)

    def comes_to(self, expected):
        """Whether the count comes to that, and to no more in a while."""
        while self.num < expected:
            time.sleep(0.01)
        time.sleep(0.05)
        return self.num == expected


def test_what_is_no_file_is_named_and_not_waited_for(tmp_path, no_hang):
    """Whoever opens a pipe waits for its other end, and so did the run, through Ctrl-C, too."""
    prepare(tmp_path / "out")
    reading = Reading(done=Done(tmp_path / "out", {}), most_pixels=100, redo=False)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for path, words in {"pipe.png": "it is no file", "folder.png": "it is no file", "gone.png": "No such file"}.items():
        (bad,) = reading.items("a", tmp_path / path)
        assert isinstance(bad, Bad) and words in bad.reason


def test_a_picture_for_which_there_is_no_memory_is_named_before_it_is_decoded(tmp_path):
    """The kernel would end the process, and the rest of the folder with it."""
    prepare(tmp_path / "out")
    for name, size in {"small": (5, 9), "large": (6, 9)}.items():
        Image.new("L", size).save(tmp_path / f"{name}.png")
    pages = [Image.new("L", size) for size in ((5, 9), (9, 9))]
    pages[0].save(tmp_path / "stack.tif", save_all=True, append_images=pages[1:])
    reading = Reading(done=Done(tmp_path / "out", {}), most_pixels=1000, redo=False, room_bytes=50 * PIXEL_BYTES)
    found = {name: list(reading.items(name, next(tmp_path.glob(f"{name}.*")))) for name in ("small", "large", "stack")}
    assert [type(item) for items in found.values() for item in items] == [Loaded, Bad, Loaded, Bad]
    words = f"more than most_pixels = 50: each takes {PIXEL_BYTES} bytes of memory, and 1.42 KiB were available; cut it"
    assert f"6x9 pixels are {words} into parts" in found["large"][0].reason
    assert f"page 1: 9x9 pixels are {words} into parts" in found["stack"][1].reason
    asked = Reading(done=Done(tmp_path / "out", {}), most_pixels=50, redo=False, room_bytes=50 * PIXEL_BYTES)
    (bad,) = asked.items("large", tmp_path / "large.png")
    assert bad.reason.endswith("most_pixels = 50"), "what was asked for has nothing to do with memory"


@pytest.mark.parametrize(("ahead", "most_bytes", "waiting"), [(5, 10_000, 5), (50, 1_500, 5), (50, 299, 1)])
def test_no_more_is_read_ahead_than_may_wait(ahead, most_bytes, waiting, no_hang):
    read, files = Counted(), {f"{n:02d}": Path(f"{n:02d}.png") for n in range(20)}
    reader = Reader(files, read, workers=2, ahead=ahead, most_bytes=most_bytes)
    assert read.comes_to(waiting + 2), "as many as may wait, and one that each thread holds"
    items = iter(reader)
    found = [next(items).name]
    assert read.comes_to(waiting + 3)
    found += [item.name for item in items]
    assert sorted(found) == sorted(files)
    reader.stop()


def test_a_reader_that_is_stopped_reads_no_more(no_hang):
    read = Counted()
    reader = Reader({str(n): Path(str(n)) for n in range(20)}, read, workers=2, ahead=3)
    assert read.comes_to(5)
    reader.stop()
    assert read.num == 5


@pytest.mark.parametrize(("sizes", "at_once"), [([1] * 8, 4), ([60] * 4, 1), ([200, 200], 1), ([30] * 6, 3)])
def test_large_results_are_not_begun_beside_others(sizes, at_once, no_hang):
    gate, lock = threading.Event(), threading.Lock()
    under_way = most = 0

    def work():
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
            if most == at_once:
                gate.set()
        gate.wait()
        with lock:
            under_way -= 1

    beside = Beside(workers=8, most=4, most_bytes=100)
    for size in sizes:
        beside.submit(size, work)
    beside.finish()
    assert most == at_once
