"""Tables on a terminal of eighty columns: nothing is cut off, whatever the arms are called."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from hotlap.cli.columns import broken, fitted

NAMES = ("", "arm", "batch", "a step", "speed-up", "verdict")
LONG = "cuda:bf16+channels_last+compile=max-autotune-no-cudagraphs+cudnn_benchmark+fused+graph+padded+shuffled"
ROWS = [
    ["before", "cuda", "16", "15.62 ms [15.60, 15.70]", "–", ""],
    ["after", LONG, "128", "26.91 ms [26.87, 3,393]", "4.642x [4.601, 4.690]", Text("inconclusive")],
]


def drawn(width, rows=ROWS, names=NAMES):
    table = fitted(names, rows, width=width, words=("", "arm", "verdict"))
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [80, 100, 132, 300])
def test_every_word_and_number_is_there_and_no_line_is_too_long(width):
    lines = drawn(width)
    text = " ".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text, text
    for words in ("inconclusive", "26.91 ms", "[26.87, 3,393]", "[4.601, 4.690]", *re.split("[+=-]", LONG)):
        assert words in text


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_breaks_figures_and_cuts_none_off(width):
    lines = drawn(width)
    text = "".join(lines)
    assert max(map(len, lines)) <= width and "…" not in text, text
    given = "".join(str(cell) for row in [NAMES, *ROWS] for cell in row)
    assert sorted(text.replace(" ", "")) == sorted(given.replace(" ", ""))


def test_where_there_is_room_a_row_is_one_line():
    assert len(drawn(300)) == 1 + len(ROWS)
    assert len(drawn(80, rows=[["before", "cpu", "64", "98.1 ms [93.3, 103]", "–", ""]])) == 2


def test_eight_columns_of_figures_leave_the_arm_its_options_whole():
    names = ("arm", "samples/s", "device", "tail", "J/sample", "first", "memory", "error")
    lines = drawn(80, [[LONG.replace("=max-autotune-no-cudagraphs", ""), "4,510", "14.19 ms", "p99 14.4 ms", "0.112",
                        "31.2 s", "9.81 GiB", "2.8e-7"]], names)  # fmt: skip
    assert max(map(len, lines)) <= 80 and "channels_last+" in " ".join(lines) and "2.8e-7" in lines[1]


def test_brackets_are_printed_and_not_read_as_style():
    assert "[red] x" in " ".join(drawn(120, [["", "[red] x", "1", "", "", ""]]))


@pytest.mark.parametrize(
    ("arm", "room", "lines"),
    [
        ("cuda", 2, ["cuda"]),
        ("cuda:bf16+channels_last+graph", 29, ["cuda:bf16+channels_last+graph"]),
        ("cuda:bf16+channels_last+graph", 20, ["cuda:bf16+", "channels_last+graph"]),
        ("cuda:bf16+channels_last+graph", 14, ["cuda:bf16+", "channels_last+", "graph"]),
        ("cuda:compile=max-autotune+graph", 16, ["cuda:compile=", "max-autotune+", "graph"]),
    ],
)
def test_an_arm_is_broken_between_its_options(arm, room, lines):
    assert broken(arm, room).split("\n") == lines
