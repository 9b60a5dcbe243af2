"""The chapter tells what several ranks cost, and its accounting agrees with what they hold and with write-ups."""

import math

import pytest

from lib.chapters import parallel
from lib.cost.flops import model_shape
from lib.parallel import accounting
from lib.parallel.accounting import Network
from lib.records import results
from lib.stats.intervals import Interval

MIB = 2**20
CASE = {"size": "tiny", "context_length": 128, "batch_size": 4}
RANKS = {"world": 2, "backend": "gloo"}
TIMES = {"naive": 90.0, "flat": 85.0, "overlap": 78.0, "bucketed": 75.0, "torch": 76.0}


@pytest.fixture
def steps(save_record):
    """Three processes' data parallel steps, of which the naive and flat ones hide nothing."""
    for variant, bucket in [*zip(TIMES, [25] * 3 + [1, 25], strict=True), ("bucketed", 100)]:
        slower = TIMES[variant] + 5 * (bucket == 100)
        case = CASE | {"variant": variant, "bucket_mib": bucket} | RANKS | {"precision": "fp32", "device": "cpu"}
        phases = {"forward_ms": 20.0, "backward_ms": 30.0, "optimizer_ms": 12.0, "alone_ms": 16.0}
        phases["synchronization_ms"] = 16.0 if variant in ("naive", "flat") else 4.0
        spans = {
            "rank": [0, 0, 0, 1, 1, 1], "part": ["forward", "backward", "all-reduce"] * 2,
            "start_ms": [0.1, 20.0, 30.0] * 2, "end_ms": [20.0, 50.0, 60.0] * 2,
        }  # fmt: skip
        for round in (1, 2, 3):
            own = [slower * (1 + 2e-4 * len(variant) * (round - 2)) + 1e-2 * number for number in range(-3, 5)]
            base = [TIMES["torch"] + 1e-2 * (number % round) for number in range(8)]
            pairs = {} if variant == "torch" else {"paired_ms": own, "baseline_ms": base}
            metrics = {name: [ms] * 8 for name, ms in phases.items()} | pairs
            save_record("ddp", case, round, total_ms=own, timeline=spans, **metrics)
    return results.load("ddp", "test-1c")


@pytest.fixture
def held(save_record):
    """Memory of ranks that hold 1% more of each kind than the accounting says."""

    def held(*variants, **ranks):
        for experiment, variant in variants:
            scheme = {"torch": experiment}.get(variant, variant)
            parts = accounting.state_bytes(scheme, model_shape("tiny", 128), (RANKS | ranks)["world"])
            kinds = {f"after_{kind}_mib": [1.01 * size / MIB] for kind, size in parts.items()}
            precision = {"precision": "fp32"} if experiment == "fsdp" else {}
            case = CASE | {"variant": variant} | RANKS | ranks | precision | {"device": "cpu"}
            whole = [1.01 * sum(parts.values()) / MIB + 2]
            save_record(experiment, case, total_ms=[80.0] * 6, after_step_mib=whole, after_other_mib=[2.0], **kinds)
        return parallel.held(results.load("sharded", "test-1c"), results.load("fsdp", "test-1c"))

    return held


def test_the_head_is_the_largest_case_that_has_the_most_variants_each_with_its_fastest_bucket(steps, save_record):
    for variant in ("overlap", "torch"):
        case = CASE | {"size": "small", "variant": variant, "bucket_mib": 25} | RANKS | {"world": 4}
        save_record("ddp", case | {"precision": "fp32", "device": "cpu"}, total_ms=[500.0] * 8)
    found = parallel.headline_rows(parallel.steps(results.load("ddp", "test-1c"))).set_index("variant")
    assert set(found.index) == set(TIMES)
    assert (set(found["size"]), set(found["world"])) == ({"tiny"}, {2})
    assert found.loc["bucketed", "bucket_mib"] == 1
    assert found.loc["naive", "hidden_percent"] is None
    assert found.loc["bucketed", "hidden_percent"].value == pytest.approx(75)


def test_what_a_step_hides_lies_within_the_whole_and_has_the_error_of_its_times():
    times = {"alone_ms": 16.0, "backward_ms": 40.0, "synchronization_ms": 2.0}
    row = {name: Interval(ms, 0.9 * ms, 1.1 * ms, 9, 3) for name, ms in times.items()} | {"variant": "bucketed"}
    hidden, none = (parallel._hidden(row, Interval(ms, ms - 1, ms + 1, 9, 3)) for ms in (38.0, 20.0))
    assert (hidden.value, hidden.high) == (75, 100)
    assert 45 < hidden.low < 50
    assert (none.low, none.value) == (0, 0)


