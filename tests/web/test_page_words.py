"""The page's words: every language has every word, and no word stands outside the tables."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import hotlap

STATIC = Path(hotlap.__file__).parent / "web" / "static"
LANGUAGES = ("en", "cs", "es", "de", "fr", "zh")
SAME_EVERYWHERE = {"Hotlap", "Hotlap: JavaScript"}
MARKS = ("data-word", "data-label", "data-tip", "data-hint")
SHOWN = ("aria-label", "title", "placeholder", "alt")


def table(language):
    return json.loads((STATIC / "lang" / f"{language}.json").read_text(encoding="utf-8"))


def forms(value):
    return list(value.values()) if isinstance(value, dict) else [value]


def blanks(value):
    return {name for form in forms(value) for name in re.findall(r"\{(\w+)\}", form)}


class Reader(HTMLParser):
    """Texts, attributes that are shown, and keys of a page."""

    def __init__(self):
        super().__init__()
        self.texts, self.shown, self.keys, self.tags = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.shown += [value for name, value in attrs if name in SHOWN and value]
        self.keys |= {value for name, value in attrs if name in MARKS}

    def handle_data(self, data):
        self.texts += [data.strip()] if data.strip() else []


@pytest.fixture(scope="module")
def page():
    reader = Reader()
    reader.feed((STATIC / "index.html").read_text(encoding="utf-8"))
    return reader


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_every_language_says_everything_with_the_same_blanks(language):
    english, other = table("en"), table(language)
    assert other.keys() == english.keys()
    for key, value in english.items():
        assert all(forms(other[key])), key
        assert blanks(other[key]) == blanks(value), key
        assert isinstance(other[key], dict) == isinstance(value, dict), key


def test_every_language_has_the_plural_forms_that_it_needs():
    needed = {"en": "one", "cs": "few", "es": "one", "de": "one", "fr": "one", "zh": "other"}
    for language, form in needed.items():
        plurals = [value for value in table(language).values() if isinstance(value, dict)]
        assert plurals
        assert all({form, "other"} <= value.keys() for value in plurals), language


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_languages_are_translated(language):
    """Names of formats and the like are the same anywhere; most words are not."""
    english, other = table("en"), table(language)
    same = [key for key in english if english[key] == other[key]]
    assert len(same) < len(english) / 15, same


def test_the_page_itself_holds_no_words(page):
    assert {text for text in page.texts if re.search(r"\w", text)} <= SAME_EVERYWHERE
    assert page.shown == []


def test_every_key_that_the_page_or_a_script_names_is_in_the_tables(page):
    known = set(table("en"))
    assert page.keys <= known
    families = {key.split(".")[0] for key in known}
    named = set()
    for script in (STATIC / "js").glob("*.js"):
        named |= set(re.findall(rf'"((?:{"|".join(families)})\.[a-zA-Z]\w*)"', script.read_text(encoding="utf-8")))
    assert len(named) > 60
    assert named <= known


def test_no_key_is_left_over(page):
    scripts = "\n".join(script.read_text(encoding="utf-8") for script in (STATIC / "js").glob("*.js"))
    made = set(re.findall(r"`(\w+)\.\$\{", scripts))
    left = {
        key
        for key in table("en")
        if key not in page.keys and f'"{key}"' not in scripts and key.split(".")[0] not in made
    }
    assert left == set()


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(page):
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts and all(attrs["src"].startswith("static/") for attrs in scripts)
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on") or name == "style"]
    for file in STATIC.rglob("*"):
        if file.suffix in (".js", ".css", ".html", ".json"):
            outside = set(re.findall(r"https?://[^\s\"']+", file.read_text(encoding="utf-8")))
            assert outside <= {"http://www.w3.org/2000/svg"}, file.name


def test_every_control_has_a_name(page):
    """A button without words of its own needs a label; so does a select or an input without one around it."""
    for tag, attrs in page.tags:
        if tag in ("canvas", "select") and attrs.get("id") not in ("model", "otherModel", "depths"):
            assert "data-label" in attrs, attrs


def test_files_of_the_page_stay_short():
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in STATIC.rglob("*.[jhc]s*")}
    assert len(lengths) > 20
    assert {name: length for name, length in lengths.items() if length > 400} == {}
