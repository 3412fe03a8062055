"""The search on simulated machines: it finds what is best there, and whatever goes wrong is a row."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import Machine, true_rate

from hotlap.base.errors import ConfigError, TargetError, UsageError
from hotlap.measure.arms import ArmSpec, parse_arm
from hotlap.measure.jobs import Description
from hotlap.tools.tune.budget import Budget, parse_budget
from hotlap.tools.tune.goal import Goal
from hotlap.tools.tune.protocol import numeric_class
from hotlap.tools.tune.rows import Config, Row, estimate, estimates
from hotlap.tools.tune.search import Search
from hotlap.tools.tune.sizes import rival_of
from hotlap.tools.tune.space import make_space

CARD = Description(
    name="net", summary="", default_batch=16, num_parameters=1, has_convolutions=True, can_compile=True,
    fast_bf16=False, usable_cores=8, num_cuda=1, has_attention=False, has_blocks=True,
)  # fmt: skip


def run(machine, *, mode="train", objective="throughput", p95_ms=None, budget=1e6, about=CARD, **space):
    limits = make_space(about, mode=mode, **{"max_batch": 4096, "graphs": "on", **space})
    search = Search(limits, machine, Goal(objective, p95_ms), Budget(seconds=budget, rung_seconds=0.5))
    return search.run()


def grid(batches, *, fits=lambda arm, batch: True, rate=true_rate):
    """The best of the whole grid, by the machine's true speeds."""
    arms = [
        ArmSpec(device="cuda", precision=p, channels_last=c, fused=f, cudnn_benchmark=b, **form)
        for p, c, f, b in itertools.product(("fp32", "tf32", "bf16", "fp16"), *[(False, True)] * 3)
        for form in ({}, {"compile": "default"}, {"graph": True}, {"compile": "default", "graph": True})
    ]
    return max(rate(arm, batch) for arm in arms for batch in batches if fits(arm, batch))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("overhead_ms", "per_sample_ms", "most"), [(4.0, 0.5, 10**9), (20.0, 0.05, 300), (0.5, 2.0, 64)]
)
def test_the_winner_is_near_the_best_of_the_whole_grid_for_a_fraction_of_its_trials(
    seed, overhead_ms, per_sample_ms, most
):
    rate = functools.partial(true_rate, overhead_ms=overhead_ms, per_sample_ms=per_sample_ms)

    def fits(arm, batch):
        return batch <= most * (2 if arm.precision in ("bf16", "fp16") else 1)

    machine = Machine(seed=seed, rate=rate, fits=fits)
    outcome = run(machine)
    batches = [2**k for k in range(13)]
    got = rate(parse_arm(outcome.winner.arm), outcome.winner.batch)
    assert got >= 0.97 * grid(batches, fits=fits, rate=rate)
    assert machine.num_run < 0.05 * 4 * 2 * 2 * 2 * 4 * len(batches)


@pytest.mark.parametrize(
    ("mode", "known", "asked"),
    [
        ("infer", {"has_norms": True}, {"folded"}),
        ("train", {"has_norms": True}, set()),
        ("infer", {}, set()),
        ("train", {"has_odd_channels": True}, {"padded"}),
        ("infer", {"has_odd_channels": True, "has_norms": True}, {"folded", "padded"}),
        ("train", {"has_block_convolutions": True}, {"shuffled"}),
        ("train", {"has_lost_biases": True}, {"unbiased"}),
        ("infer", {"has_lost_biases": True}, set()),
    ],
)
def test_forms_of_convolutions_are_tried_where_they_can_matter(mode, known, asked):
    machine = Machine()
    run(machine, mode=mode, about=dataclasses.replace(CARD, **known), batch=16)
    words = {word for row in machine.rows for word in ("folded", "padded", "shuffled", "unbiased") if word in row.arm}
    assert words == asked


@pytest.mark.parametrize(
    ("overhead_ms", "most", "is_tried"), [(50.0, 40, True), (0.0, 40, False), (50.0, 10**9, False)]
)
def test_activations_are_computed_again_where_memory_ends_a_climb_that_pays(overhead_ms, most, is_tried):
    def fits(arm, batch):
        return batch <= most * (8 if arm.recompute else 1)

    machine = Machine(fits=fits, rate=functools.partial(true_rate, overhead_ms=overhead_ms))
    outcome = run(machine, graphs="off", compile_modes=())
    assert any("recompute" in row.arm for row in machine.rows) == is_tried
    assert ("recompute" in outcome.winner.arm) == is_tried


