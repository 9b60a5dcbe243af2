"""The first steps of a process come before anything else computes, and what warm-ups would have changed is read from
them.
"""

from dataclasses import asdict

import pytest
import torch

from lib import timing
from lib.chapters import warmup, warmup_claims
from lib.experiments import cases, measure
from lib.instruments import noise
from lib.records import results
from lib.report import plots, sentences, tables

CASE = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip


def recorded(case, samples=3):
    with measure.recording(case, 1, cold=True) as record:
        record.metrics |= measure.first_steps(record, samples)
    return results.read(measure.record_path(case, 1))["metrics"]


@pytest.fixture
def case():
    (only,) = cases.grid("warmup", **CASE)
    return only


def test_a_warm_up_is_a_step_under_another_name(case):
    (step,) = cases.grid("step", **CASE)
    assert asdict(case) == asdict(step)
    assert case.predicted_bytes() == step.predicted_bytes()


@pytest.mark.parametrize("samples", [1, 4])
def test_every_first_step_is_recorded_in_order_with_its_phases(own_results, case, samples):
    metrics = recorded(case, samples)
    phases = [metrics[f"first_{phase}_ms"] for phase in ("forward", "backward", "optimizer")]
    assert [len(phase) for phase in phases] == [samples] * 3
    assert metrics["first_total_ms"] == pytest.approx([sum(step) for step in zip(*phases, strict=True)])
    assert metrics["logits_error"][0] < 1e-4
    assert "total_ms" not in metrics  # a series that must change would be called restless
    assert len(metrics["canary_ms"]) == 10


def test_nothing_computes_before_the_first_steps(own_results, case, monkeypatch):
    order = []
    for module, name in ((noise, "probe"), (timing, "measure")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, name=name, original=original: (order.append(name), original(*a))[1]
        )
    training, expected = type(case).setup, []

    def setup(self):
        work = training(self)
        reference = work.expected
        work.expected = lambda: (order.append("reference"), expected.append(1), reference())[2]
        return work

    monkeypatch.setattr(type(case), "setup", setup)
    recorded(case)
    assert order == ["measure", "measure", "reference", "probe", "measure"]  # the last within the probe


def test_a_wrong_first_step_leaves_no_record(own_results, case, monkeypatch):
    original = type(case).setup

    def setup(self):
        work = original(self)
        result = work.result
        work.result = lambda: {name: tensor + 1 for name, tensor in result().items()}
        return work

    monkeypatch.setattr(type(case), "setup", setup)
    with pytest.raises(measure.WrongResult, match="logits"):
        recorded(case)
    assert not list(own_results.rglob("*.json"))


def test_the_first_iteration_is_checked_and_not_a_later_one(own_results, case, monkeypatch):
    seen = []
    original = measure._relative
    monkeypatch.setattr(measure, "_relative", lambda got, expected: (seen.append(got), original(got, expected))[1])
    recorded(case)
    torch.manual_seed(0)
    work = case.setup()
    timing.measure(work.iteration, timing.clock("cpu"), timing.Plan(0, 1), work.before)
    assert torch.equal(seen[0], work.result()["logits"])


def test_a_record_says_how_many_cases_its_process_had_before(own_results, case):
    first, second = recorded(case)["earlier_cases"], recorded(case)["earlier_cases"]
    assert second == first + 1


@pytest.fixture
def starts(save_record):
    """Three cold processes of which the first step takes eleven times as long as the others, and a warm one."""
    for round, earlier in ((1, 0), (2, 0), (3, 0), (4, 1)):
        later = [1 + 0.001 * round + 0.002 * (i % 2) for i in range(29)]
        forward = [11 if earlier == 0 else 99.0, *later]
        parts = {"first_forward_ms": forward, "first_backward_ms": [1.0] * 30, "first_optimizer_ms": [0.5] * 30}
        totals = [sum(step) for step in zip(*parts.values(), strict=True)]
        save_record("warmup", CASE, round, **parts, first_total_ms=totals, earlier_cases=earlier)
    return warmup.cold(results.load("warmup", "test-1c"))


def test_only_cold_processes_count(starts):
    assert list(starts["round"]) == [1, 2, 3]


