"""The package from outside: light to import, quick to answer, honest about its names."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

import hotlap
from hotlap.api import target_name
from hotlap.base.errors import TargetError


def test_importing_it_imports_nothing_heavy():
    code = "import sys, hotlap; print([m for m in ('torch', 'numpy', 'scipy', 'rich', 'yaml') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_answers_within_four_tenths_of_a_second(arguments):
    times = []
    for _ in range(5):  # the best of several, in processor time: what a busy machine makes it wait does not count
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-m", "hotlap", *arguments], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert b"hotlap" in done.stdout
    assert min(times) < 0.4


@pytest.mark.parametrize("verb", ["bench", "compare", "list", "loader", "quicktest", "show", "train"])
def test_the_help_of_a_verb_does_not_import_torch(verb):
    code = f"import sys; from hotlap.cli.main import run; run([{verb!r}, '--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", ["HotlapError", "RunRecord", "Workload", "Agreement", "load_record", "load_target",
                                  "device_summary", "get_device", "bench", "compare", "doctor", "loader", "train",
                                  "loader_settings", "report", "quicktest", "estimate_memory", "suggest", "ExactStep",
                                  "sum_of_mean"])  # fmt: skip
def test_every_public_name_is_there(name):
    assert callable(getattr(hotlap, name))
    assert name in dir(hotlap)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'hotlap' has no attribute 'benhc'"):
        hotlap.benhc  # noqa: B018


def test_a_factory_is_found_again_by_its_name():
    assert target_name("unet") == "unet"
    assert target_name(subprocess.run) == "subprocess:run"


@pytest.mark.parametrize("thing", [lambda: None, type("Local", (), {"__qualname__": "f.<locals>.Local"})])
def test_what_a_fresh_process_cannot_import_is_refused(thing):
    with pytest.raises(TargetError, match=r"cannot be imported by a fresh process\. Expected a function or class"):
        target_name(thing)


def test_an_object_is_refused_by_its_type_and_not_by_all_that_it_holds():
    with pytest.raises(TargetError, match=r"^an object of type list cannot be imported"):
        target_name([1, 2, 3])


@pytest.mark.parametrize("way", ["-c", "-"])
def test_what_was_typed_at_a_prompt_is_refused(way):
    code = "import hotlap.api\ndef f(): pass\nhotlap.api.target_name(f)"
    arguments = [sys.executable, way, *([code] if way == "-c" else [])]
    done = subprocess.run(arguments, input=code, capture_output=True, text=True, check=False)
    assert "'f' was typed at a prompt" in done.stderr and "Save it to a file" in done.stderr