def test_memory_with_islands_is_not_taken_for_monotone():
    def fits(arm, batch):
        return batch not in (64, 96) and batch <= 200

    machine = Machine(fits=fits)
    outcome = run(machine)
    assert outcome.winner.batch > 64, "the island at 64 does not hide what lies beyond it"
    assert fits(parse_arm(outcome.winner.arm), outcome.winner.batch)
    failed = [row for row in machine.rows if row.batch == 64 and row.status == "out of memory"]
    assert {row.attempt for row in failed} >= {0, 1}, "a size that failed is tried once more"


@pytest.mark.parametrize(("holes", "tried"), [({64}, True), ({64, 128}, False)])
def test_one_size_beyond_a_failure_is_tried_and_no_more(holes, tried):
    """With one arm alone: no other climbs past the hole for it."""
    machine = Machine(fits=lambda arm, batch: batch not in holes)
    run(machine, arms=("cuda",))
    sizes = {row.batch for row in machine.rows}
    assert 128 in sizes and (256 in sizes) == tried


def test_a_model_that_does_not_fit_at_its_own_batch_gets_a_smaller_one():
    outcome = run(Machine(fits=lambda arm, batch: batch <= 3))
    assert outcome.winner.batch in (1, 2, 3)


def test_recomputation_is_the_last_resort_when_nothing_fits():
    outcome = run(Machine(fits=lambda arm, batch: arm.recompute and batch <= 4))
    assert parse_arm(outcome.winner.arm).recompute and outcome.winner.batch <= 4


def test_nothing_that_fits_is_no_winner_and_every_try_is_a_row():
    machine = Machine(fits=lambda arm, batch: False)
    outcome = run(machine)
    assert outcome.winner is None and outcome.ranking == []
    assert machine.rows and all(row.status == "out of memory" for row in machine.rows)


def test_a_wrong_precision_is_refused_before_any_time_is_spent_on_it():
    machine = Machine(wrong=lambda arm: arm.precision in ("bf16", "fp16"))
    outcome = run(machine)
    assert parse_arm(outcome.winner.arm).precision == "tf32"
    assert not any(parse_arm(row.arm).precision in ("bf16", "fp16") for row in machine.rows)
    assert outcome.refused["cuda:bf16"] == "outputs 3x off"


def test_a_compiled_form_that_answers_wrongly_does_not_win():
    machine = Machine(wrong=lambda arm: bool(arm.compile) and arm.precision == "bf16")
    outcome = run(machine)
    winner = parse_arm(outcome.winner.arm)
    assert not (winner.compile and winner.precision == "bf16")
    assert any("compile" in row.arm for row in machine.rows), "it was tried"


def test_a_wrong_answer_does_not_set_the_mark_for_memory():
    machine = Machine(noise=0.0, wrong=lambda arm: bool(arm.compile) or arm.graph)
    outcome = run(machine, objective="memory")
    known = estimates(machine.rows)
    right = [e for c, e in known.items() if not (parse_arm(c.arm).compile or parse_arm(c.arm).graph)]
    fastest = max(e.rate for e in right)
    assert known[outcome.winner] in right and known[outcome.winner].rate >= 0.95 * fastest
    assert known[outcome.winner].peak_bytes == min(e.peak_bytes for e in right if e.rate >= 0.95 * fastest)


@pytest.mark.parametrize("status", ["failed", "crashed", "timed out", "killed"])
def test_compile_failures_hangs_and_deaths_are_rows_and_the_search_goes_on(status):
    machine = Machine(ends=lambda config, rung: status if "compile" in config.arm else "ok")
    outcome = run(machine)
    assert outcome.winner is not None and "compile" not in outcome.winner.arm
    assert any(row.status == status for row in machine.rows)


