"""A sharded optimizer gives the same step, and holds its share of the states."""

import pytest

from lib import timing
from lib.experiments import cases, measure, on_ranks

STEP = {"size": "tiny", "context_length": 16, "batch_size": 2, "world": 2, "backend": "gloo", "device": "cpu"}
PARTS = ("parameters", "gradients", "states", "other")
WHOLE_MIB = 4 * 3_609_728 / 2**20  # of tiny's parameters


@pytest.fixture(scope="module")
def found(same_ranks):
    """What each variant measures, one after the other in the same ranks."""
    grid = cases.grid("sharded", **STEP, variant=["plain", "sharded", "torch", "plain"])
    return [on_ranks.measured(measure.Recording(case, 0), timing.Plan(1, 2), 0, 1) for case in grid]


def test_every_variant_is_right(found):
    for metrics in found:
        assert all(metrics[f"{name}_error"][0] < 1e-4 for name in ("logits", "gradient", "update"))
        assert len(metrics["optimizer_ms"]) == 2


@pytest.mark.parametrize(("place", "share"), [(0, 1), (1, 2), (2, 2)])
def test_a_rank_holds_its_share_of_the_states(found, place, share):
    metrics = found[place]
    assert metrics["after_parameters_mib"][0] == pytest.approx(WHOLE_MIB)
    assert metrics["after_gradients_mib"][0] == pytest.approx(WHOLE_MIB)
    assert metrics["after_states_mib"][0] == pytest.approx(2 * WHOLE_MIB / share, rel=0.02)
    assert sum(metrics[f"after_{part}_mib"][0] for part in PARTS) == pytest.approx(
        metrics["after_step_mib"][0], rel=0.02
    )
    grown = metrics["after_step_mib"][0] - metrics["before_step_mib"][0]
    assert grown == pytest.approx(metrics["after_states_mib"][0], rel=0.02)


def test_a_case_leaves_nothing_in_its_ranks(found):
    assert found[-1]["initial_mib"] == pytest.approx(found[0]["initial_mib"])
    assert found[0]["initial_mib"][0] == pytest.approx(WHOLE_MIB, rel=0.3)
