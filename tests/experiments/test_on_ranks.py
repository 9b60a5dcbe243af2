"""A case is measured in its ranks, and what they find becomes one record's metrics."""

import pytest

from lib import timing
from lib.experiments import cases, measure, on_ranks
from lib.instruments import environment, peak_memory
from lib.parallel import ranks
from lib.records import results

ALL_REDUCE = {"operation": "all_reduce", "megabytes": 1.000006, "world": 2, "backend": "gloo", "device": "cpu"}


def measured(**fields) -> dict:
    (case,) = cases.grid("collectives", **ALL_REDUCE | fields)
    return on_ranks.measured(measure.Recording(case, 0), timing.Plan(1, 3), 0, 1)


@pytest.fixture
def started(monkeypatch):
    """Say which worlds start and end, where none does."""
    log = []

    class World:
        def __init__(self, *about):
            self.about = about
            log.append(("starts", *about))

        def run(self, function, within_s, round, **_):
            assert within_s == on_ranks.ANSWER_S
            if round:
                raise ranks.RankFailed("rank 1: ended with code -9")
            return [{"total_ms": [1.0]}]

        def close(self):
            log.append(("ends", *self.about))

    monkeypatch.setattr(on_ranks, "_worlds", {})
    monkeypatch.setattr(ranks, "World", World)
    return log


@pytest.mark.usefixtures("same_ranks")
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_every_operation_is_right_and_timed(operation):
    metrics = measured(operation=operation)
    assert metrics["out_error"] == [0.0]
    assert len(metrics["collective_ms"]) == len(metrics["total_ms"]) == 3
    assert metrics["oversubscribed"] == (environment.cores() < 2)
    assert metrics["message_bytes"] == 1e6  # a share for each rank: not the last number


def test_ranks_stay_for_the_next_case_of_as_many_and_end_before_others_start(started):
    for world in (2, 2, 3):
        measured(world=world)
    assert started == [("starts", 2, "gloo"), ("ends", 2, "gloo"), ("starts", 3, "gloo")]


def test_a_failed_rank_is_a_row_of_the_sweep_and_the_next_case_has_new_ones(started, own_results, monkeypatch):
    monkeypatch.setenv("SWEEP_RUN", "1")
    (case,) = cases.grid("collectives", **ALL_REDUCE)
    with measure.recording(case, 1) as record:
        on_ranks.measured(record, timing.Plan(1, 3), 0, 1)
    row = results.read(measure.record_path(case, 1))
    assert (row["status"], row["metrics"]) == ("failed", {"reason": "RankFailed: rank 1: ended with code -9"})
    measured()
    assert started == 2 * [("starts", 2, "gloo")]


def test_what_does_not_fit_in_memory_with_all_ranks_is_not_started(started, monkeypatch):
    monkeypatch.setattr(peak_memory, "most_bytes", lambda _: 10**9)
    with pytest.raises(peak_memory.TooLarge):
        measured()
    assert not started


def test_metrics_are_those_of_the_slowest_rank_and_tables_have_all_rows():
    ranks = [
        {"total_ms": [1.0, 5.0], "peak_mib": 3, "kernel": "ring", "timeline": {"rank": [0], "end_ms": [2.0]}},
        {"total_ms": [2.0, 4.0], "peak_mib": 4, "kernel": "ring", "timeline": {"rank": [1], "end_ms": [3.0]}},
    ]
    assert on_ranks.merged(ranks) == {
        "total_ms": [2.0, 5.0], "peak_mib": 4, "kernel": "ring", "timeline": {"rank": [0, 1], "end_ms": [2.0, 3.0]},
    }  # fmt: skip


def test_a_world_of_one_is_refused():
    with pytest.raises(ValueError, match="world: got 1, expected at least 2"):
        cases.grid("collectives", **ALL_REDUCE | {"world": 1})