@pytest.mark.parametrize(("budget", "is_confirmed"), [(900.0, True), (40.0, False)])
def test_a_winner_that_falls_far_behind_in_its_last_run_is_held_against_the_next(budget, is_confirmed):
    class Slow(Machine):
        first = ""

        def _run(self, stage, config, rung, attempt, tail):
            row = super()._run(stage, config, rung, attempt, tail)
            if stage != "confirm" or config.arm != (self.first or config.arm):
                return row
            self.first = config.arm
            return dataclasses.replace(row, wall_ms=[50 * ms for ms in row.wall_ms])

    machine = Slow()
    outcome = run(machine, budget=budget, batch=16, graphs="off", compile_modes=())
    last = [row.arm for row in machine.rows if row.stage == "confirm"]
    assert last[0] == machine.first and (len(last) > 1) == is_confirmed
    assert (outcome.winner.arm != machine.first) == is_confirmed
    assert outcome.confirmed.arm == outcome.winner.arm


@pytest.mark.parametrize("objective", ["memory", "latency"])
def test_the_leanest_and_the_quickest_are_held_to_their_last_run_too(objective):
    class Belied(Machine):
        first = None

        def _run(self, stage, config, rung, attempt, tail):
            row = super()._run(stage, config, rung, attempt, tail)
            if stage != "confirm" or config != (self.first or config):
                return row
            self.first = config
            return dataclasses.replace(row, wall_ms=[2 * ms for ms in row.wall_ms], interval_ms=[])

    machine = Belied()
    outcome = run(machine, objective=objective)
    assert outcome.winner != machine.first and outcome.confirmed.config == outcome.winner
    if objective == "memory":
        assert outcome.confirmed.samples_per_s >= 0.95 * max(e.rate for e in estimates(machine.rows).values())


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_the_quickest_wins_also_where_every_last_run_was_slower(slower):
    """Of those that fell behind none is preferred for its rate, which a larger batch has more of."""

    class Busy(Machine):
        def _run(self, stage, config, rung, attempt, tail):
            row = super()._run(stage, config, rung, attempt, tail)
            return dataclasses.replace(row, wall_ms=[slower * ms for ms in row.wall_ms]) if tail else row

    machine = Busy()
    outcome = run(machine, objective="latency", mode="infer", arms=("cuda", "cuda:bf16"))
    shortest = min(e.p50_ms for e in estimates(machine.rows).values())
    assert {e.config: e for e in outcome.ranking}[outcome.winner].p50_ms < 1.05 * shortest


def test_kernels_are_tried_in_the_other_memory_format_too():
    """Norms without a kernel for it make one format slow, and kernels of ours make it the fast one."""

    def rate(arm, batch):
        plain = dataclasses.replace(arm, channels_last=False)
        suits = 1.0 if not arm.channels_last else 1.5 if arm.kernels else 0.6
        return true_rate(plain, batch) * suits * (1.3 if arm.kernels else 1.0)

    about = dataclasses.replace(CARD, has_kernels=True)
    machine = Machine(rate=rate)
    outcome = run(machine, about=about, mode="infer")
    assert parse_arm(outcome.winner.arm).kernels and parse_arm(outcome.winner.arm).channels_last
    without = Machine(rate=rate)
    assert not parse_arm(run(without, mode="infer").winner.arm).channels_last
    assert not any("kernels" in row.arm for row in without.rows)


def test_the_final_form_that_fails_hands_over_to_the_next():
    first = run(Machine())

    class Fragile(Machine):
        def trial(self, stage, config, *, rung, attempt, tail):
            if tail and config == first.winner:
                self.ends = lambda *_: "crashed"
            row = super().trial(stage, config, rung=rung, attempt=attempt, tail=tail)
            self.ends = lambda *_: "ok"
            return row

    second = run(Fragile())
    assert second.winner != first.winner and second.confirmed.ok
    assert "crashed" in second.refused[str(first.winner)]


def test_a_budget_ends_the_search_with_a_confirmed_winner_and_a_word():
    machine = Machine()
    outcome = run(machine, budget=60)
    assert outcome.confirmed is not None and outcome.confirmed.tail > 0
    spent = sum(row.seconds for row in machine.rows) + sum(gate.seconds for gate in machine.gates.values())
    assert spent <= 60 + 5 + 0.5 * 9, "over by no more than the last run"
    assert any("the budget of 60 s left no time for" in note for note in machine.notes)
    assert machine.num_run < 15


