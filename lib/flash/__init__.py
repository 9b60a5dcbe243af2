"""Compute attention by FlashAttention-2 (Dao 2023), in PyTorch and in Triton.

Each class has `apply(Q, K, V, is_causal=False)` over (..., T, D).

>>> from lib.flash import FlashAttentionTorch
>>> out = FlashAttentionTorch.apply(*torch.randn(3, 8, 1024, 64), True)  # doctest: +SKIP
"""

from lib.flash.blocks import FlashAttentionTorch
from lib.flash.tiles import FlashAttentionTriton

__all__ = ["FlashAttentionTorch", "FlashAttentionTriton"]
