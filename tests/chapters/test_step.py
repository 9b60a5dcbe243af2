"""The chapter on the training step says its time and parts, and its predictions turn with the records."""

import pytest

from lib.chapters import step
from lib.records import results
from lib.report import roofline, tidy
from lib.stats.intervals import Interval
from reference import MACHINE

pytestmark = pytest.mark.usefixtures("own_results")  # so that it is what git keeps, whatever was measured here


@pytest.fixture
def steps(monkeypatch):
    """The machine's steps, as if no step's own products had been measured."""
    monkeypatch.setattr(roofline, "own_products", lambda _: {})
    return step.prepared(results.load("step", MACHINE), results.load("ceilings", MACHINE))


def test_the_answer_has_the_time_of_the_largest_step_and_its_parts(steps):
    case = step.headline_case(steps)
    assert (case["size"], case["precision"]) == ("small", "fp32")
    said = step.answer(steps, case)
    assert f" ms (129 M parameters, 12 layers, 4 × {case['context_length']} tokens, fp32, " in said.text
    shown = {one.name.rpartition("/")[2]: one for one in said.quantities}
    assert list(shown)[:4] == ["total_ms", "forward_ms", "backward_ms", "optimizer_ms"]
    assert shown["total_ms"].value == tidy.median(tidy.select(steps, **case), "total_ms")
    assert (
        f"The least possible time, at the rates of {roofline.BEST} and of memory, is {shown['least_ms'].shown} ms"
        in said.text
    )


def test_the_answer_says_so_where_the_limit_is_of_the_steps_own_products_and_where_that_is_too_low(steps, monkeypatch):
    case = step.headline_case(steps)
    ceilings, products = results.load("ceilings", MACHINE), ("fp32", 768, case["batch_size"] * case["context_length"])
    best_rate, limited = roofline.limits(ceilings)[0]["fp32"], []
    for rate in (0.9 * best_rate, 0.1 * best_rate):
        own = {products: Interval(rate, 0.9 * rate, 1.1 * rate, 9, 3)}
        monkeypatch.setattr(roofline, "own_products", lambda _, own=own: own)
        limited.append(step.prepared(results.load("step", MACHINE), ceilings))
    said, too_low = (step.answer(each, case).text for each in limited)
    assert f"The least possible time, at the rates of {roofline.OWN} and of memory, is" in said
    assert too_low.endswith(f"% of the measured time{step.TOO_SLOW}.")
    assert step.TOO_SLOW not in said + step.answer(steps, case).text
    best, own = (
        tidy.medians(tidy.select(each, **case), "least_ms", "mfu_percent").iloc[0] for each in (steps, limited[0])
    )
    assert own["least_ms"].value > best["least_ms"].value
    assert own["mfu_percent"] == best["mfu_percent"]
    assert set(step.sizes(limited[0])["limit_of"].dropna()) == {roofline.OWN, roofline.BEST}


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


def test_faster_records_turn_the_verdict(steps):
    ceilings, one = results.load("ceilings", MACHINE), tidy.select(steps, **step.headline_case(steps))
    fast = one.assign(total_ms=one["total_ms"].map(lambda ms: [x / 100 for x in ms]))
    before, after = (step.theory(records, ceilings)[2].verdict for records in (one, fast))
    assert (before, after) == ("kept", "broken")
