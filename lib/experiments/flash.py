"""Measure FlashAttention and its rivals, with inputs in the type of the products."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lib import precision, validate
from lib.cost import flops
from lib.experiments.attention import Attention
from lib.experiments.measure import Work
from lib.instruments import device
from lib.instruments.peak_memory import MIB


@dataclass(frozen=True)
class Flash:
    """Attention of a sequence with some heads, forward and backward, without autocast.

    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "flash"
    variant: str
    seq_len: int
    d_head: int
    num_heads: int
    causal: bool
    precision: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", device.named(self.device))
        validate.fields(self)
        validate.choice("precision", self.precision, precision.NAMES)
        _ = self.attention  # refuses an unknown variant

    @property
    def attention(self) -> Attention:
        """Return the case of `attention` that this one runs."""
        return Attention(
            variant=self.variant, seq_len=self.seq_len, d_head=self.d_head, batch_size=self.num_heads,
            causal=self.causal, precision=self.precision, native=precision.AUTOCAST[self.precision] is not None,
            cold=False, device=self.device,
        )  # fmt: skip

    @property
    def compiles(self) -> bool:
        """Return True if the variant goes through torch.compile."""
        return self.attention.compiles

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return self.attention.unavailable()

    def predicted_bytes(self) -> int:
        """Predict the peak of the case of `attention`."""
        return self.attention.predicted_bytes()

    def costs(self) -> flops.Costs:
        """Return the costs of the case of `attention`."""
        return self.attention.costs()

    def setup(self) -> Work:
        """Build the case of `attention`, whose first iteration also counts what it saves."""
        return replace(self.attention.setup(), around_first=saved)


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
