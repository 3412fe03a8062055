"""Pictures read and normalised ahead of the network, a few at a time: by threads, or by processes that they ask."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotlap.base.errors import HotlapError
from hotlap.data.micrograph import page_name, read_pictures
from hotlap.segment.done import Done, content_digest
from hotlap.segment.normalise import normalise

_PATIENCE_S = 0.1


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

    def items(self, name: str, path: Path) -> Generator[Item]:
        """The pictures of a file, those of it that were finished before, and what is wrong with it."""
        try:
            digest = content_digest(path)
            entries, num_pages = self.done.pages(name, digest) if not self.redo else ([], 0)
            if entries:
                yield Finished(entries)
            if entries and len(entries) == num_pages:
                return
            skip, bad = frozenset(entry["page"] for entry in entries), list[Bad]()
            pages = read_pictures(
                path, most_pixels=self.most_pixels, skip=skip, hear=lambda page: bad.append(Bad(path, page.reason))
            )
            for picture in pages:
                yield from bad
                bad.clear()
                named = page_name(name, picture.page)
                yield Loaded(named, path, digest, picture.num_pages, normalise(picture.pixels))
            yield from bad
        except HotlapError as error:
            yield Bad(path, getattr(error, "reason", "") or error.what)
        except OSError as error:
            yield Bad(path, error.strerror or str(error))


Read = Callable[[str, Path], Generator[Item]]
"""As ``Reading.items``, wherever that is done."""


class Reader:
    """The pictures of a folder, its bad files and finished ones: read in threads, up to ``ahead`` before their turn."""

    def __init__(self, files: Mapping[str, Path], read: Read, *, workers: int, ahead: int) -> None:
        self._todo: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        for item in files.items():
            self._todo.put(item)
        self._ready: queue.Queue[Item | BaseException | None] = queue.Queue(ahead)
        self._read = read
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Generator[Item]:
        at_work = len(self._threads)
        while at_work:
            item = self._ready.get()
            if item is None:
                at_work -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def stop(self) -> None:
        """Ends the threads after what they are reading now."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    name, path = self._todo.get_nowait()
                except queue.Empty:
                    break
                with contextlib.closing(self._read(name, path)) as items:
                    for item in items:
                        self._hand(item)
                        if self._stop.is_set():
                            return
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._hand(error)
        finally:
            self._hand(None)

    def _hand(self, item: Item | BaseException | None) -> None:
        put: Callable[..., None] = self._ready.put
        while not self._stop.is_set():
            try:
                put(item, timeout=_PATIENCE_S)
                return
            except queue.Full:
                continue
