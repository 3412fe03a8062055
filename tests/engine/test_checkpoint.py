"""Checkpoints on disk: kept, pruned, verified; damaged ones, full disks and other writers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotlap.base.errors import ConfigError, RecordError, StorageError
from hotlap.device.seed import rng_state, set_rng_state
from hotlap.engine.checkpoint import BEST, HEADER, CheckpointStore
from hotlap.engine.plain_state import UnstorableState


def state(step, size=100):
    return {"model": {"w": torch.full((size,), float(step))}, "step": step}


class Listener(list):
    def __call__(self, message):
        self.append(message)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "run", warn=Listener())


def filled(store, *steps, **scores):
    return [store.save(state(step), step=step, score=scores.get(f"s{step}")) for step in steps]


def names(store):
    return sorted(path.name for path in store.folder.iterdir() if path.name != ".lock")


def flip(path, offset=-100):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def test_a_state_comes_back_as_it_was(store, device):
    want = {
        "model": {"w": torch.randn(3, 4, device=device), "n": torch.tensor(7, device=device)},
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
        "scaler": None, "split": 4, "name": "é", "done": False, "loss": float("inf"),
    }  # fmt: skip
    path = store.save(want, step=120)
    found = store.load()
    assert (found.step, found.path) == (120, path)
    assert path.name.startswith("step-00000120-")
    weights = found.state["model"].pop("w")
    assert weights.device.type == "cpu"
    assert torch.equal(weights, want["model"].pop("w").cpu())
    assert found.state["model"].pop("n") == 7
    assert found.state == {**want, "model": {}}
    assert store.load(map_location=device).state["model"]["n"].device.type == device.type


def test_a_user_can_load_the_file_with_torch_alone(store):
    path = store.save(state(3), step=3, score=0.5)
    data = torch.load(path, weights_only=True)
    assert data.pop(HEADER) == {"format": 1, "step": 3, "score": 0.5, "higher_is_better": False}
    assert torch.equal(data["model"]["w"], state(3)["model"]["w"])


def test_the_random_state_survives_a_checkpoint(store, device):
    torch.rand(1, device=device)
    store.save({"rng": rng_state()}, step=1)
    want = torch.rand(5), torch.rand(5, device=device).cpu()
    set_rng_state(store.load(map_location=device).state["rng"])
    assert torch.equal(torch.rand(5), want[0])
    assert torch.equal(torch.rand(5, device=device).cpu(), want[1])


def test_an_empty_or_missing_folder_has_nothing_and_stays_as_it_is(store):
    assert [store.load(), store.load("best"), store.steps(), store.rewind(0)] == [None, None, [], []]
    assert not store.folder.exists()


def test_the_last_few_and_the_best_are_kept(store):
    filled(store, *range(1, 9), s2=0.1, s3=0.4, s5=0.1, s6=float("nan"), s7=0.3)
    assert store.steps() == [2, 6, 7, 8], "of two equal scores the earlier stays"
    assert store.load("best").step == 2
    assert json.loads((store.folder / BEST).read_text())["score"] == 0.1
    store.save(state(9), step=9, score=0.05)
    assert store.steps() == [7, 8, 9]


def test_higher_can_be_better(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    for step, score in enumerate([0.5, 0.9, 0.7]):
        store.save(state(step), step=step, score=score, higher_is_better=True)
    assert store.steps() == [1, 2]
    assert store.load("best").step == 1


def test_a_changed_meaning_of_better_starts_the_ranking_anew(store):
    store.save(state(1), step=1, score=0.9, higher_is_better=True)
    store.save(state(2), step=2, score=3.0)
    assert store.load("best").step == 2
    assert "higher_is_better = False now; the best score so far, 0.9, is dropped" in store.warn[0]


def test_a_step_saved_again_wins(store):
    filled(store, 1, 2)
    again = store.save({**state(2), "note": "again"}, step=2)
    assert store.steps() == [1, 2]
    assert store.load().path == again
    assert len(names(store)) == 2
    assert store.save({**state(2), "note": "again"}, step=2) == again, "the same bytes have the same name"


def test_a_step_before_those_on_disk_is_not_pruned_by_its_own_save(store):
    filled(store, 10, 20, 30)
    path = store.save(state(5), step=5)
    assert store.load(path).step == 5


def test_a_run_that_goes_back_sets_the_later_ones_aside(store):
    filled(store, 10, 20, 30, s10=0.3, s20=0.2, s30=0.1)
    moved = store.rewind(20)
    assert [path.name[:13] for path in moved] == ["step-00000030"]
    assert all(path.suffix == ".superseded" and path.is_file() for path in moved)
    assert [store.load().step, store.load("best").step] == [20, 20]
    store.rewind(5)
    assert store.load() is None
    assert not (store.folder / BEST).exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip, "has the digest"),
        (lambda path: cut(path, 700), "cut short or overwritten: 700 bytes"),
        (lambda path: cut(path, 0), "0 bytes"),
    ],
)
def test_a_damaged_newest_falls_back_to_the_one_before_loudly(store, damage, words):
    _, before, newest = filled(store, 1, 2, 3)
    damage(newest)
    found = store.load()
    assert (found.step, found.path) == (2, before)
    assert len(store.warn) == 1
    assert newest.name in store.warn[0]
    assert words in store.warn[0]
    assert newest.with_name(newest.name + ".corrupt").is_file()
    assert store.load().step == 2
    assert len(store.warn) == 1, "what was set aside is not tried again"


def test_a_file_that_torch_refuses_is_set_aside(store):
    filled(store, 1)
    torch.save({"model": os.getcwd}, store.folder / "evil")
    digest = hashlib.sha256((store.folder / "evil").read_bytes()).hexdigest()[:16]
    (store.folder / "evil").rename(store.folder / f"step-00000009-{digest}.pt")
    assert store.load().step == 1
    assert f"step-00000009-{digest}.pt' is damaged: it holds what torch refuses" in store.warn[0]


def test_a_checkpoint_under_another_step_s_name_is_not_believed(store):
    before, path = filled(store, 1, 2)
    path.rename(path.with_name(path.name.replace("00000002", "00000005")))
    assert store.load().path == before
    assert "holds step 2, not that of its name" in store.warn[0]


def test_nothing_readable_is_an_error_then_and_later(store):
    paths = filled(store, 1, 2)
    for path in paths:
        flip(path)
    with pytest.raises(RecordError, match=r"can be read: step-00000002.* has the digest .*; step-00000001.* has the"):
        store.load()
    with pytest.raises(RecordError, match=r"step-00000001-\w+\.pt\.corrupt was set aside earlier.*start anew"):
        CheckpointStore(store.folder).load()
    with pytest.raises(RecordError, match=r"step-00000002"):
        CheckpointStore(store.folder).load("best")


def test_a_file_that_cannot_be_opened_is_left_where_it_is(store, monkeypatch):
    filled(store, 1, 2)
    before = names(store)
    monkeypatch.setattr("hotlap.engine.checkpoint._read", raise_os_error(errno.EIO))
    with pytest.raises(RecordError, match=r"step-00000002.* cannot be read: Input/output error"):
        store.load()
    assert names(store) == before


def test_too_little_memory_is_no_damage(store, monkeypatch):
    def exhausted(*_, **__):
        raise RuntimeError("CUDA out of memory")

    filled(store, 1, 2)
    before = names(store)
    monkeypatch.setattr(torch, "load", exhausted)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        store.load()
    assert names(store) == before
    assert not store.warn


def test_a_damaged_best_gives_way_to_the_best_that_is_left(store):
    paths = filled(store, 1, 2, 3, s1=0.1, s2=0.3, s3=0.2)
    flip(paths[0])
    assert store.load("best").step == 3
    assert paths[0].name in store.warn[0]
    assert f"the best checkpoint that is left in {str(store.folder)!r} is {paths[2].name}" in store.warn[1]
    filled(store, 4, 5, 6, 7)
    assert store.steps() == [3, 5, 6, 7], "and is kept from then on"


@pytest.mark.parametrize("text", ["", "{", '{"name": 3}', "[]", "\x00\x00"])
def test_a_damaged_note_of_the_best_is_worked_out_again(store, text):
    filled(store, 1, 2, 3, s1=0.3, s2=0.1, s3=0.2)
    (store.folder / BEST).write_text(text)
    assert store.load("best").step == 2
    assert "best.json' is damaged" in store.warn[0]
    filled(store, 4, 5, 6)
    assert store.steps() == [2, 4, 5, 6]


def test_no_score_is_no_best(store):
    filled(store, 1)
    with pytest.raises(RecordError, match=r"no checkpoint in .*run' has a score"):
        store.load("best")


def test_a_path_is_read_or_refused(store, tmp_path):
    first, second = filled(store, 1, 2)
    assert store.load(first).step == 1
    assert store.load(str(first)).step == 1
    assert store.load(first.name).step == 1
    flip(second)
    with pytest.raises(RecordError, match=rf"{second.name}' has the digest .*not that of its name"):
        store.load(second)
    assert second.is_file()
    with pytest.raises(RecordError, match=r"no checkpoint at '.*gone\.pt': No such file.*'latest', 'best'"):
        store.load("gone.pt")


def test_a_renamed_copy_is_read_with_a_warning(store, tmp_path):
    copy = filled(store, 4)[0].rename(tmp_path / "mine.pt")
    assert store.load(copy).step == 4
    assert "mine.pt' has no digest in its name" in store.warn[0]
    torch.save({"model": 1}, tmp_path / "other.pt")
    with pytest.raises(RecordError, match=r"other\.pt' has no 'hotlap_checkpoint' entry"):
        store.load(tmp_path / "other.pt")
    torch.save({HEADER: {"format": 2, "step": 1}}, tmp_path / "newer.pt")
    with pytest.raises(RecordError, match=r"newer\.pt' has format = 2\. Expected format = 1"):
        store.load(tmp_path / "newer.pt")


def test_any_flipped_bit_in_the_end_of_the_archive_is_found(store):
    """Where zipfile raises errors of its own."""
    filled(store, 1)
    newest = filled(store, 2)[-1]
    content = newest.read_bytes()
    for place in range(8 * (len(content) - 98), 8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        newest.write_bytes(flipped)
        assert store.load().step == 1


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_bit_and_any_lost_tail_is_found(tmp_path, data):
    store = CheckpointStore(tmp_path / "flips", warn=Listener())
    whole = store.save(state(1, size=20), step=1).read_bytes()
    newest = store.save(state(2, size=20), step=2)
    content = bytearray(newest.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        content = content[: data.draw(st.integers(0, len(content) - 1), label="length")]
    else:
        content[data.draw(st.integers(0, len(content) - 1), label="offset")] ^= 1 << data.draw(st.integers(0, 7))
    newest.write_bytes(content)
    found = store.load()
    assert found.step == 1
    assert found.path.read_bytes() == whole
    assert newest.name in store.warn[0]


def raise_os_error(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    return fail


def test_a_disk_that_fills_up_leaves_the_old_checkpoints_and_nothing_else(store):
    filled(store, 1, 2)
    before = names(store)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"checkpoint of step 3 in '.*run': File too large.*untouched") as caught:
            store.save(state(3, size=1_000_000), step=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.exit_code == 4
    assert names(store) == before
    assert store.load().step == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("broken", ["os.open", "os.fsync", "pathlib.Path.replace", "os.fdopen"])
def test_a_failing_call_leaves_the_old_checkpoints_and_nothing_else(store, monkeypatch, broken, code):
    filled(store, 1, 2)
    before = names(store)
    with monkeypatch.context() as patch:
        patch.setattr(broken, raise_os_error(code))
        with pytest.raises(StorageError, match=rf"step 3 in '.*run': {os.strerror(code)}"):
            store.save(state(3), step=3)
    assert names(store) == before
    assert store.load().step == 2
    assert store.save(state(3), step=3).is_file()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"step 1 in '.*file/run': Not a directory"):
        CheckpointStore(tmp_path / "file/run").save(state(1), step=1)


def test_ctrl_c_while_writing_leaves_no_temporary(store, monkeypatch):
    class Interrupting:
        def update(self, _):
            raise KeyboardInterrupt

    filled(store, 1)
    before = names(store)
    monkeypatch.setattr("hotlap.engine.checkpoint.hashlib", SimpleNamespace(sha256=Interrupting))
    with pytest.raises(KeyboardInterrupt):
        store.save(state(2), step=2)
    assert names(store) == before


def test_a_best_that_could_not_be_noted_is_noted_at_the_next_load(store, monkeypatch):
    filled(store, 1, 2, s1=0.3)
    refuse, replace = raise_os_error(errno.ENOSPC), Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda path, to: refuse() if to.name == BEST else replace(path, to))
        with pytest.raises(StorageError, match=r"cannot write '.*best\.json': No space left on device"):
            store.save(state(3), step=3, score=0.1)
        assert store.load().step == 3
        assert "best.json cannot be brought up to date: cannot write" in store.warn[0]
    assert store.load("best").step == 1
    assert store.load().step == 3
    assert store.load("best").step == 3


def test_an_old_checkpoint_that_cannot_be_removed_does_not_stop_the_run(tmp_path, monkeypatch):
    store, unlink = CheckpointStore(tmp_path, keep=1, warn=Listener()), Path.unlink
    (old,) = filled(store, 1)
    refuse = raise_os_error(errno.EPERM)
    monkeypatch.setattr(Path, "unlink", lambda path, **k: refuse() if path.suffix == ".pt" else unlink(path, **k))
    filled(store, 2)
    assert store.load().step == 2
    assert store.warn == [f"the old checkpoint {str(old)!r} cannot be removed: Operation not permitted"]


@pytest.mark.parametrize(
    ("bad", "error", "words"),
    [
        ({"step": -1}, ConfigError, "step = -1 is negative"),
        ({"state": {"w": {"v": [1, torch.nn.ReLU()]}}}, UnstorableState, r"state\['w'\]\['v'\]\[1\] is a .*ReLU"),
        ({"state": {HEADER: 1}}, UnstorableState, r"state\['hotlap_checkpoint'\] is taken"),
    ],
)
def test_a_wrong_request_writes_nothing(store, bad, error, words):
    with pytest.raises(error, match=words):
        store.save(**{"state": state(1), "step": 1, **bad})
    assert not store.folder.exists()


def test_keep_must_keep_something(tmp_path):
    with pytest.raises(ConfigError, match=r"keep = 0 is too small\. Expected at least 1"):
        CheckpointStore(tmp_path, keep=0)


def test_a_store_without_a_listener_warns_as_python_does(tmp_path):
    store = CheckpointStore(tmp_path)
    path = filled(store, 1, 2)[1]
    flip(path)
    with pytest.warns(RuntimeWarning, match=path.name):
        store.load()
