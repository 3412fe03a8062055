"""Pictures read and finished in processes: the same as in threads, whatever dies, and nothing is left running."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from bright import as_picture, bright_predictor, discs
from PIL import Image

from hotlap.base.errors import EnvironmentUnusable, StorageError
from hotlap.data import micrograph
from hotlap.data.object_table import read_csv
from hotlap.device.host import read_host
from hotlap.measure.nursery import can_fork
from hotlap.segment import picture_processes
from hotlap.segment import predict_folder as module
from hotlap.segment.done import Done, content_digest, prepare
from hotlap.segment.finishing import Facts, Finishing
from hotlap.segment.normalise import normalise
from hotlap.segment.picture_processes import PictureProcesses
from hotlap.segment.predict import ManyConfig
from hotlap.segment.predict_config import FORMATS, SegmentPredictConfig
from hotlap.segment.predict_folder import predict_folder
from hotlap.segment.reading import Bad, Finished, Loaded, Reading
from hotlap.segment.targets import MAPS

pytest.importorskip("numba")
pytestmark = [
    pytest.mark.skipif(not can_fork(), reason="needs a system that can fork"),
    pytest.mark.usefixtures("no_hang", "nothing_left"),
]

TRUTH = discs(64, 64, (20, 20, 8), (45, 45, 10))
NUM = 8
MARK = "WHOSE_PROCESS"


@pytest.fixture
def folder(tmp_path):
    """Pictures, and a stack of two."""
    made = tmp_path / "pictures"
    made.mkdir()
    picture = Image.fromarray(as_picture(TRUTH)[..., 0])
    for number in range(NUM - 2):
        picture.save(made / f"{number}.png")
    picture.save(made / "stack.tif", save_all=True, append_images=[picture])
    return made


@pytest.fixture
def nothing_left(monkeypatch):
    """Every process that a test starts, and those that they start, end with it or soon after."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    yield
    deadline = time.monotonic() + 20
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not marked(mark)