def test_the_answer_names_the_fastest_and_compares_it(steps):
    said = parallel.answer(steps, parallel.steps(steps))
    assert "A step of tiny (4 × 128 tokens in all) on 2 ranks by gloo takes " in said.text
    assert "with buckets of 1 MiB, the least median of our variants. Its all-reduces alone take 16.00 ms" in said.text
    assert "% of that. Bucketed is 1.20" in said.text
    assert "torch's own" in said.text
    assert "faster" in said.verdict


def test_a_timeline_has_the_spans_of_both_ranks_of_each_variant(steps, closed_figures):
    spans = parallel.timelines(steps, parallel.steps(steps))
    ax = parallel.draw_timelines(spans)
    assert len(ax.patches) == len(spans) == 6 * len(TIMES)
    assert {text.get_text() for text in ax.figure.legends[0].texts} == {"forward", "backward", "all-reduce"}
    assert parallel.note(spans) == "a test. One step of each on 2 ranks."


def test_what_a_rank_holds_stands_beside_the_accounting(held, closed_figures):
    sharded, fsdp = (("plain", "sharded", "torch"), ("plain", "fsdp", "torch"))
    held(("sharded", "plain"), backend="nccl")  # of two backends the first counts
    table = held(*(("sharded", variant) for variant in sharded), *(("fsdp", variant) for variant in fsdp))
    assert list(table["label"]) == ["plain", "sharded", "torch's sharded", "fsdp", "torch's fsdp"]
    whole = 16 * model_shape("tiny", 128).parameters / MIB
    assert list(table["formula_mib"]) == pytest.approx(
        [whole, 0.75 * whole, 0.75 * whole, whole / 2, whole / 2], rel=1e-4
    )
    assert list(table["error_percent"]) == pytest.approx([100 * (1 / 1.01 - 1)] * 5)
    said = parallel.memory(table, results.load("sharded", "test-1c"))
    assert said.text.startswith("After a step of tiny on 2 ranks, each holds ")
    assert said.text.endswith("the formula predicts their parameters, gradients and states to within 1.00%.")
    assert said.records
    bars = parallel.draw_held(table)
    assert [text.get_text() for text in bars.get_yticklabels()][:2] == ["plain", "plain, by formula"]
    largest = held(("sharded", "sharded"), ("fsdp", "fsdp"), world=4)
    assert set(largest["world"]) == {4}, "all is told of one case, the largest"
    assert "on 4 ranks, each holds " in parallel.memory(largest).text


def test_xxl_is_answered_beside_two_write_ups():
    table = parallel.xxl()
    found = dict(zip(table["asked"], table["by accounting"], strict=True))
    assert found["tokens a device, X = 16, Y = 4, weights and activations at once"] == "319"
    assert found["the same on all devices together"] == "20,444"
    for _, row in table.iterrows():
        for name in filter(row.get, parallel.WRITE_UPS):
            ours, theirs = (float(row[key].replace(",", "")) for key in ("by accounting", name))
            assert ours == pytest.approx(theirs, rel=0.005)


def test_the_batch_at_which_products_decide_follows_from_ceiling_and_bus(steps):
    said = parallel.bound(steps, Network(1e-5, 1e9), {"fp32": 1e11})
    assert said.text.count("from 200") == 2  # 4 bytes a number: twice C / W
    narrow = parallel.bound(steps, Network(1e-5, 1e9), {"bf16": 1e11})
    assert "FSDP on many ranks is compute-bound from 100 tokens" in narrow.text
    assert narrow.text.endswith("data parallelism, which sends gradients in fp32, from 200.")
    assert parallel.bound(steps, None, {"fp32": 1e11}).verdict == "no data"


def test_the_write_ups_steps_are_relative_to_their_naive_one(steps):
    table = parallel.published_steps(parallel.steps(steps))
    theirs = table[table["source"].str.startswith("brandon") & (table["batch_size"] == 16)].set_index("variant")
    assert theirs.loc["overlap", "relative"] == pytest.approx(509.30 / 531.74)
    naive = theirs.loc["naive"]
    assert naive["formula_ms"] == pytest.approx(naive["synchronization_ms"], rel=0.1)  # its own all-reduces say so
    own = table[table["source"] == "this report"].set_index("variant")
    assert own.loc["flat", "relative"] == pytest.approx(85 / 90, rel=1e-3)
    unknown = {"source": "nobody", "world": 2, "variant": "naive"}
    assert math.isnan(parallel._by_fit(unknown, parallel.collectives.published_fits()))


def test_the_write_ups_memory_agrees_with_the_accounting(held):
    table = parallel.published_memory(held())
    theirs = table[table["source"].str.startswith("brandon")]
    assert set(theirs["label"]) == {"plain", "sharded"}
    for _, row in theirs.iterrows():
        assert row["formula_mib"] == pytest.approx(row["after_step_mib"], rel=0.04)
