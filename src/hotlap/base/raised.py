"""What a user's code raised, in a line: what it said, and where in that code."""

from __future__ import annotations

import sys
import textwrap
import traceback
from pathlib import Path

from hotlap.base.errors import TargetError

OURS = Path(__file__).parents[1]
MOST_WORDS = 300
"""Characters of an explanation; torch's may name every tensor of a model."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, with the next where the reason is there, or its name."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    is_heading = lines[0].endswith(":") or "".join(lines[1:2]).startswith("Explanation:")  # as torch.compile's are
    return few_words(" ".join(lines[:2])) if is_heading else lines[0]


def few_words(said: str) -> str:
    """An explanation, cut where it is longer than anybody reads."""
    return textwrap.shorten(said, MOST_WORDS, placeholder=" ...")


def misfit(error: BaseException) -> str:
    """What torch says of weights that are not those of a model."""
    return few_words(" ".join(str(error).strip().splitlines()[:2]))


def their_line(error: BaseException) -> str:
    """The last line of the user's code, or of a library's, that an exception passed: not one of ours or of torch."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"({error.filename}:{error.lineno})"  # no frame has run it
    frames = traceback.extract_tb(error.__traceback__)
    foreign = [OURS]
    foreign += [Path(sys.modules["torch"].__file__ or "").parent] if "torch" in sys.modules else []
    theirs = [f for f in frames if not any(Path(f.filename).is_relative_to(folder) for folder in foreign)]
    frame = ([f for f in theirs if not f.filename.startswith("<")] or list(frames))[-1]
    return f"({frame.filename}:{frame.lineno})"


def is_lonely(error: BaseException) -> bool:
    """Whether a BatchNorm in training had nothing to take a variance of."""
    return "Expected more than 1 value per channel" in str(error)


def lonely_value(target: str, error: BaseException) -> TargetError:
    """What helps against it: not another input, which is what most models of users fail for."""
    return TargetError(
        f"target {target!r} has a BatchNorm that met a single value for a channel: {first_line(error)} "
        f"{their_line(error)}",
        remedy="Take a --batch that leaves no single sample, also at the end of an epoch, or larger inputs",
    )