def test_means_and_deviations_follow_so_many_warm_ups(starts):
    table = warmup.after_warmups(starts).set_index(["phase", "warmups"])
    forward = table.loc["forward"]
    assert forward["mean_ms"][0].value == pytest.approx(2.0, rel=5e-3)
    assert forward["deviation_percent"][0].value == pytest.approx(warmup_claims.outlier_percent(11), rel=1e-2)
    assert forward["mean_ms"][1].value == pytest.approx(1.003, rel=1e-3)
    assert forward["ratio"][1].value == pytest.approx(1, abs=1e-3)
    assert forward["ratio"][0].known
    assert table.loc["forward and backward"]["mean_ms"][5].value == pytest.approx(2.003, rel=1e-3)
    assert table.loc["whole step"]["mean_ms"][5].value == pytest.approx(2.503, rel=1e-3)


def test_a_single_long_step_makes_the_deviation_that_theory_says():
    steps = torch.tensor([14.0] + [1.0] * 9)
    assert warmup_claims.outlier_percent(14) == pytest.approx((100 * steps.std() / steps.mean()).item())


def test_where_a_process_is_steady_and_where_its_first_step_was_long(starts):
    (row,) = warmup.steady(starts).to_dict("records")
    assert row["steady_from"] == "2, 2, 2"
    assert row["first_ratio"].value == pytest.approx(12.5 / 2.503, rel=1e-2)
    assert row["forward_excess_percent"] == pytest.approx(100)
    assert row["optimizer_excess_percent"] == pytest.approx(0)
    said = warmup_claims.answer(starts, CASE, "here")
    assert "steady from step 2 on in 3 of 3 processes" in said.text
    assert "3 are steady after one warm-up" in warmup_claims.settled(starts).text


def test_one_warm_up_is_called_the_same_as_five_only_where_it_is(starts):
    assert warmup_claims.equivalence(starts).verdict == "same"
    slow = starts.copy()
    slow.attrs = starts.attrs
    slow["first_total_ms"] = [
        [ms * (2 if i < 5 else 1) for i, ms in enumerate(times)] for times in slow["first_total_ms"]
    ]
    said = warmup_claims.equivalence(slow)
    assert said.verdict == "slower"
    assert "is more than" in said.text


def test_published_means_are_relative_to_their_own_source():
    table = warmup_claims.published()
    assert (table[table["warmups"] == 5]["ratio"] == 1).all()
    small = table[(table["source"] == "write-up 002") & (table["size"] == "small") & (table["context_length"] == 128)]
    cold = small[(small["warmups"] == 0) & (small["phase"] == "forward")].iloc[0]
    assert cold["ratio"] == pytest.approx(105.1 / 37.73)
    assert cold["deviation_percent"] == pytest.approx(100 * 209.74 / 105.1)
    assert set(table["phase"]) == {"forward", "forward and backward"}


def test_the_description_has_a_row_a_source_statistic_and_number_of_warm_ups(starts):
    table = warmup_claims.describe(starts)
    ours = table[table["source"] == "this report"]
    assert list(ours["warmups"]) == ["0", "1", "2", "5"] * 2
    assert set(ours["count"]) == {2}  # forward, and forward and backward
    assert set(table[table["source"] == "write-up 002"]["count"]) == {20}


def test_every_table_and_sentence_stands_without_records(own_results):
    nothing = warmup.cold(results.load("warmup", "no-machine"))
    said = [
        warmup_claims.answer(nothing, CASE, ""),
        warmup_claims.variation(nothing, 5),
        warmup_claims.one_outlier(nothing, CASE),
        warmup_claims.where_it_goes(nothing, CASE),
        warmup_claims.settled(nothing),
        warmup_claims.equivalence(nothing),
    ]
    assert {statement.verdict for statement in said} == {sentences.NO_DATA}
    figure = plots.show(warmup.draw(nothing), "caption", "alt", warmup.note(nothing))
    assert tables.ABSENT in figure._repr_html_()
    for value in ("mean_ms", "std_ms", "deviation_percent"):
        shown = tables.show(warmup.pivot(nothing, value), f"size phase {value}_after_0", "caption")
        assert tables.ABSENT in shown._repr_html_()
    assert "write-up 002" in tables.show(warmup_claims.describe(nothing), "source count mean", "c")._repr_html_()
