"""Run programs of the other experiments with freed memory kept, and with the C library's default."""

from dataclasses import dataclass
from typing import ClassVar

from lib.experiments.adam import Adam
from lib.experiments.attention import Attention
from lib.experiments.case import OfAnother
from lib.experiments.step import Step
from lib.instruments import allocator
from lib.validate import one_of

PROGRAMS = {  # by the name that a table shows; all in fp32
    "naive_attention": (Attention, {"variant": "naive"}),
    "sdpa_attention": (Attention, {"variant": "sdpa"}),
    "single_tensor_adam": (Adam, {"variant": "single_tensor"}),
    "fused_adam": (Adam, {"variant": "fused"}),
    "tiny_step": (Step, {}),
}
SHAPES = {
    Attention: {
        "seq_len": 1024, "d_head": 64, "batch_size": 8, "causal": True, "precision": "fp32", "native": False,
        "cold": False,
    },
    Adam: {"shapes": "equal", "num_params": 8, "param_size": 2**20, "amsgrad": True, "cold": False},
    Step: {
        "size": "tiny", "context_length": 128, "batch_size": 4, "precision": "fp32", "compiled": False,
        "attention": "naive", "optimizer": "single_tensor", "mode": "train_step",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Allocator(OfAnother):
    """A program of another experiment under one allocator, which the process keeps until its end.

    Raises ValueError for an unknown value."""

    experiment: ClassVar[str] = "allocator"
    program: str = one_of(PROGRAMS)
    allocator: str = one_of(allocator.ALLOCATORS)
    device: str

    @property
    def inner(self) -> Attention | Adam | Step:
        """Return the case of the other experiment."""
        kind, values = PROGRAMS[self.program]
        return kind(**SHAPES[kind] | values, device=self.device)

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        if self.device != "cpu":
            return "the C library's allocator holds no memory of a GPU"
        return None if allocator.can_keep() else "only glibc can be told to keep freed memory"
