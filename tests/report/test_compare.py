"""Comparisons come from the pairs of each round: their estimate is the plain one, their verdicts those of a table."""

import numpy as np
import pytest

import by_hand
from lib.records import NotMeasured
from lib.report import compare
from lib.stats import comparisons as judging

VARIANTS = {"fused": 3.0, "foreach": 1.5, "compiled": 1.0, "slow": 0.5}  # the baseline's time over the variant's


@pytest.fixture
def frame():
    rows = []
    for seed, (variant, ratio) in enumerate(VARIANTS.items()):
        random = np.random.default_rng(seed)
        for number in (1, 2, 3):
            level = np.exp(0.004 * random.standard_normal())
            own = random.lognormal(0, 0.01, 20).tolist()
            base = (level * ratio * random.lognormal(0, 0.01, 20)).tolist()
            metrics = {"paired_ms": own, "baseline_ms": base, "paired_optimizer_ms": own, "baseline_optimizer_ms": own}
            rows.append({"variant": variant, "num_params": 8, "round": number, "total_ms": own, **metrics})
    rows.append({"variant": "single_tensor", "num_params": 8, "total_ms": [1.0] * 5})
    return by_hand.frame(*rows)


def test_each_case_that_ran_in_pairs_has_the_verdict_of_its_table(frame):
    table = compare.comparisons(frame)
    assert table["variant"].tolist() == list(VARIANTS)
    assert table["machine"].unique().tolist() == ["test-1c"]
    assert [made.verdict for made in table["comparison"]] == ["faster", "faster", "same", "slower"]
    # a table is judged as a whole
    rows = []
    for variant in VARIANTS:
        records = frame[frame["variant"] == variant]
        made = zip(records["paired_ms"], records["baseline_ms"], strict=True)
        rows.append(judging.joined([judging.of_pairs(own, base) for own, base in made]))
    assert table["comparison"].tolist() == judging.judged(rows)


def test_a_phase_that_both_sides_share_is_compared_alone(frame):
    assert set(compare.comparisons(frame, "optimizer")["comparison"].map(lambda made: made.verdict)) == {"same"}
    with pytest.raises(NotMeasured):
        compare.comparisons(frame, "forward")


def test_what_failed_or_is_stale_beside_fresh_records_or_of_another_machine_changes_nothing(frame):
    expected = compare.comparisons(frame)
    wrong = {"paired_ms": [1.0] * 3, "baseline_ms": [9.0] * 3}
    failed = {**frame.iloc[0].to_dict(), "round": 4, "status": "failed", **wrong}
    stale = {**failed, "round": 5, "status": "ok", "stale": True}
    elsewhere = frame[frame["round"] < 3].assign(machine="other").to_dict("records")
    wider = by_hand.frame(*frame.to_dict("records"), failed, stale, *elsewhere)
    own = compare.comparisons(wider).query("machine == 'test-1c'")
    assert own["comparison"].tolist() == expected["comparison"].tolist()


def test_two_variants_of_one_baseline_are_compared_through_it(frame):
    cases = {
        "fused over foreach": ({"variant": "fused"}, {"variant": "foreach"}),
        "fused over its baseline": ({"variant": "fused"}, None),
        "missing": ({"variant": "unheard of"}, {"variant": "foreach"}),
    }
    made = compare.between(frame, cases)
    assert list(made) == ["fused over foreach", "fused over its baseline"]
    assert made["fused over foreach"].ratio.value == pytest.approx(2, rel=0.02)
    direct = compare.comparisons(frame)["comparison"].iloc[0].ratio.value
    assert made["fused over its baseline"].ratio.value == pytest.approx(direct)


def test_few_pairs_of_one_process_are_as_unsure_on_either_side_of_a_ratio():
    times = {"paired_ms": [1.0, 1.2, 1.1], "baseline_ms": [2.0, 2.1, 2.0]}
    many = {name: 30 * samples for name, samples in times.items()}
    frame = by_hand.frame({"variant": "fused", **many}, {"variant": "foreach", **times})
    sides = {"variant": "fused"}, {"variant": "foreach"}
    made = compare.between(frame, {"there": sides}) | compare.between(frame, {"back": sides[::-1]})
    assert made["there"].ratio.log_error == pytest.approx(made["back"].ratio.log_error)


def test_cases_that_cannot_pair_are_compared_by_the_medians_of_their_rounds():
    levels = [1.0, 3.0, 2.0]  # what slows a whole round cancels
    fast = by_hand.of_rounds([[level, 1.1 * level, 1.2 * level] for level in levels], variant="fused", num_params=8)
    slow = by_hand.of_rounds([[2 * level, 2.2 * level, 2.4 * level] for level in levels], variant="slow", num_params=8)
    frame = by_hand.frame(*fast, *slow)
    made = compare.of_medians(frame, "total_ms", {"variant": "fused"}, {"variant": "slow"})
    assert (made.ratio.value, made.ratio.low, made.ratio.high) == pytest.approx((2, 2, 2))
    assert made.verdict == "faster"
    for rounds in (1, 2):
        # few processes that timed one after the other decide nothing
        few = by_hand.frame(*fast[:rounds], *slow[:rounds])
        made = compare.of_medians(few, "total_ms", {"variant": "fused"}, {"variant": "slow"})
        assert (made.verdict, made.tier, str(made)) == ("unclear", "probable", "2.00×, unclear")
    apart = by_hand.frame(fast[0], {**slow[1], "round": 2})
    with pytest.raises(NotMeasured, match="both cases in one round"):
        compare.of_medians(apart, "total_ms", {"variant": "fused"}, {"variant": "slow"})
