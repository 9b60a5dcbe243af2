"""Lines through messages, and what they predict of a step on several ranks, are those of plain arithmetic."""

import math

import pandas as pd
import pytest

from lib.report import waits

KIND = {"operation": "all_reduce", "world": 2, "backend": "gloo"}
SIZES_MB = [1.0, 10.0, 100.0, 1000.0]
SAME = {"context_length": 128, "batch_size": 4, "precision": "fp32", "backend": "gloo", "device": "cpu"}
EVENTS = pd.DataFrame(
    [
        ("small", "forward", 0.0, 100.0), ("small", "backward", 100.0, 200.0), ("small", "all-gather", 20.0, 50.0),
        ("small", "all-gather", 0.0, 40.0), ("small", "all-gather", 5.0, 10.0), ("small", "all-gather", 90.0, 125.0),
    ],
    columns=["size", "part", "start_ms", "end_ms"],
)  # fmt: skip


def messages(times_ms, **kind):
    return pd.DataFrame({"message_bytes": [1e6 * mb for mb in SIZES_MB], "total_ms": times_ms, **KIND, **kind})


def test_a_line_of_latency_and_bandwidth_is_found_and_predicts_each_size_from_the_others():
    # 0.5 ms a call and 2 GB/s, in any order
    exact = messages([0.5 + mb / 2 for mb in SIZES_MB])
    fitted = waits.fit_lines(exact[::-1])
    assert fitted["latency_ms"].tolist() == pytest.approx([0.5] * 4)
    assert fitted["fit_gbs"].tolist() == pytest.approx([2.0] * 4)
    assert fitted["fit_ms"].tolist() == pytest.approx(fitted["total_ms"].tolist())
    # neither the smallest nor the largest is between others
    assert fitted["predicted_ms"].isna().tolist() == [True, False, False, True]
    assert fitted["largest_error_percent"].max() == pytest.approx(0.0, abs=1e-6)


def test_times_that_do_not_grow_with_the_size_have_no_line():
    fitted = waits.fit_lines(messages([4.0, 3.0, 2.0, 1.0]))
    assert fitted[["latency_ms", "mb_ms", "fit_gbs", "fit_ms"]].isna().all(axis=None)
    assert waits.fit_lines(messages([1.0] * 4)[:0]).empty


def rows(*several, **fields):
    ends = {f"{name}_{end}": math.nan for name in ("total_ms", "wait_ms") for end in ("low", "high")}
    row = {"size": "small", "rounds": 1, "world": 2, "bucket_mib": 0, "parameters": 1e6, **SAME, **ends, **fields}
    return pd.DataFrame([row | own | {"way": own["variant"]} for own in several])


def test_steps_of_replicas_are_told_beside_one_process_on_the_same_batch():
    measured = rows(
        {"variant": "plain", "world": 1, "total_ms": 4.0, "optimizer_ms": 1.0},
        {"variant": "plain", "world": 1, "total_ms": 9.0, "batch_size": 8},
        {"variant": "flat", "total_ms": 6.0}, {"variant": "naive", "total_ms": math.nan},
        {"variant": "fsdp", "total_ms": 5.0},
    )  # fmt: skip
    steps = waits.choose_steps(measured)
    assert steps["way"].tolist() == ["one process", "flat"]
    assert steps.loc[1, ["one_ms", "one_optimizer_ms", "is_told"]].tolist() == [4.0, 1.0, True]
    # what shards is told where nothing else is
    assert waits.choose_steps(measured.query("variant != 'flat'"))["way"].tolist() == ["one process", "fsdp"]
    assert waits.choose_steps(measured.query("world == 1")).empty


def test_a_step_is_the_work_the_optimizer_of_each_other_rank_and_what_is_left_of_messages():
    sent = {"messages": 3, "largest_message_mib": 1.0, "one_optimizer_ms": 2.0}
    sent |= {"one_ms": 10.0, "one_ms_low": 9.0, "one_ms_high": None}
    steps = rows({"variant": "naive"}, {"variant": "bucketed"}, {"variant": "sharded"}, **sent)
    reduces = waits.fit_lines(messages([0.5 + mb / 2 for mb in SIZES_MB]))
    naive, bucketed = waits.predict_steps(steps, reduces).itertuples()
    # 4 MB of gradients; the largest message has 2 ** 20 bytes
    assert naive.predicted_wait_ms == pytest.approx(3 * 0.5 + 4 / 2)
    assert bucketed.predicted_wait_ms == pytest.approx(3 * 0.5 + 2**20 / 1e6 / 2)
    assert naive.predicted_step_ms == pytest.approx(12.0 + naive.predicted_wait_ms)
    # the prediction is no surer than the step of one process
    assert naive.predicted_step_ms - naive.predicted_step_ms_low == pytest.approx(1.0)
    assert naive.predicted_step_ms == naive.predicted_step_ms_high
    assert naive.best_mb == pytest.approx(math.sqrt(4 * 2 * 0.5))
    (on_gpu, _) = waits.predict_steps(steps.assign(device="cuda"), reduces).itertuples()
    assert on_gpu.predicted_step_ms == pytest.approx(6.0 + naive.predicted_wait_ms)
    assert waits.predict_steps(steps, reduces[:0])["predicted_step_ms"].isna().all()


