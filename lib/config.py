"""Hold a model's shape, the assignment's sizes, and a training step's phases.

>>> SIZES["small"].d_head
64
"""

from dataclasses import dataclass

from lib import validate


@dataclass(frozen=True)
class Config:
    """Hold the shape of a model. Raises ValueError if no model can have it."""

    vocab_size: int = 10_000
    context_length: int = 1024
    d_model: int = 768
    d_ff: int = 3072
    num_layers: int = 12
    num_heads: int = 12
    rope_theta: float = 10_000.0

    def __post_init__(self):
        validate.fields(self)
        if self.rope_theta <= 0:
            raise ValueError(f"rope_theta: got {self.rope_theta}, expected a positive number")
        if self.d_model % self.num_heads:
            raise ValueError(f"d_model: got {self.d_model}, expected a multiple of num_heads {self.num_heads}")
        if self.d_head % 2:
            raise ValueError(f"d_model: got a head size of {self.d_head}, expected an even one for RoPE's pairs")

    @property
    def d_head(self) -> int:
        """Return the number of features of one attention head."""
        return self.d_model // self.num_heads


SIZES = {  # as in the assignment (CS336 2025, table 1; 10B: the 2026 edition); tiny is ours, for laptops
    "tiny": Config(d_model=128, d_ff=512, num_layers=4, num_heads=4),
    "small": Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "medium": Config(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "large": Config(d_model=1280, d_ff=5120, num_layers=36, num_heads=20),
    "xl": Config(d_model=1600, d_ff=6400, num_layers=48, num_heads=25),
    "2.7B": Config(d_model=2560, d_ff=10240, num_layers=32, num_heads=32),
    "10B": Config(d_model=4608, d_ff=12288, num_layers=50, num_heads=36),
}
MODES = {  # each runs part of a training step, which are these phases
    "train_step": ("forward", "backward", "optimizer"),
    "forward_backward": ("forward", "backward"),
    "forward": ("forward",),  # with the graph that a backward pass would need
    "no_grad": ("forward",),  # without it, as for inference
}
