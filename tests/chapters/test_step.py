"""The chapter on the training step says its time and parts, and its predictions turn with the records."""

import pytest

from lib.chapters import step
from lib.records import results
from lib.report import tidy
from lib.stats.intervals import Interval
from reference import MACHINE

pytestmark = pytest.mark.usefixtures("own_results")  # so that it is what git keeps, whatever was measured here


@pytest.fixture
def steps(monkeypatch):
    """The machine's steps, as if no step's own products had been measured."""
    monkeypatch.setattr(tidy, "own_products", lambda _: {})
    return step.prepared(results.load("step", MACHINE), results.load("ceilings", MACHINE))


def _products(case):
    return case["precision"], 768, case["batch_size"] * case["context_length"]


def test_the_answer_has_the_time_of_the_largest_step_and_its_parts(steps):
    case = step.head(steps)
    assert (case["size"], case["precision"]) == ("small", "fp32")
    said = step.answer(steps, case)
    assert (
        f" ms for a step of small (129 M parameters, 12 layers, 4 × {case['context_length']} tokens, fp32, "
        in said.text
    )
    shown = {one.name.rpartition("/")[2]: one for one in said.quantities}
    assert list(shown)[:4] == ["total_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    assert shown["total_ms"].value == tidy.median(tidy.select(steps, **case), "total_ms")
    assert (
        f"The least possible time, at the rates of {tidy.BEST} and of memory, is {shown['least_ms'].shown} ms"
        in said.text
    )


def test_the_answer_says_so_where_the_limit_is_of_the_steps_own_products(steps, monkeypatch):
    case = step.head(steps)
    best = tidy.median(tidy.select(steps, **case), "least_ms")
    monkeypatch.setattr(tidy, "own_products", lambda _: {_products(case): Interval(1e11, 0.9e11, 1.1e11, 9, 3)})
    own = step.prepared(results.load("step", MACHINE), results.load("ceilings", MACHINE))
    assert f"The least possible time, at the rates of {tidy.OWN} and of memory, is" in step.answer(own, case).text
    assert tidy.median(tidy.select(own, **case), "least_ms").value > best.value
    mfu = [tidy.median(tidy.select(one, **case), "mfu_percent") for one in (steps, own)]
    assert mfu[0] == mfu[1]
    assert set(step.sizes(own)["limit_of"].dropna()) == {tidy.OWN, tidy.BEST}


def test_a_step_that_takes_less_than_the_least_possible_shows_that_the_rates_are_wrong(steps, monkeypatch):
    case = step.head(steps)
    assert step.TOO_SLOW not in step.answer(steps, case).text
    monkeypatch.setattr(tidy, "own_products", lambda _: {_products(case): Interval(1e10, 0.9e10, 1.1e10, 9, 3)})
    own = step.prepared(results.load("step", MACHINE), results.load("ceilings", MACHINE))
    assert step.answer(own, case).text.endswith(f"% of the measured time{step.TOO_SLOW}.")


def test_every_size_has_its_time_or_the_reason_why_not(steps):
    table = step.sizes(steps)
    assert set(table["size"]) == set(step.SIZES)
    assert (table["total_ms"].isna() == (table["why"].fillna("") != "")).all()
    assert tidy.select(table, size="10B")["why"].iloc[0] == "not in this sweep; needs 192 GiB"
    assert list(step.shapes().query("size == 'small'")["parameters, M"]) == [128.6]


def test_a_bar_has_three_parts_the_whole_time_and_a_mark(steps):
    drawn = step.drawn(steps)
    ax = step.draw(drawn)
    assert len(ax.patches) == 3 * len(drawn)
    assert len(ax.texts) == len(drawn)
    assert [text.get_text() for text in ax.figure.legends[0].texts] == ["least possible", *step.PHASES]


def test_faster_records_turn_the_verdict():
    ceilings, steps = results.load("ceilings", MACHINE), results.load("step", MACHINE)
    fast = steps.assign(
        total_ms=steps["total_ms"].map(lambda ms: [x / 100 for x in ms] if isinstance(ms, list) else ms)
    )
    before, after = (step.theory(records, ceilings)[2].verdict for records in (steps, fast))
    assert (before, after) == ("kept", "broken")
