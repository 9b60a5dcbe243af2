"""Measure FlashAttention and its rivals, with inputs in the type of the products."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lib import attention, precision
from lib.experiments.attention import Attention
from lib.experiments.case import OfAnother, Work
from lib.instruments.peak_memory import MIB
from lib.validate import one_of


@dataclass(frozen=True)
class Flash(OfAnother):
    """Attention of a sequence with some heads, forward and backward, without autocast.

    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "flash"
    variant: str = one_of(attention.VARIANTS)
    seq_len: int
    d_head: int
    num_heads: int
    causal: bool
    precision: str = one_of(precision.NAMES)
    device: str

    @property
    def inner(self) -> Attention:
        """Return the case of `attention` that this one runs."""
        return Attention(
            variant=self.variant, seq_len=self.seq_len, d_head=self.d_head, batch_size=self.num_heads,
            causal=self.causal, precision=self.precision, native=precision.AUTOCAST[self.precision] is not None,
            cold=False, device=self.device,
        )  # fmt: skip

    def setup(self) -> Work:
        """Build the case of `attention`, whose first iteration also counts what it saves."""
        return replace(super().setup(), around_first=saved)


@contextlib.contextmanager
def saved() -> Iterator[dict[str, list[float]]]:
    """Yield a dict that gets `saved_mib`, the memory of what the block saves for a backward pass.

    Each tensor counts once, however often it is saved."""
    metrics: dict[str, list[float]] = {}
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield metrics
    metrics["saved_mib"] = [sum(sizes.values()) / MIB]