def marked(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.fixture
def patient(monkeypatch):
    """Nothing is done in threads because processes are not ready yet."""
    once = PictureProcesses._is_ready

    def ready(self):
        while not once(self) and not self._why_not:
            time.sleep(0.01)
        return once(self)

    monkeypatch.setattr(PictureProcesses, "_is_ready", ready)


@pytest.fixture
def not_here(monkeypatch, patient):
    """No picture is read or finished in this process."""

    def refuse(*given):
        raise AssertionError("done in a thread")

    monkeypatch.setattr(Finishing, "one", refuse)
    monkeypatch.setattr(Reading, "items", refuse)


@pytest.fixture(scope="module")
def shared():
    """Processes that are ready, for tests that need no run of their own."""
    with PictureProcesses(4) as processes:
        while not processes._is_ready():
            time.sleep(0.01)
        yield processes


@pytest.fixture
def reading(tmp_path):
    prepare(tmp_path / "out")
    return Reading(done=Done(tmp_path / "out", {}), most_pixels=10**9, redo=False)


def settings(folder, **given):
    small = {"out": folder.parent / "out", "tile": 64, "overlap": 16, "batch": 2, "workers": 2}
    return SegmentPredictConfig(**{"folder": folder, **small, **given})


def contents(out):
    """All results by path."""
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def test_results_are_those_of_threads(folder, device, request):
    pytest.importorskip("openpyxl")
    threads = settings(folder, formats=FORMATS, out=folder.parent / "threads")
    want = predict_folder(threads, predictor=bright_predictor(device), processes=False)
    request.getfixturevalue("not_here")
    config = settings(folder, formats=FORMATS)
    answer = predict_folder(config, predictor=bright_predictor(device), processes=True)
    assert (answer.num_images, answer.num_objects, answer.bad) == (NUM, 2 * NUM, {}) == (8, want.num_objects, want.bad)
    made, wanted = contents(config.out), contents(threads.out)
    assert made.pop("objects.xlsx") and wanted.pop("objects.xlsx"), "it holds the time"
    assert made == wanted and len(made) == 2 + NUM * 6
    assert set(answer.seconds) == set(want.seconds) and answer.seconds["results"] > 0


def test_a_picture_without_an_answer_is_named_and_the_rest_goes_on(folder, not_here):
    predictor = bright_predictor()
    right = predictor.model.forward
    predictor.model.forward = lambda image: right(image) * (torch.nan if len(predictor.model.seen) == 1 else 1)
    answer = predict_folder(settings(folder, batch=1, workers=1), predictor=predictor, processes=True)
    ((_, reason),) = answer.bad.items()
    assert "the network's answer is NaN at 8192 of 8192 places" in reason and answer.num_images == NUM - 1


def lives(process):
    """Whether it still works; it may be gone in the moment it is asked."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def living_forks(processes):
    (mother,) = processes.pids()
    return [fork for fork in psutil.Process(mother).children() if lives(fork)]


def kill_fork(processes, number):
    """Ends the youngest of the processes that answer, once there are so many."""
    while len(forks := living_forks(processes)) < number:
        time.sleep(0.01)
    youngest = max(forks, key=psutil.Process.create_time)  # not the highest number: those begin anew
    youngest.kill()
    while lives(youngest):
        time.sleep(0.01)


@pytest.fixture
def deadly(monkeypatch):
    """Kills the process that is asked for the results of picture 3, as many times as ``deadly["times"]`` says.

    Or the one that is to ``"read"`` the file of a name, or asked for the ``"next"`` item of it.
    """
    plan = {"times": 0, "what": "finish", "name": "3", "kill": kill_fork, "number": 2}  # the other one reads
    begun, ask, reads = PictureProcesses._begin, picture_processes._Seat.ask, {}

    def begin(self):
        begun(self)
        plan["processes"] = self

    def asked(self, question):
        if question is None:
            what, name = "next", reads[self]
        else:
            what, name = ("read", question[0]) if isinstance(question[0], str) else ("finish", question[0].name)
            reads[self] = name
        if (what, name) == (plan["what"], plan["name"]) and plan["times"]:
            plan["times"] -= 1
            plan["kill"](plan["processes"], plan["number"])
        return ask(self, question)

    monkeypatch.setattr(PictureProcesses, "_begin", begin)
    monkeypatch.setattr(picture_processes._Seat, "ask", asked)
    return plan


def test_a_picture_whose_process_is_killed_is_tried_in_another(folder, not_here, deadly):
    deadly["times"] = 1
    answer = predict_folder(settings(folder, workers=1), predictor=bright_predictor(), processes=True)
    assert (answer.num_images, answer.bad, deadly["times"]) == (NUM, {}, 0)


def test_a_picture_that_kills_twice_is_named_and_done_another_time(folder, not_here, deadly, monkeypatch):
    deadly["times"] = 2
    config, heard = settings(folder, workers=1), []
    answer = predict_folder(config, heard.append, predictor=bright_predictor(), processes=True)
    assert answer.num_images == NUM - 1 and answer.exit_code == 1
    assert "2 processes died while they worked on its results" in answer.bad["3.png"]
    assert not [event for event in heard if event.kind == "warn"], "others could be had"
    monkeypatch.undo()
    again = predict_folder(config, predictor=bright_predictor())
    assert (again.num_images, again.num_before, again.bad) == (1, NUM - 1, {})


@pytest.mark.parametrize(("what", "name"), [("read", "3.png"), ("next", "stack.tif")])
def test_a_file_whose_process_is_killed_is_gone_on_with_in_another(folder, shared, deadly, reading, what, name):
    deadly.update(times=1, what=what, name=name, processes=shared, number=len(living_forks(shared)) + 1)
    found = [item.name for item in shared.read(reading, name, folder / name)]
    assert found == ([name] if name == "3.png" else [f"{name}_page0000", f"{name}_page0001"]) and not deadly["times"]


def test_each_picture_of_a_file_may_see_a_process_die(folder, shared, deadly, reading):
    """Not all of them together one: a stack may have hundreds of pages."""
    number = len(living_forks(shared)) + 1
    deadly.update(times=2, what="next", name="stack.tif", processes=shared, number=number)
    found = list(shared.read(reading, "stack.tif", folder / "stack.tif"))
    assert [type(item) for item in found] == [Loaded, Loaded] and not deadly["times"]


def test_too_many_open_files_are_no_death_and_said(folder, shared, reading, monkeypatch):
    def refuse():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(picture_processes.socket, "socketpair", refuse)
    with pytest.raises(EnvironmentUnusable, match=r"too many files are open.* fewer --workers"):
        list(shared.read(reading, "0", folder / "0.png"))


def test_a_file_that_kills_twice_is_named_and_the_next_one_is_read(folder, shared, deadly, reading):
    deadly.update(times=2, what="read", processes=shared, number=len(living_forks(shared)) + 1)
    ((bad,), (good,)) = (list(shared.read(reading, name, folder / f"{name}.png")) for name in "34")
    assert bad.path.name == "3.png" and "2 processes died while they read it" in bad.reason
    np.testing.assert_array_equal(good.picture, normalise(as_picture(TRUTH)[..., :1]))


FOLLOWS_FIRST = "2 processes died while they read what follows 'stack_page0000'"


@pytest.mark.parametrize(
    ("killers", "found"),
    [
        ({0}, ["2 processes died while they read it", "stack_page0001", "stack_page0002", "stack_page0003"]),
        ({1}, ["stack_page0000", FOLLOWS_FIRST, "stack_page0002", "stack_page0003"]),
        ({3}, ["stack_page0000", "stack_page0001", "stack_page0002", "they read what follows 'stack_page0002'"]),
        ({0, 2}, ["they read it", "stack_page0001", "they read what follows 'stack_page0001'", "stack_page0003"]),
        ({1, 2}, ["stack_page0000", FOLLOWS_FIRST, "2 processes died while they read the rest of it"]),
    ],
)
def test_a_page_that_kills_twice_costs_no_other(folder, shared, reading, monkeypatch, killers, found):
    """Two in a row do: it may be the file that kills, and would once more for each of its pages."""
    picture = Image.fromarray(as_picture(TRUTH)[..., 0])
    picture.save(folder / "stack.tif", save_all=True, append_images=[picture] * 3)
    at, ask, number = 0, picture_processes._Seat.ask, len(living_forks(shared)) + 1

    def asked(self, question):
        nonlocal at
        at = at + 1 if question is None else question[2]
        if at in killers:
            kill_fork(shared, number)
        return ask(self, question)

    monkeypatch.setattr(picture_processes._Seat, "ask", asked)
    items = list(shared.read(reading, "stack", folder / "stack.tif"))
    said = [item.reason if isinstance(item, Bad) else item.name for item in items]
    assert len(said) == len(found) and all(words in text for text, words in zip(said, found, strict=True)), said


def test_pictures_that_were_handed_out_are_not_decoded_again(folder, reading, monkeypatch):
    decode, decoded = micrograph._tiff_samples, []
    monkeypatch.setattr(
        micrograph, "_tiff_samples", lambda page, number, most: decoded.append(number) or decode(page, number, most)
    )
    assert [item.name for item in reading.items("stack", folder / "stack.tif", 1)] == ["stack_page0001"]
    assert decoded == [1] and not list(reading.items("0", folder / "0.png", 1))
    (before, _) = reading.items("stack", folder / "stack.tif")
    reading.done.write({"name": before.name, "digest": before.digest, "page": 0, "num_pages": 2}, {})
    reading = replace(reading, done=Done(reading.done.out, {}))  # of another run
    kinds = [[type(item) for item in reading.items("stack", folder / "stack.tif", begin)] for begin in range(2)]
    assert kinds == [[Finished, Loaded], [Finished]]


@pytest.mark.parametrize("before", [0, 1])
def test_pages_that_were_finished_since_cost_no_others(folder, shared, reading, before):
    """Those handed out are finished while the process goes on, and it may then die."""
    picture = Image.fromarray(as_picture(TRUTH)[..., 0])
    picture.save(folder / "stack.tif", save_all=True, append_images=[picture] * 5)
    facts = {"digest": content_digest(folder / "stack.tif"), "num_pages": 6}

    def finish(page):
        reading.done.write({"name": f"stack_page{page:04d}", "page": page, **facts}, {})

    for page in range(before):
        finish(page)
    number, found = len(living_forks(shared)) + 1, []
    for item in shared.read(reading, "stack", folder / "stack.tif"):
        if isinstance(item, Finished):
            continue
        found.append(item.name)
        finish(int(item.name[-4:]))
        if len(found) == 3:
            kill_fork(shared, number)
    assert found == [f"stack_page{page:04d}" for page in range(before, 6)]


def test_a_file_that_is_left_half_way_can_be_read_again(folder, shared, reading):
    items = shared.read(reading, "stack", folder / "stack.tif")
    first = next(items)
    items.close()
    (again, _) = shared.read(reading, "stack", folder / "stack.tif")
    assert first.name == again.name == "stack_page0000"


def test_what_cannot_be_read_is_named_as_it_is_in_threads(folder, shared, reading):
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:60])
    (folder / "2.png").write_bytes(b"")
    (folder / "stack.tif").write_bytes((folder / "stack.tif").read_bytes()[:-40])  # its last page
    for name, kinds in {"1.png": [Bad], "2.png": [Bad], "gone.png": [Bad], "stack.tif": [Loaded, Bad]}.items():
        here, there = (list(read(name, folder / name)) for read in (reading.items, partial(shared.read, reading)))
        assert [type(item) for item in there] == kinds
        assert [item for item in there if type(item) is Bad] == [item for item in here if type(item) is Bad]


def test_an_error_that_nobody_expected_is_raised_from_the_process(folder, shared, reading):
    with pytest.raises(AttributeError, match="has no attribute 'pages'") as error:
        list(shared.read(replace(reading, done=None), "0", folder / "0.png"))
    assert "in items" in "".join(error.value.__notes__), "with the way to it"
    (item,) = shared.read(reading, "0", folder / "0.png")
    assert item.name == "0"


def test_where_none_can_be_forked_any_more_threads_go_on(folder, patient, deadly):
    def kill_all(processes, number):
        (mother,) = processes.pids()
        forks = psutil.Process(mother).children()
        os.kill(mother, signal.SIGKILL)
        processes._process.wait()
        for fork in forks:
            fork.kill()

    deadly.update(times=1, kill=kill_all)
    heard = []
    config = settings(folder, workers=1)
    answer = predict_folder(config, heard.append, predictor=bright_predictor(), processes=True)
    assert (answer.num_images, answer.bad) == (NUM, {})
    (text,) = [event.text for event in heard if event.kind == "warn"]
    assert "pictures are read and results worked out in threads" in text and "(it died)" in text


def test_processes_that_cannot_start_cost_a_warning(folder, patient, monkeypatch):
    monkeypatch.setattr(picture_processes, "MAIN", "hotlap.segment.not_there")
    heard = []
    answer = predict_folder(settings(folder), heard.append, predictor=bright_predictor(), processes=True)
    assert answer.num_images == NUM
    (text,) = [event.text for event in heard if event.kind == "warn"]
    assert "No module named hotlap.segment.not_there" in text


def test_nothing_waits_for_processes_that_are_not_ready(folder, monkeypatch):
    monkeypatch.setattr(PictureProcesses, "_is_heard", lambda self: False)
    heard = []
    answer = predict_folder(settings(folder), heard.append, predictor=bright_predictor(), processes=True)
    assert answer.num_images == NUM and not [event for event in heard if event.kind == "warn"]


@pytest.mark.slow
def test_an_interrupt_loses_nothing_and_the_rest_is_done_later(folder, not_here):
    whole = settings(folder, out=folder.parent / "whole")
    predict_folder(whole, predictor=bright_predictor(), processes=True)
    count = [0]

    def impatient(event):
        count[0] += event.kind == "advance"
        if event.kind == "advance" and count[0] == 3:
            raise KeyboardInterrupt

    config = settings(folder, workers=1)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(config, impatient, predictor=bright_predictor(), processes=True)
    finished = sorted(path.stem for path in (config.out / "done").glob("*.json"))
    assert 3 <= len(finished) < NUM
    assert {row["image"] for row in read_csv(config.out / "objects.csv")} == set(finished)
    assert not list(config.out.rglob(".*")), "no half-written file is left"
    answer = predict_folder(config, predictor=bright_predictor(), processes=True)
    assert (answer.num_before, answer.num_images) == (len(finished), NUM - len(finished))
    assert contents(config.out) == contents(whole.out)


def test_what_cannot_be_written_ends_the_run_as_it_does_in_threads(folder, request):
    config = settings(folder)
    config.out.mkdir()
    (config.out / "labels").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot write .*labels': File exists") as in_threads:
        predict_folder(config, predictor=bright_predictor(), processes=False)
    request.getfixturevalue("not_here")
    with pytest.raises(StorageError) as in_processes:
        predict_folder(settings(folder, redo=True), predictor=bright_predictor(), processes=True)
    assert str(in_threads.value) == str(in_processes.value)


SCRIPT = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in its background
sys.path.insert(0, sys.argv[1])
print("imported", flush=True)
from bright import bright_predictor
from pathlib import Path
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predict_folder import predict_folder
from hotlap.segment.picture_processes import PictureProcesses
once = PictureProcesses._is_ready
def ready(self):
    while not once(self):
        time.sleep(0.01)
    return True
PictureProcesses._is_ready = ready
def slow(event):
    if event.kind == "advance":
        print("one", flush=True)
        time.sleep(float(sys.argv[3]))
folder = Path(sys.argv[2])
config = SegmentPredictConfig(folder=folder, out=folder.parent / "out", tile=64, overlap=16, batch=1, workers=1)
print(predict_folder(config, slow, predictor=bright_predictor(), processes=True).num_images, flush=True)
"""


def run_script(folder, tmp_path, pause_s, **options):
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(Path(__file__).parent), str(folder), str(pause_s)]
    return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, **options)


