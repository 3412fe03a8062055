"""The page's geometry and what else has no face, in the browser that it is for."""

from __future__ import annotations

import io

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from page_driver import opened

SQUARE = [[0, 0], [10, 0], [10, 10], [0, 10]]
HOLE = [[4, 4], [4, 6], [6, 6], [6, 4]]
COMB = [[0, 0], [9, 0], [9, 9], [6, 9], [6, 3], [3, 3], [3, 9], [0, 9]]


@pytest.fixture(scope="module")
def ask(chromium):
    """Calls a function of a module of the page."""
    with opened(chromium) as page:

        def call(module, name, *arguments):
            script = "async ([module, name, given]) => (await import(`/static/js/${module}.js`))[name](...given)"
            return page.tab.evaluate(script, [module, name, list(arguments)])

        call.tab = page.tab
        yield call


def thing(polygon=SQUARE, holes=()):
    return {"id": 7, "polygon": polygon, "holes": list(holes)}


def areas(ask, thing_, start, end):
    return [round(ask("geometry", "objectArea", part), 6) for part in ask("slice", "slice", thing_, start, end)]


@pytest.mark.parametrize(
    ("shape", "start", "end", "want"),
    [
        (thing(), [5, -1], [5, 11], [50, 50]),
        (thing(SQUARE[::-1]), [2, -1], [2, 11], [80, 20]),
        (thing(holes=[HOLE]), [5, -1], [5, 11], [48, 48]),
        (thing(holes=[HOLE]), [2, -1], [2, 11], [76, 20]),
        (thing(holes=[HOLE]), [5, -1], [5, 5], []),
        (thing(), [5, -1], [5, 8], []),
        (thing(), [20, -1], [20, 11], []),
        (thing(), [5, 5], [5, 5], []),
        (thing(COMB), [-1, 6], [10, 6], [45, 9, 9]),
        (thing(COMB), [-1, 6], [4, 6], [54, 9]),
    ],
    ids=["square", "other way round", "through a hole", "beside a hole", "into a hole", "not across", "beside", "point",
         "two prongs", "one prong"],
)  # fmt: skip
def test_slicing_parts_what_the_stroke_crosses(ask, shape, start, end, want):
    assert areas(ask, shape, start, end) == want


def test_a_cut_through_corners_loses_nothing(ask):
    parts = areas(ask, thing(COMB), [-1, 3], [10, 3])
    assert sum(parts) == pytest.approx(63, abs=1e-6)
    assert parts[0] == pytest.approx(27, abs=0.2)
    assert areas(ask, thing(), [-1, -1], [11, 11]) == pytest.approx([50, 50], abs=0.2)


def test_a_point_is_inside_but_not_in_a_hole(ask):
    shape = thing(holes=[HOLE])
    inside = {point: ask("geometry", "insideObject", shape, *point) for point in ((1, 1), (5, 5), (11, 5), (9.9, 9.9))}
    assert inside == {(1, 1): True, (5, 5): False, (11, 5): False, (9.9, 9.9): True}


def test_corners_are_added_where_the_side_is_and_removed_down_to_three(ask):
    edge = ask("geometry", "nearestEdge", thing(), 5, 11)
    assert (edge["ring"], edge["index"], edge["point"], edge["distance"]) == (0, 2, [5, 10], 1)
    longer = ask("geometry", "insertVertex", thing(), 0, 2, [5, 12])
    assert longer["polygon"] == [[0, 0], [10, 0], [10, 10], [5, 12], [0, 10]]
    assert ask("geometry", "nearestVertex", longer, 6, 12)["index"] == 3
    triangle = thing(SQUARE[:3], [HOLE[:3]])
    assert ask("geometry", "removeVertex", triangle, 0, 1) is None
    assert ask("geometry", "removeVertex", triangle, 1, 0)["holes"] == []


@pytest.mark.parametrize(
    ("ring", "bad"),
    [(SQUARE, False), (COMB, False), ([[0, 0], [10, 10], [10, 0], [0, 10]], True), (SQUARE[:2], True),
     ([[0, 0], [5, 0], [10, 0]], True), ([[0, 0], [4, 0], [4, 4], [8, 4], [8, 8], [4, 8], [4, 4], [0, 4]], False)],
    ids=["square", "comb", "bow tie", "two corners", "flat", "meets itself in a corner"],
)  # fmt: skip
def test_outlines_that_are_none_are_known(ask, ring, bad):
    assert ask("geometry", "ringIsBad", ring) is bad


