"""The container files agree with each other and with the service; nothing is built here."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from hotlap.tools.serve import ServeConfig

ROOT = Path(__file__).parents[1]
HOME = PurePosixPath("/home/hotlap")


@pytest.fixture(scope="module")
def composed():
    yaml = pytest.importorskip("yaml", reason="no reader of YAML is installed")
    return yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))


def test_what_must_survive_lies_in_volumes_that_the_user_may_write(composed):
    service = composed["services"]["hotlap"]
    mounts = dict(volume.split(":")[:2] for volume in service["volumes"] if not volume.startswith("."))
    assert set(mounts) == set(composed["volumes"])
    recipe = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    made = recipe.partition("install --directory --owner=hotlap")[2].partition("WORKDIR")[0].split()
    assert set(mounts.values()) <= set(made), "else a new volume belongs to root"
    assert any((HOME / ServeConfig().jobs.as_posix()).is_relative_to(folder) for folder in mounts.values())


def test_the_service_has_time_to_drain_before_it_is_killed(composed):
    grace = composed["services"]["hotlap"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > 2 * ServeConfig().drain_s


def test_what_the_recipe_copies_is_sent_to_the_builder():
    recipe = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in recipe.splitlines() if line.startswith("COPY") for word in line.split()[1:-1]]
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied and set(copied) == sent
    assert all((ROOT / name).exists() for name in copied)
