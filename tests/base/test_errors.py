"""The error tree: a paragraph, an exit code, and the nearest known name."""

from __future__ import annotations

import pytest

from hotlap.base import errors
from hotlap.base.errors import HotlapError, did_you_mean


def test_a_paragraph_says_what_is_wrong_what_was_expected_and_what_to_do():
    error = HotlapError("batch = 0 is too small", expected="at least 1", remedy="Raise it.")
    assert str(error) == "batch = 0 is too small. Expected at least 1. Raise it."
    assert str(HotlapError("gone.")) == "gone."


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.HotlapError, 1),
        (errors.UsageError, 2),
        (errors.ConfigError, 2),
        (errors.UnknownName, 2),
        (errors.TargetError, 2),
        (errors.ShapeError, 2),
        (errors.RecordError, 2),
        (errors.DataError, 2),
        (errors.TooLarge, 2),
        (errors.EnvironmentUnusable, 4),
        (errors.DeviceUnavailable, 4),
        (errors.KernelUnavailable, 4),
        (errors.WorkerDied, 4),
        (errors.LoaderDied, 4),
        (errors.StorageError, 4),
        (errors.OutOfMemory, 5),
    ],
)
def test_exit_codes_are_a_promise(kind, code):
    assert kind("x").exit_code == code


def test_every_error_of_the_tree_has_its_exit_code_tested():
    tree = {t for t in vars(errors).values() if isinstance(t, type) and issubclass(t, HotlapError)}
    marks = test_exit_codes_are_a_promise.pytestmark[0].args[1]
    assert {kind for kind, _ in marks} == tree


def test_did_you_mean_offers_the_nearest_or_all():
    assert did_you_mean("unett", ["unet", "bilstm"]) == "Did you mean 'unet'?"
    assert did_you_mean("zzz", ["unet", "bilstm"]) == "Known: bilstm, unet"
    assert did_you_mean("zzz", []) == "None are known here"


def test_a_question_keeps_its_mark_in_the_paragraph():
    assert str(HotlapError("unknown x", remedy=did_you_mean("unett", ["unet"]))) == "unknown x. Did you mean 'unet'?"


def test_a_list_that_goes_on_keeps_its_dots_in_the_paragraph():
    assert str(HotlapError("missing: 'a', ...", remedy="Put them there.")) == "missing: 'a', ... Put them there."
