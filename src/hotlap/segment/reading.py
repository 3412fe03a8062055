"""Pictures read and normalised ahead of the network, a few at a time: by threads, or by processes that they ask."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import DataError, HotlapError
from hotlap.base.format import format_bytes
from hotlap.data.micrograph import page_name, read_pictures
from hotlap.data.picture_file import PictureTooLarge
from hotlap.kernels.unfilter.op import compiled_rows
from hotlap.segment.done import Done, content_digest
from hotlap.segment.normalise import normalise

MOST_BYTES = 1 << 30
"""Of pictures that wait for their turn. Batches of usual ones are less; of the largest few are needed at once."""

PIXEL_BYTES = 29
"""Of memory that a picture takes when its maps become objects, which is when it takes the most: 24 with cores, 27 with
boundaries, 29 without either."""


@dataclass(frozen=True)
class Loaded:
    """One picture, ready for the network."""

    name: str
    path: Path
    digest: str
    num_pages: int
    picture: np.ndarray  # [H, W, 3] uint8


@dataclass(frozen=True)
class Bad:
    """A file that could not be read, or a page of it."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Finished:
    """What was noted of pictures that were finished before."""

    entries: list[dict[str, Any]]


Item = Loaded | Bad | Finished


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What all files of a folder have in common before the network sees them."""

    done: Done
    most_pixels: int
    redo: bool
    room_bytes: float = math.inf
    """Of memory: a picture that would take more is refused before it is decoded."""

    def items(self, name: str, path: Path, begin: int = 0, finished: frozenset[int] | None = None) -> Generator[Item]:
        """Those of a file's pictures that were finished before, the others, and what is wrong with it.

        Who goes on with a file leaves out the first ``begin`` of the others, which are not decoded, and says which
        pages were ``finished`` when it was begun: some of those that were handed out may have been since.
        """
        try:
            if path.exists() and not path.is_file():  # to open a pipe waits for ever
                raise DataError("it is no file")
            digest = content_digest(path)
            if finished is None:
                entries, num_pages = self.done.pages(name, digest) if not self.redo else ([], 0)
                if entries:
                    yield Finished(entries)
                if entries and len(entries) == num_pages:
                    return
                finished = frozenset(entry["page"] for entry in entries)
            bad = list[Bad]()
            pages = read_pictures(
                path, most_pixels=self._most_pixels(), skip=finished, begin=begin,
                hear=lambda page: bad.append(Bad(path, self._reason(page))), rows=compiled_rows(),
            )  # fmt: skip
            for picture in pages:
                yield from bad
                bad.clear()
                named = page_name(name, picture.page)
                yield Loaded(named, path, digest, picture.num_pages, normalise(picture.pixels))
            yield from bad
        except HotlapError as error:
            yield Bad(path, self._reason(error))
        except OSError as error:
            yield Bad(path, error.strerror or str(error))

    def _most_pixels(self) -> int:
        return int(min(self.most_pixels, self.room_bytes / PIXEL_BYTES))

    def _reason(self, error: HotlapError) -> str:
        said: str = getattr(error, "reason", "") or error.what
        if isinstance(error, PictureTooLarge) and self._most_pixels() < self.most_pixels:
            said += f": each takes {PIXEL_BYTES} bytes of memory, and {format_bytes(self.room_bytes)} were available"
            said += "; cut it into parts"
        return said


Read = Callable[[str, Path], Generator[Item]]
"""As ``Reading.items``, wherever that is done."""


class Reader:
    """The pictures of a folder, its bad files and finished ones, read in threads before their turn.

    Up to ``ahead`` of them wait, and fewer where they are large: threads wait for room, which one always has.
    """

    def __init__(
        self, files: Mapping[str, Path], read: Read, *, workers: int, ahead: int, most_bytes: int = MOST_BYTES
    ) -> None:
        self._todo: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        for item in files.items():
            self._todo.put(item)
        self._read, self._ahead, self._most_bytes = read, ahead, most_bytes
        self._ready: deque[Item | BaseException | None] = deque()
        self._bytes, self._is_over = 0, False
        lock = threading.Lock()
        self._given, self._room = threading.Condition(lock), threading.Condition(lock)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Generator[Item]:
        at_work = len(self._threads)
        while at_work:
            item = self._take()
            if item is None:
                at_work -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def stop(self) -> None:
        """Ends the threads after what they are reading now."""
        with self._room:
            self._is_over = True
            self._room.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self._is_over:
                try:
                    name, path = self._todo.get_nowait()
                except queue.Empty:
                    break
                with contextlib.closing(self._read(name, path)) as items:
                    for item in items:
                        self._hand(item)
                        if self._is_over:
                            return
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._hand(error)
        finally:
            self._hand(None)

    def _take(self) -> Item | BaseException | None:
        with self._given:
            self._given.wait_for(lambda: self._ready)
            item = self._ready.popleft()
            self._bytes -= _bytes_of(item)
            self._room.notify()
            return item

    def _hand(self, item: Item | BaseException | None) -> None:
        size = _bytes_of(item)
        with self._room:
            self._room.wait_for(lambda: self._is_over or self._has_room(size))
            self._ready.append(item)
            self._bytes += size
            self._given.notify()
            self._room.notify()  # another's item may be smaller

    def _has_room(self, size: int) -> bool:
        is_little = len(self._ready) < self._ahead and self._bytes + size <= self._most_bytes
        return not self._ready or is_little


def _bytes_of(item: Item | BaseException | None) -> int:
    return item.picture.nbytes if isinstance(item, Loaded) else 0