def test_only_intervals_apart_from_a_prediction_are_told_as_others():
    sent = rows(
        {"variant": "naive", "total_ms_low": 5.0, "total_ms_high": 7.0, "wait_ms_low": 3.0, "wait_ms_high": 4.0},
        {"variant": "flat", "total_ms_low": 7.0, "total_ms_high": 9.0, "wait_ms_low": 1.5, "wait_ms_high": 3.0},
        total_ms=8.0, predicted_step_ms=6.0, predicted_wait_ms=2.0,
    )  # fmt: skip
    assert waits.compare(sent).tolist() == ["wait longer", "step later"]
    assert waits.judge(sent) == "Of 2 steps: 1 wait longer, 1 step later."
    # what is wide holds anything
    wide = sent.assign(total_ms_low=2.0, total_ms_high=9.0, wait_ms_low=1.0, wait_ms_high=3.0)
    assert waits.compare(wide).tolist() == ["wait undecided, step undecided"] * 2
    assert waits.compare(wide.assign(total_ms_low=5.0)).tolist() == ["wait undecided"] * 2
    assert waits.judge(wide).startswith("Of 2 steps: 2 wait undecided and step undecided. Undecided: an interval ")
    unknown = rows({"variant": "naive"}, predicted_step_ms=1, predicted_wait_ms=1)
    assert waits.judge(unknown) == waits.compare(unknown).sum() == ""


def test_buckets_differ_where_two_lie_apart():
    ends = [{"total_ms_low": 3.0, "total_ms_high": 4.0}, {"total_ms_low": 5.0, "total_ms_high": 6.0}]
    sent = rows(*[{"variant": "bucketed"} | own for own in ends], best_mb=3.1)
    assert (
        "in small 3.1 MB, where the largest one has 30.7 (2 sizes were timed: their steps differ clearly)"
        in waits.judge_buckets(sent)
    )
    assert "do not" not in waits.judge_buckets(sent[:1])
    assert waits.judge_buckets(sent[:0]) == ""


def test_weights_come_late_where_the_forward_pass_takes_longer_than_with_all_weights():
    gathers = waits.fit_lines(messages([0.5 + mb / 2 for mb in SIZES_MB], operation="all_gather"))
    bucketed = {"variant": "bucketed", "forward_ms": 40.0, "forward_ms_low": 39.0, "forward_ms_high": 41.0}
    fsdp = {"variant": "fsdp", "forward_ms": 60.0, "forward_ms_low": 58.0, "forward_ms_high": 62.0}
    # 86 calls of 0.5 ms, and 4 MB at 2 GB/s
    assert waits.tell_gathers(rows(bucketed, fsdp), gathers, EVENTS) == (
        "In small 86 gathers should take 45 ms by the line of all-gathers, too long to hide behind a forward pass "
        "of 40.0 (39.0 to 41.0) ms; by fsdp it takes 60.0 (58.0 to 62.0) ms, in 60% of which gathers are under way, so "
        "messages probably take its cores."
    )
    long = bucketed | {"forward_ms": 30.0, "forward_ms_high": 31.0}
    assert waits.tell_gathers(rows(long, fsdp), gathers, EVENTS).endswith("so weights come late.")
    near = waits.tell_gathers(rows(bucketed, fsdp | {"forward_ms_low": 30.0}), gathers, EVENTS[:0])
    assert near.endswith(") ms, so no delay is proven.")
    assert waits.tell_gathers(rows(bucketed), gathers, EVENTS) == waits.tell_gathers(rows(fsdp), gathers, EVENTS) == ""


def test_messages_that_overlap_cover_a_phase_once():
    assert waits.cover_percent(EVENTS, "all-gather", "forward") == pytest.approx(60)
    assert waits.cover_percent(EVENTS, "all-gather", "backward") == pytest.approx(25)
    assert waits.cover_percent(EVENTS, "all-reduce", "forward") == 0
