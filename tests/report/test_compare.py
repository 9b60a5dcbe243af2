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