def test_what_a_budget_leaves_out_is_told_with_the_budget_that_it_needs():
    machine = Machine()
    run(machine, budget=60)
    words = r"left no time for (\w+): (\S+) at batch (\d+), which needs one of (\d+) s"
    told = [re.search(words, note) for note in machine.notes]
    assert told and all(found and int(found[4]) > 60 for found in told)
    stage, config, needs = told[0][1], Config(told[0][2], int(told[0][3])), int(told[0][4])
    again = Machine()
    run(again, budget=needs + 1)
    assert any((row.stage, row.config) == (stage, config) for row in again.rows), "with that it is tried"


def test_compiled_forms_get_their_part_of_a_short_budget():
    machine = Machine(trial_s=8.0, compile_s=15.0)
    run(machine, budget=300)
    assert any(row.stage == "compile" for row in machine.rows)
    eager = sum(row.seconds for row in machine.rows if row.stage in ("arms", "switches", "batch"))
    assert eager <= 0.55 * 300 + 8 + 0.5 * 9


@pytest.mark.parametrize("dies_after", [1, 4, 9, 17, 22, 25])
def test_a_search_that_was_killed_goes_on_without_repeating_a_trial(dies_after):
    whole = Machine(seed=3)
    expected = run(whole, budget=400)
    cut = Machine(seed=3, dies_after=dies_after)
    with pytest.raises(KeyboardInterrupt):
        run(cut, budget=400)
    again = Machine(seed=3, earlier=list(cut.rows), earlier_gates=dict(cut.gates))
    outcome = run(again, budget=400)
    assert outcome.winner == expected.winner
    assert cut.num_run + again.num_run == whole.num_run
    assert again.rows == whole.rows


def test_the_latency_goal_keeps_within_its_limit():
    machine = Machine(noise=0.002)
    outcome = run(machine, mode="infer", objective="latency", p95_ms=6.0)
    best = estimates(machine.rows)[outcome.winner]
    assert best.p95_ms <= 6.0
    assert best.rate >= 0.9 * max(e.rate for e in estimates(machine.rows).values() if e.p95_ms <= 6.0)


def test_a_latency_that_nothing_reaches_is_no_winner():
    assert run(Machine(), mode="infer", objective="latency", p95_ms=1e-6).winner is None


def test_without_a_limit_the_latency_goal_takes_the_shortest_step():
    outcome = run(Machine(), mode="infer", objective="latency")
    assert outcome.winner.batch == 1


def test_the_memory_goal_takes_the_leanest_of_the_nearly_fastest():
    machine = Machine(noise=0.001)
    outcome = run(machine, objective="memory")
    known = estimates(machine.rows)
    fastest = max(e.rate for e in known.values())
    assert known[outcome.winner].rate >= 0.94 * fastest
    near = [e for e in known.values() if e.rate >= 0.96 * fastest]
    assert known[outcome.winner].peak_bytes <= min(e.peak_bytes for e in near)
    assert any(parse_arm(row.arm).recompute for row in machine.rows)


def test_a_given_batch_stays_and_given_arms_are_the_only_ones():
    machine = Machine()
    outcome = run(machine, batch=24, arms=("cuda", "cuda:bf16", "cuda:bf16+compile"))
    assert {row.batch for row in machine.rows} == {24}
    assert {row.arm for row in machine.rows} <= {"cuda", "cuda:bf16", "cuda:bf16+compile"}
    assert outcome.winner == Config("cuda:bf16+compile", 24)


def test_the_batch_never_passes_its_cap():
    machine = Machine()
    run(machine, max_batch=100)
    assert max(row.batch for row in machine.rows) == 100


def test_a_list_of_batches_is_the_only_one():
    sizes = (6, 10, 24, 50, 70, 200)
    machine = Machine()
    outcome = run(machine, batches=sizes)
    assert {row.batch for row in machine.rows} <= set(sizes) and outcome.winner.batch == 200
    small = Machine(fits=lambda arm, batch: batch <= 30)
    assert run(small, batches=sizes).winner.batch == 24
    with pytest.raises(UsageError, match="batches = 512, 900 are all above 40"):
        make_space(dataclasses.replace(CARD, num_samples=40), mode="train", batches=(512, 900))


