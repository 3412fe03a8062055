"""The choice, from made-up rates: the smallest that keeps up, what is refused, and honest words when none does."""

from __future__ import annotations

import math

import pytest

from hotlap.base.errors import DataError, LoaderDied
from hotlap.engine.loader_choice import (
    APART,
    Limits,
    Row,
    Speed,
    candidates,
    choose,
    consumption_of,
    keeps_up,
    read_limits,
    refusal,
    training_rate,
    worker_counts,
)
from hotlap.engine.loader_search import search
from hotlap.engine.loader_settings import LoaderSettings

MIB = 2**20
ROOMY = Limits(cpus=8, shm_bytes=64 * 2**30, memory_bytes=64 * 2**30)


def speed(rate, *, batch_bytes=MIB, worker_bytes=50 * MIB, start_s=0.1, num_samples=100_000):
    return Speed(
        rates=[rate] * 3, start_s=start_s, batch_bytes=batch_bytes, worker_bytes=worker_bytes, num_samples=num_samples
    )


def row(workers, prefetch, rate, **rest):
    settings = LoaderSettings(num_workers=workers, prefetch_factor=prefetch)
    return Row(settings=settings, rate=rate, low=rate, high=rate, speed=speed(rate, **rest))


def found(rates, limits=ROOMY, consumption=100.0, *, full=False, workers=(0, 1, 2, 4), **sizes):
    """A search in which each pair of workers and prefetch has the rate that ``rates`` gives."""

    def measure(settings):
        rate = rates(settings)
        if isinstance(rate, Exception):
            raise rate
        return speed(rate, **sizes)

    return list(search(candidates(workers), measure, limits, consumption=consumption, full=full))


def tried(rows):
    return [(r.settings.num_workers, r.settings.prefetch_factor) for r in rows]


@pytest.mark.parametrize(
    ("cpus", "counts"),
    [
        (1, [0, 1]),
        (2, [0, 1, 2]),
        (5, [0, 1, 2, 3, 4]),
        (8, [0, 1, 2, 3, 4, 6, 8]),
        (20, [0, 1, 2, 3, 4, 6, 8, 12, 16]),
        (64, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]),
    ],
)
def test_workers_to_try_end_at_the_cpus(cpus, counts):
    assert worker_counts(cpus) == counts


def test_settings_are_tried_from_cheap_to_dear_and_pinned_only_for_a_card():
    tries = candidates([2, 0, 1], prefetches=(4, 2))
    assert [(s.num_workers, s.prefetch_factor) for s in tries] == [(0, None), (1, 2), (1, 4), (2, 2), (2, 4)]
    assert not any(s.pin_memory for s in tries)
    assert all(s.pin_memory for s in candidates([0, 1], pin_memory=True))


MANY = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@pytest.mark.parametrize(
    ("rates", "order"),
    [
        (lambda n: 50 * max(1, n), [(0, None), (3, 2), (2, 2), (2, 4)]),  # as expected from one process alone
        (lambda n: 30 * n or 50, [(0, None), (3, 2), (4, 2)]),  # a worker is slower than that
        (lambda n: 200 * n or 15, [(0, None), (8, 2), (1, 2)]),  # or much faster
        (lambda n: min(90, 60 * n) or 60, [(0, None), (2, 2), (3, 2), (1, 2), (2, 4)]),  # or more of them are no faster
    ],
)
def test_the_search_goes_where_enough_workers_are_expected_and_ends_with_the_fewest(rates, order):
    rows = found(lambda s: rates(s.num_workers), workers=MANY)
    assert tried(rows) == order
    assert len(found(lambda s: rates(s.num_workers), workers=MANY, full=True)) == 17


def test_what_the_search_chooses_is_what_all_settings_would_have_given():
    for each in (7.0, 13.0, 31.0, 77.0, 130.0):
        for most in (100.0, 119.0, 300.0):

            def rate(s, each=each, most=most):
                return min(each * (s.num_workers or 1), most) * (1.1 if s.prefetch_factor == 4 else 1.0)

            few, all_of_them = found(rate, workers=MANY), found(rate, workers=MANY, full=True)
            best, chosen = choose(all_of_them, 100.0), choose(few, 100.0)
            assert chosen.settings.num_workers <= best.settings.num_workers or not best.enough
            assert chosen.enough == best.enough and len(few) < len(all_of_them) / 2


