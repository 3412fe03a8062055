"""Arrays by name from npz files, which anybody may have damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np

from hotlap.data.file_bytes import ZIP_FAULTS


class UnreadableArrays(Exception):
    """Why a file's arrays cannot be had; whoever asked says which file that was and what helps."""


def read_npz(path: Path, names: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """The arrays of that name, or all; no pickle is opened."""
    try:
        with open(path, "rb") as file:
            if not is_zipfile(file):  # one array, or anything: numpy would have it unpickled
                raise BadZipFile("it is no npz file, or is cut short")
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                missing = next((name for name in names if name not in arrays.files), None)
                if missing is not None:
                    raise UnreadableArrays(f"it has no array {missing!r}")
                return {name: arrays[name] for name in names or arrays.files}
    except OSError as error:
        raise UnreadableArrays(error.strerror or str(error)) from error
    except ZIP_FAULTS as error:
        raise UnreadableArrays(str(error)) from error