def test_data_without_a_sample_is_refused():
    nothing = dataclasses.replace(CARD, num_samples=0)
    with pytest.raises(TargetError, match=f"train_data\\(\\) of '{CARD.name}' has 0 samples"):
        make_space(nothing, mode="train")
    assert make_space(nothing, mode="infer").batch == CARD.default_batch, "inference draws its own"


def test_of_a_long_list_the_sizes_halfway_to_the_next_doubling_are_tried():
    space = make_space(CARD, mode="train", batches=tuple(range(8, 200, 8)))
    assert space.around(128) == [96, 160] and space.around(192) == [144] and space.around(8) == []
    few = make_space(CARD, mode="train", batches=(16, 64, 256))
    assert few.around(64) == [], "between neighbours there is nothing"


@pytest.mark.parametrize(("overhead_ms", "smaller"), [(50.0, False), (0.0, True)])
def test_smaller_sizes_are_tried_unless_larger_ones_were_faster_by_far(overhead_ms, smaller):
    machine = Machine(noise=0.0, rate=functools.partial(true_rate, overhead_ms=overhead_ms))
    run(machine, graphs="off", compile_modes=())
    assert any(row.batch < 12 for row in machine.rows) == smaller


@pytest.mark.parametrize(
    ("mode", "sizes", "smallest"), [("infer", (), 1), ("infer", (4, 8, 64), 4), ("train", (), None)]
)
def test_the_curve_of_inference_begins_with_the_smallest_batch(mode, sizes, smallest):
    machine = Machine(seed=0, rate=functools.partial(true_rate, overhead_ms=20.0))
    outcome = run(machine, mode=mode, batches=sizes, compile_modes=())
    ran = {row.batch for row in machine.rows if row.arm == outcome.winner.arm}
    assert outcome.winner.batch > 8, "where launches are dear, no small batch is fast"
    assert smallest in ran if smallest else min(ran) > 8


def test_a_lead_that_one_lucky_process_gave_is_checked_and_lost():
    class Lucky(Machine):
        def _run(self, stage, config, rung, attempt, tail):
            row = super()._run(stage, config, rung, attempt, tail)
            luck = 2.0 if (config.batch, rung, tail) == (32, 0, 0) else 1.0
            return dataclasses.replace(row, wall_ms=[ms / luck for ms in row.wall_ms])

    outcome = run(Lucky(), graphs="off", compile_modes=(), batches=(16, 32, 64, 128))
    assert outcome.winner.batch == 128


def test_modes_of_compilation_can_be_left_out():
    def modes(*given):
        space = make_space(CARD, mode="train", graphs="off", compile_modes=given)
        return [form.compile for form in space.compile_forms(ArmSpec(device="cuda"))]

    assert modes("default", "max-autotune") == ["default", "max-autotune"] and modes() == []


def test_given_arms_are_grouped_as_the_device_s_own():
    names = ("cuda:bf16", "cuda:bf16+fused", "cuda:bf16+graph", "cuda:bf16+fused+graph", "cuda:tf32+fused")
    space = make_space(CARD, mode="train", arms=names)
    assert [arm.name for arm in space.firsts] == ["cuda:bf16", "cuda:tf32+fused"], "the last has no plainer form"
    assert [arm.name for arm in space.switched(space.firsts[0])] == ["cuda:bf16+fused"]
    assert [arm.name for arm in space.compile_forms(space.firsts[0])] == ["cuda:bf16+graph"]
    assert space.switched(space.firsts[1]) == [] and space.compile_forms(space.firsts[1]) == []


def test_the_data_cap_the_batch_of_a_training():
    machine = Machine()
    run(machine, about=dataclasses.replace(CARD, num_samples=40))
    assert max(row.batch for row in machine.rows) <= 40


@pytest.mark.parametrize("word", ["onnx", "aoti", "exported", "torchscript", "tuned"])
def test_arms_that_no_profile_can_hold_are_refused(word):
    with pytest.raises(UsageError, match=f"arm 'cpu:{word}': {word} "):
        make_space(CARD, mode="infer", arms=("cpu", f"cpu:{word}"))


