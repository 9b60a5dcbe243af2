"""A case is measured in its ranks, and what they return becomes one record's metrics."""

import pytest

from lib.experiments import on_ranks
from lib.experiments.collectives import OPERATIONS, Collectives
from lib.instruments import peak_memory
from lib.parallel import ranks
from plain import measured


def collective(operation="all_reduce", world=2, megabytes=1.000006):
    return Collectives(operation, megabytes, world, "gloo", "cpu")


@pytest.fixture
def started(monkeypatch):
    """Say which worlds start and end, where none does; one of three ranks runs out of memory."""
    log = []

    class World:
        def __init__(self, *about):
            self.about = about
            log.append(("starts", *about))

        def run(self, function, within_s, **arguments):
            if self.about[0] == 3:
                raise ranks.RankFailed("rank 1: RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes")
            return [{"total_ms": [1.0]}]

        def close(self):
            log.append(("ends", *self.about))

    monkeypatch.setattr(on_ranks, "_worlds", {})
    monkeypatch.setattr(ranks, "World", World)
    return log


@pytest.mark.usefixtures("same_ranks")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_right_and_timed(operation):
    metrics = measured(collective(operation))
    assert metrics["out_error"] == [0.0]
    assert len(metrics["collective_ms"]) == len(metrics["total_ms"]) >= 3
    assert metrics["message_bytes"] == 1e6  # a share for each rank: not the last number


@pytest.mark.usefixtures("same_ranks")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_message_is_checked_in_numbers_that_differ_also_where_every_seventh_would_be(operation):
    # 500,000 numbers in 65,536 steps of seven; a reduce-scatter leaves half of them
    megabytes = 4 if operation == "reduce_scatter" else 2
    assert measured(collective(operation, megabytes=megabytes))["out_error"] == [0.0]


def test_ranks_stay_for_the_next_case_of_as_many_and_end_before_others_start(started):
    for world in (2, 2, 4):
        measured(collective(world=world))
    assert started == [("starts", 2, "gloo"), ("ends", 2, "gloo"), ("starts", 4, "gloo")]


def test_a_failed_rank_says_why_and_the_next_case_has_new_ranks(started):
    for _ in range(2):
        with pytest.raises(ranks.RankFailed) as failed:
            measured(collective(world=3))
        assert peak_memory.out_of_memory(failed.value)
    assert started == 2 * [("starts", 3, "gloo")]


def test_metrics_are_those_of_the_slowest_rank_and_tables_have_all_rows():
    of_ranks = [
        {"total_ms": [1.0, 5.0], "peak_mib": 3, "kernel": "ring", "timeline": {"rank": [0], "end_ms": [2.0]}},
        {"total_ms": [2.0, 4.0], "peak_mib": 4, "kernel": "ring", "timeline": {"rank": [1], "end_ms": [3.0]}},
    ]
    table = {"rank": [0, 1], "end_ms": [2.0, 3.0]}
    assert on_ranks.merge(of_ranks) == {"total_ms": [2.0, 5.0], "peak_mib": 4, "kernel": "ring", "timeline": table}