def test_where_none_keeps_up_fewer_workers_are_tried_as_long_as_they_are_faster():
    rows = found(lambda s: {8: 70, 12: 60, 16: 50}.get(s.num_workers, 1 + s.num_workers), workers=MANY)
    assert tried(rows) == [(0, None), (16, 2), (12, 2), (8, 2), (6, 2), (8, 4)]
    assert choose(rows, 100.0).settings.num_workers == 8


def test_the_smallest_that_reaches_the_headroom_is_chosen_not_the_fastest():
    rows = [row(0, None, 90), row(1, 2, 119), row(1, 4, 121), row(2, 2, 200), row(4, 4, 900)]
    choice = choose(rows, 100.0)
    assert choice.enough and tried([choice.chosen]) == [(1, 4)]
    assert choice.headline == "1 worker, prefetch 4: 121 samples/s, 1.21x what the model consumes"
    assert [r.chosen for r in choice.rows] == [False, False, True, False, False]
    assert choice.lines[:2] == [
        "Without workers every step would take 111% longer.",
        "Fewer workers or batches ahead deliver less than 1.2 times the consumption.",
    ]
    assert tried([choose(rows, 100.0, headroom=1.5).chosen]) == [(2, 2)]
    assert choose(rows[::4], 100.0).lines == ["Without workers every step would take 111% longer.", APART]


def test_without_workers_a_step_waits_so_more_is_asked_of_it():
    none, one = LoaderSettings(), LoaderSettings(num_workers=1)
    assert keeps_up(one, 120, 100) and not keeps_up(one, 119, 100)
    assert keeps_up(none, 1000, 100) and not keeps_up(none, 999, 100)
    assert training_rate(one, 150, 100) == 100 and training_rate(one, 50, 100) == 50
    assert training_rate(none, 100, 100) == pytest.approx(50)


def test_what_lies_in_memory_needs_no_workers_and_it_says_so():
    choice = choose(found(lambda s: 5000), 100.0)
    assert choice.settings == LoaderSettings()
    assert choice.headline.startswith("no workers: 5,000 samples/s, 50.0x what")
    assert "takes 2.0% of a step's time; workers can gain no more" in choice.lines[0]


def test_when_none_keeps_up_the_fastest_training_is_chosen_and_the_loader_named():
    rates = {0: 60, 1: 40, 2: 75, 4: 70}
    choice = choose(found(lambda s: rates[s.num_workers]), 100.0)
    assert not choice.enough and tried([choice.chosen]) == [(2, 2)]
    assert "0.750x what the model consumes; the loader is the bottleneck" in choice.headline
    assert choice.lines[:2] == [
        "With it, training reaches at most about 75% of the speed the model could have.",
        APART,
    ]
    assert "More workers are no faster" in choice.lines[2]


def test_a_rate_measured_alone_is_told_as_an_upper_bound_wherever_workers_take_cores_from_the_training():
    assert APART in choose([row(0, None, 90), row(2, 2, 900)], 100.0).lines, "also where it keeps up"
    assert "may get less" in APART and "'hotlap train'" in APART
    alone = choose([row(0, None, 100), row(2, 2, 20)], 100.0)
    assert "at most about 50%" in alone.lines[0] and APART not in alone.lines
    assert APART not in choose([row(0, None, 5000)], 100.0).lines


def test_a_rate_between_consumption_and_headroom_is_told_as_that():
    choice = choose([row(0, None, 90), row(1, 2, 110)], 100.0)
    assert not choice.enough and choice.settings.num_workers == 1
    assert "1.10x what the model consumes; any unevenness makes the loader the bottleneck" in choice.headline


