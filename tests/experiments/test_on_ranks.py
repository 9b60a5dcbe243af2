"""A case is measured in its ranks, and what they find becomes one record's metrics."""

import signal

import pytest

from lib import timing
from lib.experiments import cases, measure, on_ranks
from lib.instruments import environment, peak_memory
from lib.records import results

ALL_REDUCE = {"operation": "all_reduce", "megabytes": 1, "world": 2, "backend": "gloo", "device": "cpu"}


@pytest.fixture(autouse=True, scope="module")
def _own_ranks():
    """The ranks of other tests stay as they are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_ranks, "_worlds", {})
        yield
        on_ranks.close()


def measured(**fields) -> dict:
    (case,) = cases.grid("collectives", **ALL_REDUCE | fields)
    return on_ranks.measured(measure.Recording(case, 0), timing.Plan(1, 3), 0, 1)


def test_every_operation_is_right_and_timed_by_ranks_that_stay_for_the_next_case_of_as_many():
    used = []
    for world, operations in ((3, ["all_reduce"]), (2, ["all_reduce", "all_gather", "reduce_scatter"])):
        for operation in operations:
            metrics = measured(operation=operation, world=world)
            assert metrics["out_error"] == [0.0]
            assert len(metrics["collective_ms"]) == len(metrics["total_ms"]) == 3
            assert metrics["oversubscribed"] == (world > environment.cores())
            assert 1e6 - 4 * world < metrics["message_bytes"] <= 1e6
            used += on_ranks._worlds.values()
            assert list(on_ranks._worlds) == [(world, "gloo")]
    assert used[1:] == 3 * used[1:2]
    assert all(process.poll() is not None for process in used[0].ranks)


@pytest.mark.usefixtures("own_results")
@pytest.mark.parametrize(
    ("sent", "reason"),
    [(signal.SIGKILL, "RankFailed: rank 1: ended with code -9"), (signal.SIGSTOP, "RankFailed: no answer from rank")],
    ids=["dies", "hangs"],
)
def test_a_rank_that_dies_or_hangs_is_a_row_of_the_sweep_and_leaves_no_process(monkeypatch, sent, reason):
    measured()  # also after ranks of another test have failed
    ranks = on_ranks._worlds[2, "gloo"].ranks
    monkeypatch.setenv("SWEEP_RUN", "1")
    monkeypatch.setattr(on_ranks, "ANSWER_S", 2)
    ranks[1].send_signal(sent)
    (case,) = cases.grid("collectives", **ALL_REDUCE)
    with measure.recording(case, 1) as record:
        on_ranks.measured(record, timing.Plan(1, 3), 0, 1)
    row = results.read(measure.record_path(case, 1))
    assert row["status"] == "failed"
    assert row["metrics"]["reason"].startswith(reason)
    assert all(process.poll() is not None for process in ranks)


def test_what_does_not_fit_in_memory_with_all_ranks_is_not_started(monkeypatch):
    monkeypatch.setattr(peak_memory, "most_bytes", lambda _: 10**9)
    monkeypatch.setattr(on_ranks, "_worlds", {})
    with pytest.raises(peak_memory.TooLarge):
        measured()
    assert not on_ranks._worlds


def test_metrics_are_those_of_the_slowest_rank_and_tables_have_all_rows():
    ranks = [
        {"total_ms": [1.0, 5.0], "peak_mib": 3, "kernel": "ring", "timeline": {"rank": [0], "end_ms": [2.0]}},
        {"total_ms": [2.0, 4.0], "peak_mib": 4, "kernel": "ring", "timeline": {"rank": [1], "end_ms": [3.0]}},
    ]
    assert on_ranks.merged(ranks) == {
        "total_ms": [2.0, 5.0], "peak_mib": 4, "kernel": "ring", "timeline": {"rank": [0, 1], "end_ms": [2.0, 3.0]},
    }  # fmt: skip


def test_a_world_of_one_and_an_unknown_backend_are_refused():
    with pytest.raises(ValueError, match="world: got 1, expected at least 2"):
        cases.grid("collectives", **ALL_REDUCE | {"world": 1})
    with pytest.raises(ValueError, match=r"backend: got 'glue'.*gloo"):
        cases.grid("collectives", **ALL_REDUCE | {"backend": "glue"})
