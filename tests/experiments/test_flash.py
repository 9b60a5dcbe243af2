"""FlashAttention keeps T (4 D + 1) numbers for its backward pass, and its case is one of attention's."""

import pytest

from lib.cost import memory
from lib.experiments import measure
from lib.timing import Plan
from plain import measured, one

T, D, H = 48, 16, 3


def case(**changed):
    return one("flash", seq_len=T, d_head=D, num_heads=H, **changed)


def test_it_is_a_case_of_attention_with_inputs_in_the_type_of_the_products():
    assert case().attention == one("attention", seq_len=T, d_head=D, batch_size=H)
    narrow = case(variant="tiled", precision="bf16")
    assert narrow.attention.native
    assert narrow.predicted_bytes() == narrow.attention.predicted_bytes()
    assert narrow.costs() == narrow.attention.costs()
    assert "CUDA" in case(variant="triton").unavailable()
    with pytest.raises(ValueError, match="variant: got 'tyled', .*nearest: tiled"):
        case(variant="tyled")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", ["naive", "tiled", "sdpa"])
def test_what_it_saves_is_by_formula_to_the_byte(own_results, one_thread, variant, precision):
    found = measured(case(variant=variant, precision=precision))["metrics"]
    assert found["saved_mib"] == [memory.saved_bytes(variant, H, T, D, True, precision) / 2**20]
    assert found["causal_flops"] == 4 * H * T * (T + 1) // 2 * D


def test_a_tensor_that_is_saved_twice_counts_once(own_results, one_thread):
    with measure.recording(case(variant="sdpa"), 1) as record:
        work = record.setup()
        with work.around_first() as found:
            measure.times(work, Plan(0, 2))
        assert found["saved_mib"][0] == pytest.approx(2 * H * T * (4 * D + 1) * 4 / 2**20, rel=0.6)
        assert work.facts["moved_bytes"] == 12 * 4 * H * T * D
