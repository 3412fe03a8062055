"""A page's drawing as a file of its own: the page's style worked into its marks, the legend drawn above it.

Other programs know neither our style sheet nor its variables, so each mark gets the colours that the sheet's light
setting gives it. The sheet stays the one place where colours are chosen.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from functools import cache

from hotlap.tools.report.figures import Figure
from hotlap.tools.report.page import read_template
from hotlap.tools.report.svg import NAME_PX, n

RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
VARIABLE = re.compile(r"var\((--[\w-]+)(?:,[^()]*(?:\([^()]*\))?)?\)")
DRAWN = ("fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity",
         "font-size", "font-weight", "font-family", "paint-order")  # fmt: skip
PAPER = "#ffffff"
LEGEND_PX = 20.0
TALLEST = 1.2
"""Height over width of the tallest figure that a page holds with its title and caption."""
SANS = "Libertinus Sans, Helvetica Neue, Helvetica, Arial, Liberation Sans, DejaVu Sans, sans-serif"
MONO = "DejaVu Sans Mono, Menlo, Consolas, monospace"


@dataclass(frozen=True)
class Rule:
    """One selector of the style sheet, taken apart."""

    tag: str
    classes: frozenset[str]
    after: frozenset[str]
    """Classes that the mark before must have."""
    values: tuple[tuple[str, str], ...]

    @property
    def weight(self) -> tuple[int, int]:
        return len(self.classes) + len(self.after), bool(self.tag)


def paint(figure: Figure) -> str:
    """``figure`` as an SVG file on white paper, with its legend."""
    drawing = ET.fromstring(str(figure.desk))
    width, height = (float(drawing.attrib[name]) for name in ("width", "height"))
    head, top = _legend(figure, width)
    whole = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "width": n(width), "height": n(height + top),
                               "viewBox": f"0 0 {n(width)} {n(height + top)}", "font-family": SANS})  # fmt: skip
    label = ET.SubElement(whole, "title")
    label.text = drawing.attrib.get("aria-label", figure.title)
    ET.SubElement(whole, "rect", {"width": n(width), "height": n(height + top), "fill": PAPER})
    whole.extend(head)
    body = ET.SubElement(whole, "g", {"transform": f"translate(0 {n(top)})"})
    body.extend(_styled(list(drawing)))
    return ET.tostring(whole, encoding="unicode")


def _legend(figure: Figure, width: float) -> tuple[list[ET.Element], float]:
    """Swatches with their names, in as many rows as they need, and the height these take."""
    marks, x, y = [], 0.0, 0.0
    for css, name in figure.legend:
        room = 18 + NAME_PX * len(name) + 20
        if x and x + room > width:
            x, y = 0.0, y + LEGEND_PX
        shade = css if " " in css else f"{css} solid"
        marks.append(ET.Element("rect", {"x": n(x), "y": n(y + 1), "width": "11", "height": "11", "rx": "3",
                                         "class": shade}))  # fmt: skip
        words = ET.Element("text", {"x": n(x + 18), "y": n(y + 11), "class": "name"})
        words.text = name
        marks.append(words)
        x += room
    return _styled(marks), y + LEGEND_PX + 8 if marks else 0.0


def _styled(marks: list[ET.Element]) -> list[ET.Element]:
    """The marks with attributes in place of classes, without tips and areas to point at."""
    found, before = [], frozenset[str]()
    for mark in marks:
        classes = frozenset(mark.attrib.pop("class", "").split())
        if "hit" in classes:
            continue
        for name, value in _look(mark.tag, classes, before).items():
            mark.attrib.setdefault(name, value)
        for inner in [e for e in mark if e.tag in ("title", "desc")]:
            mark.remove(inner)
        before = classes
        found.append(mark)
    return found


@cache
def _look(tag: str, classes: frozenset[str], before: frozenset[str]) -> dict[str, str]:
    """The attributes that the style sheet gives a mark."""
    rules = [r for r in _rules() if r.tag in ("", tag) and r.classes <= classes and r.after <= before]
    values = dict(_variables())
    for rule in sorted(rules, key=lambda rule: rule.weight):
        values.update(rule.values)
    return {name: _resolve(values[name], values).replace("px", "") for name in DRAWN if name in values}


def _resolve(value: str, known: dict[str, str]) -> str:
    while found := VARIABLE.search(value):
        value = value.replace(found[0], known.get(found[1], known["--quiet"]))
    return value


@cache
def _variables() -> dict[str, str]:
    """The light palette; paper is white, and names are set in a font that other programs have."""
    root = re.search(r":root\s*\{([^}]*)\}", read_template("style.css"))
    assert root is not None
    return {**dict(_declarations(root[1])), "--paper": PAPER, "--mono": MONO}


@cache
def _rules() -> tuple[Rule, ...]:
    """Every rule outside of ``@media`` that can match a mark of a drawing."""
    sheet = read_template("style.css").partition("@media (max-width")[0]
    found = []
    for selectors, body in RULE.findall(sheet):
        for selector in selectors.split(","):
            first, plus, last = re.sub(r"^svg\s+", "", selector.strip()).rpartition(" + ")
            if re.fullmatch(r"(?:text)?(?:\.[\w-]+)*", last) and last and re.fullmatch(r"(?:\.[\w-]+)*", first):
                tag, _, names = last.partition(".")
                classes, after = (frozenset(c for c in part.split(".") if c) for part in (names, first))
                found.append(Rule(tag, classes, after if plus else frozenset(), tuple(_declarations(body))))
    return tuple(found)


def _declarations(body: str) -> list[tuple[str, str]]:
    pairs = (part.partition(":") for part in body.split(";"))
    return [(name.strip(), value.strip()) for name, colon, value in pairs if colon]


def colour_of(css: str) -> str:
    """The colour of a class of arms or shares on white paper, its shade mixed in."""
    look = _look("rect", frozenset({*css.split(), "solid"} if " " not in css else css.split()), frozenset())
    share = float(look.get("opacity", 1))
    channels = [int(look["fill"][place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - share * (255 - channel)):02x}" for channel in channels)


def print_share(figure: Figure) -> float:
    """The share of a page's text width at which ``figure`` is still no higher than a page."""
    width, height = (float(v) for v in re.findall(r'<svg[^>]*? width="([\d.]+)" height="([\d.]+)"', figure.desk)[0])
    return min(1.0, TALLEST * width / height)
