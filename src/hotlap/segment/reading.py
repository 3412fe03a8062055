"""Pictures read and normalised in threads, ahead of the network, a few at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
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


class Reader:
    """Reads the files of a folder in threads; iterate over it to get pictures, bad files and finished ones."""

    def __init__(self, files: Mapping[str, Path], done: Done, *, workers: int, most_pixels: int, redo: bool) -> None:
        self._todo: queue.SimpleQueue[tuple[str, Path]] = queue.SimpleQueue()
        for item in files.items():
            self._todo.put(item)
        self._ready: queue.Queue[Item | BaseException | None] = queue.Queue(2 * workers)
        self._done, self._most_pixels, self._redo = done, most_pixels, redo
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(workers)]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Item]:
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
                self._file(name, path)
        except BaseException as error:  # noqa: BLE001 - the main thread raises it again
            self._hand(error)
        finally:
            self._hand(None)

    def _file(self, name: str, path: Path) -> None:
        try:
            digest = content_digest(path)
            entries, num_pages = self._done.pages(name, digest) if not self._redo else ([], 0)
            if entries:
                self._hand(Finished(entries))
            if entries and len(entries) == num_pages:
                return
            skip = frozenset(entry["page"] for entry in entries)
            pages = read_pictures(
                path, most_pixels=self._most_pixels, skip=skip, hear=lambda bad: self._hand(Bad(path, bad.reason))
            )
            for picture in pages:
                named = page_name(name, picture.page)
                self._hand(Loaded(named, path, digest, picture.num_pages, normalise(picture.pixels)))
                if self._stop.is_set():
                    return
        except HotlapError as error:
            self._hand(Bad(path, getattr(error, "reason", "") or error.what))
        except OSError as error:
            self._hand(Bad(path, error.strerror or str(error)))

    def _hand(self, item: Item | BaseException | None) -> None:
        put: Callable[..., None] = self._ready.put
        while not self._stop.is_set():
            try:
                put(item, timeout=_PATIENCE_S)
                return
            except queue.Full:
                continue