def test_arms_of_two_devices_are_refused():
    with pytest.raises(UsageError, match="arms = cpu, cuda are of several devices"):
        make_space(CARD, mode="train", arms=("cpu", "cuda"))


def test_arms_of_another_device_than_the_one_asked_for_are_refused():
    with pytest.raises(UsageError, match="device = 'cuda:1', but arms = cuda, cuda:bf16 are of cuda:0"):
        make_space(CARD, mode="train", device="cuda:1", arms=("cuda", "cuda:bf16"))
    assert make_space(CARD, mode="train", device="cuda:1", arms=("cuda:1:bf16",)).firsts[0].index == 1


def test_recorded_steps_are_tried_unless_they_are_switched_off():
    def forms(mode, graphs):
        space = make_space(CARD, mode=mode, graphs=graphs)
        return any(form.graph for form in space.compile_forms(ArmSpec(device="cuda")))

    asked = [("train", "auto"), ("infer", "auto"), ("train", "on"), ("infer", "off"), ("train", "off")]
    assert [forms(mode, graphs) for mode, graphs in asked] == [True, True, True, False, False]


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.0, 0.02, 0.2]),
    limit=st.integers(0, 300),
    holes=st.sets(st.integers(1, 256), max_size=5),
    wrong=st.sets(st.sampled_from(["fp32", "tf32", "bf16", "fp16", "compile", "graph", "channels_last"])),
    bad=st.sampled_from(["ok", "crashed", "timed out", "failed"]),
    share=st.integers(2, 9),
    budget=st.sampled_from([20.0, 90.0, 300.0, 1e6]),
    objective=st.sampled_from(["throughput", "latency", "memory"]),
)
def test_what_is_returned_was_run_in_its_final_form_and_gated_green(
    seed, noise, limit, holes, wrong, bad, share, budget, objective
):
    def is_wrong(arm):
        return arm.precision in wrong or any(getattr(arm, w, False) for w in wrong if w not in ("fp32", "tf32"))

    def ends(config, rung):
        return bad if zlib.crc32(f"{seed} {config} {rung}".encode()) % share == 0 else "ok"

    machine = Machine(
        seed=seed, noise=noise, fits=lambda arm, batch: batch <= limit and batch not in holes, ends=ends, wrong=is_wrong
    )
    outcome = run(machine, budget=budget, objective=objective)
    if outcome.winner is None:
        return
    mine = [row for row in machine.rows if row.config == outcome.winner]
    assert any(row.ok and row.tail > 0 for row in mine), "it was run in its final form, tail included"
    assert any(row.ok and row.tail == 0 for row in mine)
    assert machine.gates[numeric_class(outcome.winner.arm)].passed
    assert not is_wrong(parse_arm(numeric_class(outcome.winner.arm)))
    assert outcome.confirmed in mine


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("5m", 300), ("1h", 3600), ("45", 45), ("1.5m", 90)])
def test_budgets_are_read(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0s", "-5m", "5d"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(ConfigError, match=f"budget = {text!r} is not a time"):
        parse_budget(text)


def test_rows_of_one_configuration_are_judged_by_the_median_of_their_processes():
    rows = [Row(stage="x", arm="cpu", batch=10, rung=r, wall_ms=[ms] * 3) for r, ms in enumerate((10.0, 20.0, 12.5))]
    found = estimate(rows)
    assert found.rate == pytest.approx(800.0)
    assert found.num_processes == 3 and found.spread == pytest.approx((1000 - 500) / 2 / 800)
    assert estimate([dataclasses.replace(rows[0], status="crashed")]) is None


def test_the_smallest_batch_of_a_plateau_is_preferred():
    def at(batch, rate):
        return estimate([Row(stage="x", arm="cpu", batch=batch, rung=0, wall_ms=[1e3 * batch / rate])])

    ranked = Goal("throughput").order([at(8, 700), at(32, 995), at(64, 1000), at(128, 980)])
    assert [one.config.batch for one in ranked] == [32, 64, 128, 8]


@pytest.mark.parametrize(
    ("known", "device", "words"),
    [
        ({"has_attention": True}, "cuda", {"sdpa=flash", "sdpa=efficient", "sdpa=cudnn", "cudnn_benchmark", "fused"}),
        ({"has_convolutions": False}, "cuda", {"fused"}),
        ({"usable_cores": 8}, "cpu", {"threads=4", "threads=2", "fused"}),
        ({"has_attention": True, "usable_cores": 2}, "cpu", {"sdpa=math", "threads=1", "fused"}),
        ({"has_convolutions": False, "can_keep_memory": True}, "cuda", {"fused"}),
    ],
)
def test_switches_are_those_that_can_matter_for_the_model_on_its_device(known, device, words):
    space = make_space(dataclasses.replace(CARD, **known), mode="train", device=device)
    assert {arm.name.partition(":")[2] for arm in space.switched(space.firsts[0])} == words


ON_CPU = dataclasses.replace(
    CARD,
    default_batch=64,
    num_cuda=0,
    has_convolutions=False,
    can_compile=False,
    can_keep_memory=True,
    fast_bf16=True,
    usable_cores=1,
)


def on_cpu(arm, batch, *, lucky=False):
    """Samples a second: bf16 is the slower one below batch 128, and fresh pages cost a third, but once."""
    rate = 1e3 * batch / (2.0 + 0.04 * batch) if arm.precision == "fp32" else 1e3 * batch / (4.0 + 0.02 * batch)
    return rate if arm.keep_memory or (lucky and batch == 64) else 0.65 * rate


def test_sizes_are_climbed_with_kept_memory_also_where_a_fresh_page_was_lucky():
    machine = Machine(noise=0.0, rate=functools.partial(on_cpu, lucky=True))
    outcome = run(machine, about=ON_CPU, batch=None, batches=(32, 64, 96, 192))
    climbed = {row.arm for row in machine.rows if row.stage == "batch"}
    assert climbed and all("keep_memory" in arm for arm in climbed)
    assert "bf16" in outcome.winner.arm and outcome.winner.batch == 192


def test_a_number_format_is_raced_again_where_the_leader_came_to_another_batch():
    fp32, bf16 = (ArmSpec(device="cpu", precision=p, keep_memory=True) for p in ("fp32", "bf16"))
    leader = dataclasses.replace(fp32, fused=True)
    rows = [row_of(arm, 96, on_cpu(arm, 96)) for arm in (fp32, bf16)]
    assert rival_of(rows, leader, [fp32, bf16], 96) == dataclasses.replace(bf16, fused=True)
    assert rival_of(rows, leader, [fp32, bf16], 64) is None, "nothing was raced there"
    assert rival_of([rows[0], row_of(bf16, 96, 0.7 * on_cpu(fp32, 96))], leader, [fp32, bf16], 96) is None


def row_of(arm, batch, rate):
    return Row(
        stage="arms", arm=arm.name, batch=batch, rung=0, attempt=0, seconds=1.0, at="", wall_ms=[1e3 * batch / rate] * 3
    )


def test_on_a_cpu_all_but_the_plain_arm_keep_memory_and_the_leader_is_tried_without():
    about = dataclasses.replace(CARD, can_keep_memory=True, fast_bf16=True, usable_cores=2)
    space = make_space(about, mode="train", device="cpu")
    kept = [
        "cpu:keep_memory",
        "cpu:channels_last+keep_memory",
        "cpu:bf16+keep_memory",
        "cpu:bf16+channels_last+keep_memory",
    ]
    assert [arm.name for arm in space.firsts] == ["cpu", *kept]
    assert {arm.name for arm in space.switched(space.firsts[3])} == {
        "cpu:bf16", "cpu:bf16+fused+keep_memory", "cpu:bf16+threads=1+keep_memory",
    }  # fmt: skip
    given = make_space(about, mode="train", arms=("cpu", "cpu:keep_memory", "cpu:fused", "cpu:fused+keep_memory"))
    assert [arm.name for arm in given.firsts] == ["cpu", "cpu:keep_memory"]


@pytest.mark.parametrize(
    ("has_kernels", "device", "tried"), [(True, "cuda", True), (False, "cuda", False), (True, "cpu", False)]
)
def test_kernels_are_tried_where_the_model_has_them_on_a_card(has_kernels, device, tried):
    space = make_space(dataclasses.replace(CARD, has_kernels=has_kernels), mode="train", device=device)
    arms = space.switched(space.firsts[0])
    assert any(arm.kernels for arm in arms) == tried
