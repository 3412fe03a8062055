"""The network as an arm: tuned by itself, right whatever the arm, loaded only when it is needed, clear without room."""

from __future__ import annotations

import dataclasses
import random
import time

import numpy as np
import pytest
import torch
from bright import Bright, as_picture, bright_predictor, discs
from PIL import Image

from hotlap.base.errors import ConfigError, OutOfMemory, UsageError
from hotlap.cli.main import run
from hotlap.measure.fingerprint import Question, ask_key
from hotlap.measure.loaded_workload import RECORD_FROM, LoadedWorkload, arm_on
from hotlap.records.tuned import ProfileStore, TunedProfile
from hotlap.segment.done import Done
from hotlap.segment.nets import build_net
from hotlap.segment.predict import ManyConfig, predict_many
from hotlap.segment.predict_config import SegmentPredictConfig
from hotlap.segment.predict_folder import _settings, predict_folder
from hotlap.segment.predictor import Predictor, load_predictor
from hotlap.segment.tiles import TileConfig, predict_maps

pytest.importorskip("numba")

WIDTH = 2


def some_tiles(num, height=64, width=64):
    return torch.randint(256, (num, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def fresh_net(width=4):
    """Twice the same, with scores that are not all alike."""
    torch.manual_seed(0)
    net = build_net("unet", maps=2, width=width).eval()
    with torch.no_grad():
        net.head.weight *= 20
    return net


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "pictures"
    made.mkdir()
    for n in range(7):
        Image.fromarray(as_picture(discs(64, 64, (20, 20 + n, 8), (45, 45, 10)))[..., 0]).save(made / f"{n}.png")
    return made


@pytest.fixture
def weights(tmp_path):
    file = tmp_path / "unet.pt"
    torch.save(fresh_net(WIDTH).state_dict(), file)
    return file


def settings(folder, weights, **given):
    small = {"out": folder.parent / "out", "tile": 64, "overlap": 16, "workers": 1, "device": "cpu"}
    return SegmentPredictConfig(**{"folder": folder, "model": str(weights), **small, **given})


@pytest.fixture
def profile(jobs_in_process):
    """Of the network that the weights are of, as if it had been tuned here."""
    key = ask_key(Question(target="unet", mode="infer", options={"width": WIDTH}, inputs=[], device="cpu"))
    return TunedProfile(
        key=key, arm="cpu:bf16+channels_last", batch=3, objective="throughput", samples_per_s=1.0, samples_ms=[[1.0]],
        p50_ms=1.0, p95_ms=None, peak_bytes=None, gate_error=0.1, tail_batch=1, max_batch=8,
        searched_from="2026-01-01T00:00:00", measured_at="2026-01-02T00:00:00", record="none",
    )  # fmt: skip


@pytest.fixture
def reached(monkeypatch):
    """Batches that reached the network behind the arm, and the types they were computed in."""
    found = []
    load = Predictor.load

    def load_and_watch(self, *given):
        loaded = load(self, *given)
        first = next(module for module in self.model.modules() if isinstance(module, torch.nn.Conv2d))
        first.register_forward_hook(lambda module, given, out: found.append((len(out), out.dtype)))
        return loaded

    monkeypatch.setattr(Predictor, "load", load_and_watch)
    return found


def predicted(config):
    told = []
    predict_folder(config, told.append)
    return "\n".join(event.text for event in told if event.kind in ("note", "warn"))


def test_the_tuned_profile_is_taken_by_itself_and_said(folder, weights, profile, reached):
    ProfileStore().save(profile)
    told = predicted(settings(folder, weights))
    assert reached == [(3, torch.bfloat16), (3, torch.bfloat16), (1, torch.bfloat16)]
    assert "cpu:bf16+channels_last at batch 3, measured 2026-01-02" in told and "--no-tuned goes without" in told


@pytest.mark.parametrize(
    ("given", "first"),
    [({"batch": 5}, (5, torch.bfloat16)), ({"arm": "cpu"}, (7, torch.float32)), ({"tuned": False}, (7, torch.float32)),
     ({"arm": "cpu:channels_last", "batch": 2}, (2, torch.float32))],
)  # fmt: skip
def test_what_the_user_says_wins_over_the_profile(folder, weights, profile, reached, given, first):
    ProfileStore().save(profile)
    told = predicted(settings(folder, weights, **given))
    assert reached[0] == first
    assert ("measured 2026-01-02" in told) == (given == {"batch": 5})


def test_a_stale_profile_is_said_and_not_used(folder, weights, profile, reached):
    ProfileStore().save(dataclasses.replace(profile, key=dataclasses.replace(profile.key, torch="1.0")))
    told = predicted(settings(folder, weights))
    assert "is stale and not used: torch was 1.0" in told and reached[0] == (7, torch.float32)


def test_a_network_tuned_with_images_of_a_size_is_a_tuned_one(folder, weights, profile, reached):
    """Of several sizes the one nearest to a tile decides; a profile of another width is another network's."""
    for size, width, batch in ((32, WIDTH, 5), (64, WIDTH, 2), (512, WIDTH, 7), (64, WIDTH + 1, 6)):
        options = {"width": width, "size": size}
        key = ask_key(Question(target="unet", mode="infer", options=options, inputs=[], device="cpu"))
        ProfileStore().save(dataclasses.replace(profile, key=key, batch=batch))
    told = predicted(settings(folder, weights))
    assert [num for num, _ in reached] == [2, 2, 2, 1] and "at batch 2, measured 2026-01-02" in told


def test_a_profile_of_another_device_does_not_hide_the_one_that_holds(folder, weights, profile, reached):
    """Though its images were as large as the tiles."""
    ProfileStore().save(profile)
    large = {"options": {"width": WIDTH, "size": 64}, "signature": "3x64x64:float32"}
    of_card = dataclasses.replace(profile.key, device="cuda", **large)
    ProfileStore().save(dataclasses.replace(profile, key=of_card, arm="cuda:bf16", batch=6))
    told = predicted(settings(folder, weights))
    assert reached[0] == (3, torch.bfloat16) and "never tuned" not in told


def test_a_network_that_was_never_tuned_says_how(folder, weights):
    told = predicted(settings(folder, weights))
    command = "hotlap tune cells --for infer --set workload.model=unet --set workload.width=2 --set workload.size=64"
    assert f"'unet' was never tuned here. '{command}' finds" in told


@pytest.mark.parametrize(("tile", "together"), [(1024, 1), (512, 4), (64, 8)])
def test_a_cpu_is_given_no_more_at_once_than_one_large_tile(folder, weights, tile, together):
    """Eight of 1024x1024 would take a network of full width 15 GiB, and no less time."""
    config = settings(folder, weights, tile=tile)
    predictor = load_predictor(config)
    batch_of = config.tiles(predictor.batch, predictor.small_batch).batch_of
    assert (batch_of(tile, tile), batch_of(64, 64)) == (together, 8)
    assert load_predictor(settings(folder, weights, tile=tile, batch=3)).batch == 3


def test_a_batch_that_was_measured_with_smaller_images_is_fewer_tiles(folder, weights, profile):
    ProfileStore().save(dataclasses.replace(profile, batch=100))
    told = []
    config = settings(folder, weights, tile=1024, overlap=128)
    predictor = load_predictor(config, told.append)
    assert predictor.batch == 100 * 128**2 // 1024**2 == 1 and not predictor.is_loaded
    assert "measured with images of 128x128; tiles of 1024x1024 go 1 at a time" in told[-1].text
    assert load_predictor(settings(folder, weights, tile=128, overlap=16)).batch == 100


def test_pictures_as_small_as_those_that_were_measured_go_in_the_measured_batch(folder, weights, profile, reached):
    """Though a whole tile would go alone."""
    ProfileStore().save(profile)
    told = predicted(settings(folder, weights, tile=1024, overlap=128))
    assert [num for num, _ in reached] == [3, 3, 1]
    assert "tiles of 1024x1024 go 1 at a time" in told


def test_arms_that_will_not_do_are_named(folder, weights):
    with pytest.raises(UsageError, match=r"arm = 'cuda:bf16' cannot run on device = 'cpu'. Expected an arm of cpu"):
        load_predictor(settings(folder, weights, arm="cuda:bf16"))
    with pytest.raises(UsageError, match=r"arm = 'cuda:0:bf16' cannot run on device = 'cuda:1'"):
        load_predictor(settings(folder, weights, arm="cuda:0:bf16", device="cuda:1"))
    for arm, words in {
        "cpu:onnx": r"arm = 'cpu:onnx': onnx has no meaning here",
        "cpu:tuned": r"arm = 'cpu:tuned': tuned has no meaning here",
        "cpu:batch=4": r"arm = 'cpu:batch=4' says the batch. Leave it out, and give --batch 4",
    }.items():
        with pytest.raises(ConfigError, match=words):
            settings(folder, weights, arm=arm)
    with pytest.raises(UsageError, match=r"unknown option 'bf61' in arm 'cpu:bf61'"):
        settings(folder, weights, arm="cpu:bf61")
    assert str(load_predictor(settings(folder, weights, arm="cpu:bf16", device="auto")).device) == "cpu"


@pytest.mark.parametrize("shape", [(1, 32, 32), (5, 64, 64), (3, 32, 96)])
def test_a_plain_arm_gives_what_the_network_gives(shape):
    tiles, net = some_tiles(*shape), fresh_net()
    with torch.inference_mode():
        want = torch.sigmoid(net(tiles.float() / 255))
    got = Predictor(net, arm=arm_on("", "cpu"), batch=4)(tiles)
    assert got.dtype == torch.float32 and want.std() > 0.01
    torch.testing.assert_close(got, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("arm", ["bf16", "channels_last", "bf16+channels_last+folded", "fp32", "graph", "bf16+graph",
                                 "bf16+channels_last+graph"])  # fmt: skip
def test_arms_change_nothing_much(device, arm):
    """Full and ragged batches of two shapes; often enough that the second is recorded, too."""
    if "graph" in arm and device.type == "cpu":
        pytest.skip("graphs are recorded on a card")
    plain = Predictor(fresh_net(), arm=arm_on("", "cpu"), batch=4)
    other = Predictor(fresh_net(), arm=arm_on(f"{device.type}:{arm}", str(device)), batch=4)
    for shape in [(4, 64, 64), (3, 64, 64), (1, 64, 64), *[(4, 32, 96)] * (RECORD_FROM + 2), (3, 32, 96), (6, 64, 64)]:
        tiles = some_tiles(*shape)
        kept, got = other(tiles), other(tiles.flip(0)).flip(0)
        assert got.device.type == device.type and got.shape == (shape[0], 2, *shape[1:])
        assert (got.float().cpu() - plain(tiles)).abs().max() < 0.05  # bf16 keeps 8 bits, and no score is steep here
        assert (kept.float().cpu() - plain(tiles)).abs().max() < 0.05, "a later batch must not overwrite it"


def test_no_batch_overwrites_another_on_its_way(device):
    """On a card tiles and maps pass through pinned memory that is used again and again, on two streams."""
    noise = np.random.default_rng(0)
    pictures = [noise.integers(256, size=(64 - n % 3, 64, 3), dtype=np.uint8) for n in range(42)]
    tiles = TileConfig(tile=64, overlap=16, batch=4)
    want = dict(predict_maps(pictures, bright_predictor(), tiles))
    got = dict(predict_maps(pictures, bright_predictor(device), tiles))
    assert sorted(got) == list(range(42))
    for index, maps in got.items():
        np.testing.assert_allclose(maps, want[index], rtol=0, atol=1e-3)


def test_a_recorded_arm_finds_the_same_objects(device):
    truths = [discs(64, 64, (20, 20, 8), (45, 45, 10)), discs(150, 200, (30, 40, 12), (100, 150, 20)), discs(40, 50)]
    arm = "cuda:graph" if device.type == "cuda" else "cpu:channels_last"
    many = ManyConfig(tiles=TileConfig(tile=64, overlap=16, multiple=16, batch=4), workers=2)
    found = predict_many([as_picture(t) for t in truths * 3], bright_predictor(device, arm, batch=4), many)
    for got, truth in zip(found, truths * 3, strict=True):
        np.testing.assert_array_equal(got.labels > 0, truth > 0)


@pytest.mark.parametrize("arm", ["cpu", "cpu:channels_last"])
def test_tiles_reach_the_network_in_the_layout_of_the_arm(warm_all, arm):
    """Also while warming up: for another layout all would be compiled again."""
    seen = []

    class Watched(Bright):
        def forward(self, image):
            seen.append((image.is_contiguous(), image.is_contiguous(memory_format=torch.channels_last)))
            return super().forward(image)

    spec = dataclasses.replace(warm_all, channels_last=arm != "cpu")
    predictor, tiles = Predictor(Watched(), arm=spec, batch=4), some_tiles(3)
    first = predictor(tiles)
    torch.testing.assert_close(predictor(tiles.contiguous(memory_format=torch.channels_last)), first)
    assert len(seen) == 3 and set(seen) == {(arm == "cpu", arm != "cpu")}


def test_scores_are_probabilities_even_between_0_and_1():
    class Quarter(torch.nn.Module):
        def forward(self, image):
            return torch.full_like(image[:, :1], 0.25)

    predictor = Predictor(Quarter(), names=("foreground",), arm=arm_on("", "cpu"))
    assert predictor(some_tiles(1)).flatten()[0] == pytest.approx(0.562, abs=1e-3)


def test_only_bytes_are_taken():
    with pytest.raises(UsageError, match=r"tiles are torch.float32. Expected bytes"):
        bright_predictor()(torch.rand(1, 3, 64, 64))


def test_loading_leaves_the_callers_random_numbers_alone():
    predictor = Predictor(fresh_net(), arm=arm_on("", "cpu"))
    torch.manual_seed(7), random.seed(7)
    want = torch.rand(3).tolist(), random.random()
    torch.manual_seed(7), random.seed(7)
    predictor(some_tiles(1))
    assert (torch.rand(3).tolist(), random.random()) == want


def test_a_finished_folder_loads_no_network_and_warming_up_is_told_apart(folder, weights, monkeypatch):
    config = settings(folder, weights)
    first = predict_folder(config)
    assert first.seconds["warm_up"] > 0 and sum(first.seconds[n] for n in ("read", "network", "results")) == (
        pytest.approx(first.seconds["wall"])
    )
    told = dataclasses.replace(first, seconds={**first.seconds, "warm_up": 12.3}).lines()[0]
    assert told.endswith(" after 12.3 s of warm-up")

    def never(*given, **named):
        raise AssertionError("a network was loaded for nothing")

    monkeypatch.setattr(LoadedWorkload, "__init__", never)
    again = predict_folder(config)
    assert (again.num_images, again.num_before, again.seconds["warm_up"]) == (0, 7, 0)


def test_writing_tables_counts_as_results_not_as_the_network(folder, weights, monkeypatch):
    monkeypatch.setattr("hotlap.segment.predict_folder.write_tables", lambda *given: time.sleep(2) or [])
    seconds = predict_folder(settings(folder, weights), predictor=bright_predictor()).seconds
    assert seconds["results"] > 2 > seconds["network"]


def test_what_was_finished_before_arms_came_still_counts(folder, weights):
    """The digest of these settings is in folders that exist."""
    config = settings(folder, weights, formats=("labels",))
    predictor = bright_predictor()
    assert Done(config.out, _settings(config, predictor)).settings == "a29a5114a1b6a483"
    assert Done(config.out, _settings(config, bright_predictor(arm="cpu:channels_last"))).settings == "a29a5114a1b6a483"
    assert Done(config.out, _settings(config, bright_predictor(arm="cpu:bf16"))).settings != "a29a5114a1b6a483"


class Room(Bright):
    """Has memory for so many tiles at once."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, image):
        if len(image) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(image)


@pytest.fixture
def warm_all(monkeypatch):
    """A CPU is warmed up as a card is: with the very batch."""
    monkeypatch.setattr("hotlap.measure.session.Session._compiled", lambda self, model: model)
    return arm_on("cpu:compile", "cpu")


@pytest.mark.parametrize(("most", "batches"), [(8, [7]), (7, [4, 3]), (3, [2, 2, 2, 1]), (1, [1] * 7)])
def test_a_batch_that_does_not_fit_is_halved_and_said(folder, weights, warm_all, most, batches):
    told = []
    predictor = Predictor(Room(most), arm=warm_all, batch=8, name="room", digest="room", emit=told.append)
    answer = predict_folder(settings(folder, weights, batch=8), predictor=predictor)
    assert answer.num_images == 7 and answer.num_objects == 14
    assert predictor.batch == (8 if most == 8 else 2 ** (most.bit_length() - 1))
    warned = [event.text for event in told if event.kind == "warn"]
    if most == 8:
        assert not warned
    else:
        assert f"batch = 8 tiles of 64x64 do not fit the memory of cpu: {predictor.batch} go through" in warned[0]
    assert told[0].text == "Warming up cpu:compile at batch 8; compiling may take minutes."


@pytest.mark.parametrize(("first", "compiled"), [(4, 4), (3, 4), (1, 1)])
def test_a_network_is_compiled_once_for_the_first_batch_and_its_shape(monkeypatch, first, compiled):
    """Compiling takes minutes each time: a smaller batch is filled up, and other shapes run as they are."""
    seen, plain = [], bright_predictor()

    class Compiled(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, image):
            seen.append((len(image), *image.shape[2:]))
            return self.model(image)

    monkeypatch.setattr("hotlap.measure.session.Session._compiled", lambda self, model: Compiled(model))
    predictor = Predictor(Bright(), arm=arm_on("cpu:compile", "cpu"), batch=4)
    for shape in [(first, 64, 64), (1, 64, 64), (4, 32, 96), (1, 32, 32)]:
        tiles = some_tiles(*shape)
        torch.testing.assert_close(predictor(tiles), plain(tiles))
    assert set(seen) == {(compiled, 64, 64)}


def test_no_room_for_one_tile_is_said(warm_all):
    predictor = Predictor(Room(0), arm=warm_all, name="room")
    with pytest.raises(OutOfMemory, match=r"does not fit the memory of cpu with a tile of 64x96.*--tile"):
        predictor(some_tiles(2, 64, 96))


class Pixels(Bright):
    """Has memory for so many pixels at once."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def forward(self, image):
        if image[:, 0].numel() > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(image)


def test_a_larger_shape_that_comes_later_and_does_not_fit_is_halved_too():
    told = []
    predictor = Predictor(Pixels(5 * 64 * 64), arm=arm_on("", "cpu"), batch=4, emit=told.append)
    plain = bright_predictor()
    for shape in [(4, 64, 64), (4, 64, 128), (4, 64, 128), (5, 64, 64), (3, 32, 64), (4, 64, 256)]:
        torch.testing.assert_close(predictor(some_tiles(*shape)), plain(some_tiles(*shape)))
    reached = [(len_, *sides) for len_, _, *sides in predictor.model.seen[1:]]
    assert reached == [
        (4, 64, 64), *[(2, 64, 128)] * 4, (4, 64, 64), (1, 64, 64), (3, 32, 64), *[(1, 64, 256)] * 4
    ]  # fmt: skip
    assert [event.text for event in told if event.kind == "warn"] == [
        "batch = 4 tiles of 64x128 do not fit the memory of cpu: 2 go through the network together. --batch 2 spares "
        "the attempt."
    ]


def test_too_little_memory_for_one_tile_later_is_said_and_what_is_finished_is_kept(folder, weights):
    predictor = bright_predictor()
    right, calls = predictor.model.forward, []

    def at_last_full(image):
        calls.append(len(image))
        if len(calls) >= 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return right(image)

    predictor.model.forward = at_last_full
    config = settings(folder, weights, batch=2)
    with pytest.raises(OutOfMemory, match=r"batch = 1 tile of 64x64 does not fit the memory of cpu.*--tile"):
        predict_folder(config, predictor=predictor)
    assert calls == [2, 2, 2, 1]
    assert len(list((config.out / "done").glob("*.json"))) == 4
    assert predict_folder(config, predictor=bright_predictor()).num_images == 3


def test_an_interrupt_says_how_to_go_on_and_nothing_of_runs(folder, weights, capsys, monkeypatch):
    def interrupted(self, tiles):
        raise KeyboardInterrupt

    monkeypatch.setattr(Predictor, "__call__", interrupted)
    out = folder.parent / "out"
    assert (
        run(["segment", "predict", str(folder), "--model", str(weights), "--out", str(out), "--device", "cpu"]) == 130
    )
    told = " ".join(capsys.readouterr().err.split())
    assert "0 pictures are finished in" in told and "the same command does the rest" in told
    assert told.endswith("hotlap: interrupted") and "list runs" not in told
