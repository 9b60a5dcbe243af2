"""The kernels compile for GPUs that are not here, and a launch hands over what Triton's own would."""

import math

import pytest
import torch

from lib.flash import tiles

triton = pytest.importorskip("triton")
compiled_kernels = pytest.importorskip("compiled_kernels")
kernels = pytest.importorskip("lib.flash.kernels")


@pytest.mark.parametrize(("numbers", "d_head"), [("bf16", 64), ("tf32", 64), ("ieee", 16)])
def test_the_kernels_compile_for_an_h100_with_its_products_within_its_shared_memory(numbers, d_head):
    table = compiled_kernels.measure(90, numbers, d_head, True).set_index("kernel")
    assert list(table.index) == ["flash_forward", "flash_backward_q", "flash_backward_kv"]
    assert (table["shared_bytes"] <= 227 * 1024).all()
    assert not table.loc[["flash_forward", "flash_backward_q"], "spilled_bytes"].any()
    assert (table["hopper_products"] > 0).all() == (numbers != "ieee")


def inputs():
    """Yield queries, keys and values that differ in one property after another, and if they are causal."""
    q = torch.zeros(1, 2, 32, 16, dtype=torch.bfloat16)
    yield (q, q, q), True
    yield (q, q, q), False
    yield (q.half(), q.half(), q.half()), True
    yield (q, q[:, :, 1:], q[:, :, 1:]), True
    yield (torch.zeros(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape), q, q), True
    yield (q, q.mT.contiguous().mT, q), True
    yield (q.expand(3, 2, 32, 16),) * 3, True


def test_a_second_launch_hands_over_what_triton_would_without_looking_at_arguments(monkeypatch):
    with compiled_kernels.pretend(90) as launches:
        for (q, k, v), causal in inputs():
            tiles.attend(q, k, v, causal)
            with monkeypatch.context() as patch:
                patch.setattr(triton.JITFunction, "run", None)
                out, logsumexp = tiles.attend(q, k, v, causal)
            _, second = launches
            launches.clear()
            tile = tiles.tile_of("flash_forward", "narrow", 16, (9, 0))
            batch, heads, queries, _ = q.shape
            kernels.flash_forward[batch * heads, math.ceil(queries / tile.queries)](
                q, k, v, out, logsumexp, q.stride(), k.stride(), v.stride(), out.stride(), heads, queries, k.shape[2],
                **tiles.constants("narrow", 16, tile, causal), num_warps=tile.warps, num_stages=tile.stages,
                enable_fp_fusion=True,
            )  # fmt: skip
            (right,) = launches
            launches.clear()
            # without what hooks get, which are no arguments of the kernel
            for got, expected in zip(second[:6] + second[9:], right[:6] + right[9:], strict=True):
                assert got is expected if torch.is_tensor(got) else got == expected