def test_more_cpus_are_advised_only_where_more_workers_were_faster():
    choice = choose(found(lambda s: 10 + 10 * s.num_workers), 100.0)
    assert tried([choice.chosen]) == [(4, 2)]
    assert "more CPUs would help" in " ".join(choice.lines)


def test_alone_the_trainer_s_process_may_be_the_faster_training_though_it_loads_more_slowly():
    choice = choose([row(0, None, 400), row(1, 2, 70)], 100.0)
    assert choice.settings.num_workers == 0, "80 samples/s together, against 70"


@pytest.mark.parametrize(("start_s", "kept"), [(0.1, False), (20.0, True)])
def test_workers_are_kept_between_epochs_where_starting_them_costs(start_s, kept):
    choice = choose([row(1, 2, 150, start_s=start_s)], 100.0)
    assert choice.settings.persistent_workers == kept
    assert choice.settings.dataloader_arguments()["persistent_workers"] == kept
    assert any("kept between epochs" in text for text in choice.lines) == kept


def test_batches_that_would_fill_shared_memory_are_refused():
    settings = LoaderSettings(num_workers=2, prefetch_factor=2)
    small = Limits(cpus=8, shm_bytes=64 * MIB)
    assert refusal(settings, small, batch_bytes=8 * MIB, worker_bytes=0) == ""
    why = refusal(settings, small, batch_bytes=9 * MIB, worker_bytes=0)
    assert why == "4 batches of 9.00 MiB on their way are more than half of the 64.0 MiB free in /dev/shm"
    assert refusal(LoaderSettings(), Limits(cpus=1, shm_bytes=0), batch_bytes=MIB, worker_bytes=MIB) == ""


def test_workers_that_would_take_the_last_memory_are_refused():
    settings = LoaderSettings(num_workers=3)
    limits = Limits(cpus=8, memory_bytes=1000 * MIB)
    assert refusal(settings, limits, batch_bytes=0, worker_bytes=260 * MIB) == ""
    why = refusal(settings, limits, batch_bytes=10 * MIB, worker_bytes=260 * MIB)
    assert "3 workers of 260 MiB and 6 batches of 10.0 MiB" in why and "1,000 MiB of memory left" in why


def test_the_search_refuses_by_what_it_has_measured_and_goes_on():
    limits = Limits(cpus=8, shm_bytes=50 * MIB, memory_bytes=64 * 2**30)
    rows = found(lambda s: 50, limits, batch_bytes=8 * MIB)
    assert tried(rows) == [(0, None), (4, 2), (2, 2), (1, 2), (1, 4)]
    assert tried([row for row in rows if not row.refused]) == [(0, None), (1, 2)]
    assert all("/dev/shm" in row.refused and row.rate is None for row in (rows[1], rows[2], rows[4]))
    choice = choose(rows, 100.0)
    assert "Settings were refused" in " ".join(choice.lines)


def test_a_full_shared_memory_leaves_the_trainer_s_own_process():
    rows = found(lambda s: 50, Limits(cpus=8, shm_bytes=0), consumption=100.0)
    assert tried(rows) == [(0, None), (4, 2), (2, 2), (1, 2)] and all(row.refused for row in rows[1:])
    assert choose(rows, 100.0).settings.num_workers == 0


def test_a_setting_whose_worker_dies_is_a_refused_row():
    rows = found(lambda s: LoaderDied("a worker died of SIGBUS") if s.num_workers == 1 else 500)
    assert rows[1].refused == "failed: a worker died of SIGBUS"
    assert tried([choose(rows, 100.0).chosen]) == [(2, 2)]


def test_what_is_wrong_with_the_data_itself_is_raised():
    with pytest.raises(DataError, match="sample 3 is torn"):
        found(lambda s: DataError("sample 3 is torn"))


def test_consumption_is_samples_a_second():
    assert consumption_of(64, 20.0) == pytest.approx(3200)
    assert consumption_of(64, 0.0) == math.inf


def test_the_limits_of_this_machine_can_be_read():
    limits = read_limits()
    assert limits.cpus >= 1
    assert limits.shm_bytes is None or limits.shm_bytes >= 0
