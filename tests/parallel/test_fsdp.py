"""Fully sharded training is that of one process, and a rank holds its rows and two layers."""

import pytest

FROZEN = ["token_embeddings.weight", "layers.0.attn.q_proj.weight", "ln_final.weight"]
WIDTHS = {"": 4, "bfloat16": 2}


@pytest.mark.parametrize(("model", "parts"), [("plain", 3), ("tied", 1), ("frozen", 1), ("alike", 1)])
def test_five_steps_in_fp32_are_those_of_one_process(call, model, parts):
    first, second = call("trained", kind="fsdp", model=model, parts=parts)
    assert first["change"] > 1e-2
    # several parts add up on each rank first, and rounding differs
    assert max(first["error"], second["error"]) <= (0 if parts == 1 else 1e-6)
    assert first["vectors"] == second["vectors"]
    assert first["without"] == (FROZEN if model == "frozen" else [])
    pairs = zip(first["numels"], second["numels"], first["all_numels"], strict=True)
    assert all(own + its in (whole, 2 * whole) for own, its, whole in pairs)  # matrices are divided, vectors are not
    assert sum(first["numels"]) < 0.7 * sum(first["all_numels"])


@pytest.mark.parametrize("model", ["alike", "tied"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_training_in_a_narrow_type_keeps_fp32_weights_near_those_of_fp32(call, model, dtype):
    for rank in call("trained", kind="fsdp", model=model, dtype=dtype):
        assert 1e-6 < rank["error"] < 2e-2


@pytest.mark.parametrize("dtype", WIDTHS)
def test_at_most_two_layers_are_gathered_and_none_between_steps(call, dtype):
    layer = 4 * 128**2 + 3 * 128 * 512 + 2 * 128
    for rank in call("gathered_memory", dtype=dtype):
        assert rank["after"] == 0
        assert rank["most"] == WIDTHS[dtype] * (10_000 * 128 + layer)  # the embedding beside a layer


def test_a_sharded_module_cannot_be_moved(call):
    assert all("before it is sharded" in message for message in call("moved"))
