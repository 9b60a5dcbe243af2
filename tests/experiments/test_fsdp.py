"""A fully sharded step is that of the plain model, and a rank holds its share of everything."""

import pytest

from lib import timing
from lib.experiments import cases, measure, on_ranks

STEP = {"size": "tiny", "context_length": 32, "batch_size": 2, "world": 2, "backend": "gloo", "device": "cpu"}
WHOLE_MIB = 4 * 3_609_728 / 2**20  # of tiny's parameters


@pytest.fixture(scope="module")
def found(same_ranks):
    """What each variant measures, one after the other in the same ranks."""
    grid = cases.grid("fsdp", **STEP, variant=["plain", "fsdp", "torch"], precision=["fp32", "bf16"])
    return {
        (case.variant, case.precision): on_ranks.measured(measure.Recording(case, 0), timing.Plan(1, 2), 0, 1)
        for case in grid
    }


@pytest.mark.parametrize("variant", ["plain", "fsdp", "torch"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-1)])
def test_every_variant_is_right(found, variant, precision, tolerance):
    metrics = found[variant, precision]
    assert all(metrics[f"{name}_error"][0] < tolerance for name in ("logits", "gradient"))
    assert metrics["update_error"][0] < 1e-4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("variant", "share"), [("plain", 1), ("fsdp", 2), ("torch", 2)])
def test_a_rank_holds_its_share_of_everything(found, variant, share, precision):
    metrics = found[variant, precision]
    assert metrics["after_parameters_mib"][0] == pytest.approx(WHOLE_MIB / share, rel=0.01)
    assert metrics["after_gradients_mib"][0] == pytest.approx(WHOLE_MIB / share, rel=0.01)
    assert metrics["after_states_mib"][0] == pytest.approx(2 * WHOLE_MIB / share, rel=0.01)
    assert metrics["initial_mib"][0] < WHOLE_MIB / share + 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_rank_is_below_that_of_the_plain_model_and_what_was_predicted(found, precision):
    plain = found["plain", precision]["peak_mib"][0]
    for metrics in (found["fsdp", precision], found["torch", precision]):
        assert metrics["peak_mib"][0] < plain
        assert metrics["peak_mib"][0] <= 1.05 * metrics["formula_mib"][0]