def test_a_script_without_a_guard_is_not_run_again(folder, tmp_path):
    with run_script(folder, tmp_path, 0) as script:
        said = script.stdout.read().split()
    assert said.count("imported") == 1 and said[-1] == str(NUM) and script.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("number", "least"), [(signal.SIGINT, 1), (signal.SIGKILL, 1), (signal.SIGKILL, 0)])
def test_whatever_ends_the_run_ends_its_processes(folder, tmp_path, number, least):
    """SIGINT goes to all processes of the group, as from a terminal; those that are left are found by the fixture."""
    done = folder.parent / "out" / "done"
    with run_script(folder, tmp_path, 0.5, start_new_session=True, stderr=subprocess.DEVNULL) as script:
        while script.stdout.readline() != "one\n":
            assert script.poll() is None
        while len(list(done.glob("*.json"))) < least:
            time.sleep(0.01)
        assert len(marked(os.environ[MARK])) >= 2 + least, "the script, the process that forks, and one that answers"
        os.killpg(script.pid, number)
        script.stdout.read()  # to its end: what it still says must find somebody who listens
    assert script.returncode == -number
    while marked(os.environ[MARK]):  # what was begun may still be finished
        time.sleep(0.01)
    finished = len(list(done.glob("*.json")))
    answer = predict_folder(settings(folder), predictor=bright_predictor())
    assert least <= finished < NUM and (answer.num_before, answer.num_images) == (finished, NUM - finished)