def test_a_hole_lies_inside_and_apart_from_others(ask):
    fits = {
        "inside": ask("geometry", "fitsAsHole", thing(), HOLE),
        "across the outline": ask("geometry", "fitsAsHole", thing(), [[8, 8], [12, 8], [8, 9]]),
        "around a hole": ask("geometry", "fitsAsHole", thing(holes=[HOLE]), [[3, 3], [7, 3], [7, 7], [3, 7]]),
        "beside a hole": ask("geometry", "fitsAsHole", thing(holes=[HOLE]), [[1, 1], [3, 1], [1, 3]]),
        "around a notch": ask("geometry", "fitsAsHole", thing(COMB), [[1, 1], [8, 1], [8, 8], [7, 8], [4, 2], [1, 8]]),
    }
    assert fits == {"inside": True, "across the outline": False, "around a hole": False, "beside a hole": True,
                    "around a notch": False}  # fmt: skip


def test_an_object_cannot_be_pushed_off_the_picture(ask):
    assert ask("geometry", "heldInside", thing(), -5, 200, 100, 50) == [0, 40]


def test_two_lists_of_objects_agree_where_they_overlap_by_more_than_half(ask):
    other = thing([[1, 0], [11, 0], [11, 10], [1, 10]])
    far = thing([[50, 50], [60, 50], [60, 60], [50, 60]])
    said = ask("agreement", "agreement", [thing(), far], [other], 100, 100)
    assert (said["same"], said["onlyFirst"], said["onlySecond"]) == (1, 1, 0)
    assert said["meanIou"] == pytest.approx(90 / 110)
    assert ask("agreement", "agreement", [], [], 100, 100)["meanIou"] is None


PAINT = """async ([corners, seen]) => {
  const { paintObjects } = await import("/static/js/paint.js");
  const context = new OffscreenCanvas(100, 100).getContext("2d");
  const turns = Array.from({ length: corners }, (_, n) => (2 * Math.PI * n) / corners);
  const middles = Array.from({ length: 25 }, (_, i) => [10 + 20 * (i % 5), 10 + 20 * Math.floor(i / 5)]);
  const objects = middles.map(([x, y], id) => ({
    id, holes: [], polygon: turns.map((turn) => [x + 8 * Math.cos(turn), y + 8 * Math.sin(turn)]),
  }));
  paintObjects(context, objects, null, 1, seen);
  return middles.map(([x, y]) => context.getImageData(x, y, 1, 1).data[3] > 0);
}"""


@pytest.mark.parametrize("corners", [60, 4000], ids=["few corners", "many corners"])
def test_objects_are_painted_wherever_the_view_touches_them(ask, corners):
    """Many corners are painted object by object, and those out of view are left out; none in view may be."""
    assert all(ask.tab.evaluate(PAINT, [corners, [0, 0, 100, 100]]))
    painted = ask.tab.evaluate(PAINT, [corners, [17, 17, 63, 63]])
    assert all(painted[column + 5 * row] for column in range(4) for row in range(4))


@pytest.mark.parametrize(
    ("mode", "how", "sixteen"),
    [("RGB", None, False), ("L", "tiff_lzw", False), ("RGB", "tiff_adobe_deflate", False), ("L", "packbits", False),
     ("I;16", "tiff_lzw", True)],
)  # fmt: skip
def test_tiffs_are_shown_though_browsers_cannot(ask, mode, how, sixteen):
    from PIL import Image

    image = Image.new(mode, (70, 40))
    for x in range(70):
        for y in range(40):
            value = (x * 3 + y) % 250
            image.putpixel((x, y), (value, 255 - value, 7) if mode == "RGB" else value * 200 if sixteen else value)
    out = io.BytesIO()
    image.save(out, "TIFF", compression=how)
    script = """async (bytes) => {
      const { decodeTiff } = await import("/static/js/tiff.js");
      const image = await decodeTiff(new Uint8Array(bytes).buffer);
      return [image.width, image.height, [...image.data.slice(0, 4 * 70)]];
    }"""
    width, height, row = ask.tab.evaluate(script, list(out.getvalue()))
    assert (width, height) == (70, 40)
    reds = row[::4]
    if sixteen:
        assert reds == sorted(reds), "stretched, in order"
        assert reds[0] < 10 and reds[-1] > 200
    else:
        assert reds == [image.getpixel((x, 0))[0] if mode == "RGB" else image.getpixel((x, 0)) for x in range(70)]
