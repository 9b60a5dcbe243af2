"""Fully sharded training is that of one process, and a rank holds its part and two layers."""

import pytest

GATHERED = {"float32": 4, "bfloat16": 2}


@pytest.mark.parametrize(("model", "parts"), [("plain", 1), ("plain", 3), ("tied", 1), ("frozen", 1), ("alike", 1)])
def test_five_steps_in_fp32_are_those_of_one_process_also_of_several_backward_passes(call, model, parts):
    for one in call("fully_sharded", model=model, parts=parts):
        assert one["change"] > 1e-2
        assert max(one["error"], one["loss_error"]) < 1e-6
        assert one["gathered"] == 0


def test_bf16_is_close_and_moves_half_the_bytes_and_each_layer_is_gathered_ahead(call):
    narrow, wide = (call("fully_sharded", model="plain", dtype=dtype) for dtype in ("bfloat16", "float32"))
    assert 1e-6 < narrow[0]["error"] < 1e-2
    assert narrow[0]["bytes"] == [size / 2 for size in wide[0]["bytes"]]
    assert wide[0]["orders"] == wide[1]["orders"]
    forward = [f"gather {name}" for name in ("token_embeddings", "layers.0", "layers.1", "ln_final", "lm_head")]
    backward = [
        "gather ln_final", "reduce lm_head", "gather layers.1", "reduce ln_final", "gather layers.0", "reduce layers.1",
        "reduce layers.0", "reduce token_embeddings",
    ]  # fmt: skip
    assert wide[0]["orders"][1:] == [forward + backward] * 4


@pytest.mark.parametrize("dtype", GATHERED)
def test_a_rank_holds_its_part_and_at_most_two_layers(call, dtype):
    for one in call("fully_sharded_memory", dtype=dtype):
        part = one["parameters"] / 2
        assert one["start_bytes"] == pytest.approx(4 * part, rel=0.02)
        assert one["step_bytes"] == pytest.approx(4 * (1 + 1 + 2) * part, rel=0.02)  # weights, gradients, two moments
        embedding, layer = 10_000 * 128, 4 * 128**2 + 3 * 128 * 512 + 2 * 128
        assert one["gathered_bytes"] == pytest.approx(GATHERED[dtype] * (embedding + layer), rel=0.02)


def test_a_state_dict_loads_and_comes_back_and_a_sharded_module_cannot_be_moved(call):
    assert call("reloaded") == [0.0, 0.0]
    assert all("before it is sharded" in said for said in call("moved"))