@pytest.fixture
def work(tmp_path):
    prepare(tmp_path / "out")
    return Finishing(
        names=MAPS, many=ManyConfig(), formats=("labels",), category="cell", done=Done(tmp_path / "out", {})
    )


def example_maps(side=64):
    return np.stack([TRUTH > 0, TRUTH > 0]).astype(np.float32)[:, :side, :side]


def test_maps_are_given_back_once_copied_and_pictures_sent_only_where_they_are_shown(work, not_here, monkeypatch):
    sent, ask = [], picture_processes._Seat.ask

    def asked(self, question):
        sent.append((question, [ref() is None for ref in refs]))
        return ask(self, question)

    monkeypatch.setattr(picture_processes._Seat, "ask", asked)
    refs, picture = [], np.zeros((64, 64, 3), np.uint8)
    with PictureProcesses(4) as processes:
        for n, side in enumerate((64, 64, 50)):
            array = example_maps(side)
            refs.append(weakref.ref(array))
            box = [array]
            del array
            entry = processes.finish(work, Facts(str(n), f"{n}.png", "", 1), box, picture)
            assert entry["num_objects"] == 2 and not box
    (first, _), (second, gone), (third, _) = sent
    assert gone == [True, True] and [question[2] for question, _ in sent] == [None] * 3
    assert first[1].data_ptr() == second[1].data_ptr() != third[1].data_ptr(), "memory is used again for one size"
    np.testing.assert_array_equal(third[1].numpy(), example_maps(50))


