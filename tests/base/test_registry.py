"""Names to things: built-in ones, plug-ins, and plug-ins that are broken."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hotlap.base import registry
from hotlap.base.errors import TargetError, UnknownName
from hotlap.base.registry import Registry


def point(name, value, dist="acme-models"):
    return SimpleNamespace(name=name, value=value, dist=SimpleNamespace(name=dist) if dist else None)


@pytest.fixture
def plugged(monkeypatch):
    """A registry with a built-in name and whatever entry points the test declares."""

    def make(*points):
        monkeypatch.setattr(registry, "entry_points", lambda group: points if group == "hotlap.test" else ())
        return Registry("target", "hotlap.test", {"ordered": ("collections:OrderedDict", "a built-in")})

    return make


def test_builtin_and_plugin_are_found_by_name(plugged):
    known = plugged(point("fraction", "fractions:Fraction"))
    assert known.names() == ["fraction", "ordered"]
    assert known.get("fraction")(1, 2) == 0.5
    assert {entry.name: entry.source for entry in known} == {"ordered": "hotlap", "fraction": "acme-models"}


def test_an_unknown_name_is_told_with_the_nearest(plugged):
    with pytest.raises(UnknownName, match=r"unknown target 'orderd'\. Did you mean 'ordered'\?"):
        plugged().get("orderd")


def test_a_broken_plugin_is_named_and_the_others_work(plugged):
    known = plugged(
        point("gone", "no_such_package_at_all:make"),
        point("typo", "fractions:Fractoin", "typo-dist"),
        point("fine", "fractions:Fraction"),
    )
    broken = known.check_plugins()
    assert set(broken) == {"gone", "typo"}
    assert "acme-models" in broken["gone"] and "no_such_package_at_all" in broken["gone"]
    assert "typo-dist" in broken["typo"] and "AttributeError" in broken["typo"]
    assert known.get("fine")(3) == 3
    assert known.get("ordered")() == {}


def test_a_plugin_is_listed_with_what_it_says_of_itself(plugged, tmp_path, monkeypatch):
    (tmp_path / "spoken.py").write_text(
        'class Says:\n    """Not this."""\n    summary = "a net of mine"\n\n'
        'def documented():\n    """The first line.\n\n    Another.\n    """\n\nclass Heir(Exception):\n    pass\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    known = plugged(*(point(name, f"spoken:{name}") for name in ("Says", "documented", "Heir")))
    assert known.check_plugins() == {}
    said = {entry.name: entry.summary for entry in known if entry.source == "acme-models"}
    assert said == {"Says": "a net of mine", "documented": "The first line.", "Heir": "plug-in from acme-models"}


def test_asking_for_a_broken_plugin_says_who_brought_it(plugged):
    known = plugged(point("gone", "no_such_package_at_all:make"))
    with pytest.raises(TargetError) as caught:
        known.get("gone")
    assert "'gone' (no_such_package_at_all:make, from acme-models)" in str(caught.value)
    assert "Reinstall or remove acme-models" in str(caught.value)


def test_a_plugin_cannot_take_a_builtin_name_nor_hide_it(plugged):
    known = plugged(point("ordered", "fractions:Fraction"))
    assert known.get("ordered")() == {}
    broken = known.check_plugins()
    assert "ordered" not in broken, "the built-in is fine; only the plug-in is not"
    assert any("acme-models" in why and "'ordered'" in why and "taken" in why for why in broken.values())


def test_a_plugin_without_a_distribution_still_has_a_source(plugged):
    assert [e.source for e in plugged(point("fine", "fractions:Fraction", dist=None))] == [
        "unknown distribution",
        "hotlap",
    ]
