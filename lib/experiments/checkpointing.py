"""Activation checkpointing from outside a model: of each group of layers only the input is kept, and the rest computed
again for the backward pass (Chen et al. 2016, https://arxiv.org/abs/1604.06174); knows nothing of measuring.
"""

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Group(nn.Module):
    """Layers one after the other, of whose tensors a forward pass keeps only the first."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x_BTC: Tensor) -> Tensor:
        # nothing here is drawn at random, so that no state of a generator need be kept
        return checkpoint(self.layers, x_BTC, use_reentrant=False, preserve_rng_state=False)


def regroup(module: nn.Module, size: int) -> None:
    """Let the `layers` of a model run in groups of `size`, the last perhaps smaller; 0 leaves them as they are. The
    parameters stay the same tensors, under longer names."""
    if size:
        starts = range(0, len(module.layers), size)
        module.layers = nn.ModuleList(Group(module.layers[start : start + size]) for start in starts)