def test_several_threads_are_answered_side_by_side_and_the_largest_stay_here(work, patient, monkeypatch):
    here, one = [], Finishing.one
    monkeypatch.setattr(
        Finishing, "one", lambda self, facts, *given: here.append(facts.name) or one(self, facts, *given)
    )
    monkeypatch.setattr(picture_processes, "MOST_SENT", example_maps().nbytes - 1)
    with PictureProcesses(4) as processes:
        ask = lambda n, side: processes.finish(work, Facts(n, n, "", 1), [example_maps(side)], None)  # noqa: E731
        threads = [threading.Thread(target=ask, args=(str(n), 64 - n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert here == ["0"] and {path.stem for path in work.done.out.glob("done/*.json")} == {"0", "1", "2", "3"}


def test_no_more_processes_are_at_work_than_may_be(work, patient, monkeypatch):
    ask, lock, at_work, most = picture_processes._Seat.ask, threading.Lock(), [], []

    def counted(self, question):
        with lock:
            at_work.append(self)
            most.append(len(at_work))
        time.sleep(0.02)
        try:
            return ask(self, question)
        finally:
            with lock:
                at_work.remove(self)

    monkeypatch.setattr(picture_processes._Seat, "ask", counted)
    with PictureProcesses(2) as processes:
        finish = lambda n: processes.finish(work, Facts(n, n, "", 1), [example_maps()], None)  # noqa: E731
        threads = [threading.Thread(target=finish, args=(str(n),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) == 6 and max(most) == 2


def test_a_file_with_one_picture_is_asked_for_once(folder, reading, shared, monkeypatch):
    asked, ask = [], picture_processes._Seat.ask
    monkeypatch.setattr(picture_processes._Seat, "ask", lambda self, question: asked.append(1) or ask(self, question))
    for name, pages in (("0.png", 1), ("stack.tif", 2), ("1.png", 1)):
        asked.clear()
        items = list(shared.read(reading, Path(name).stem, folder / name))
        assert [type(item) for item in items] == [Loaded] * pages
        assert len(asked) == (1 if pages == 1 else pages + 1)
        for item in items:
            np.testing.assert_array_equal(item.picture, normalise(as_picture(TRUTH)[..., :1]))


def test_processes_are_for_cards_and_many_pictures(folder, monkeypatch):
    started, places = [], []

    class Noted(PictureProcesses):
        def __init__(self, most):
            places.append(most)
            super().__init__(most)

        def _begin(self):
            started.append(True)
            self._why_not = "only noted"

    monkeypatch.setattr(module, "PictureProcesses", Noted)
    monkeypatch.setattr(module, "FEWEST_FILES", NUM - 1)
    predict_folder(settings(folder), predictor=bright_predictor())
    assert not started, "on a CPU the network needs the cores itself"
    on_card = bright_predictor()
    on_card.device = torch.device("cuda")
    for fewest, size, wanted in ((NUM, 1 << 27, 0), (NUM - 1, 1 << 27, 1), (NUM, 1000, 2)):
        monkeypatch.setattr(module, "FEWEST_FILES", fewest)
        monkeypatch.setattr(module, "FEWEST_BYTES", size)
        predict_folder(settings(folder, redo=True), predictor=on_card)
        assert len(started) == wanted
    cpus = read_host().usable_cpus
    predict_folder(settings(folder, redo=True, workers=cpus + 3), predictor=on_card)
    assert places == [max(2, cpus), max(2, cpus), cpus + 3]
