"""Measure attention on queries, keys and values alone: no projections, no heads."""

import contextlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import attention, precision
from lib.cost import flops, memory
from lib.experiments import attending, exact
from lib.experiments.case import Case, Work
from lib.instruments import cache
from lib.timing import Mark
from lib.validate import one_of

TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}


@dataclass(frozen=True)
class Attention(Case):
    """Attention forward and backward; raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "attention"
    variant: str = one_of(attention.VARIANTS)
    seq_len: int
    d_head: int
    batch_size: int
    causal: bool
    precision: str = one_of(precision.NAMES)
    native: bool  # Q, K and V are in the narrow type, without autocast
    cold: bool  # flush the caches before each iteration
    device: str

    def __post_init__(self):
        super().__post_init__()
        if self.native and precision.AUTOCAST[self.precision] is None:
            raise ValueError(f"native: got True, expected False in {self.precision}, which casts nothing")

    @property
    def compiles(self) -> bool:
        """Return True if the variant goes through torch.compile."""
        return self.variant in attention.COMPILING

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return attending.unavailable(self, self.variant, self.d_head) or super().unavailable()

    def predicted_bytes(self) -> int:
        """Predict the peak: the variant's, or the reference's if that is larger.

        A variant that holds all scores takes `cost.memory.attention_peak_bytes`, plus a copy of them in single
        precision under autocast. A tiled one holds three numbers for each score of a tile. Either holds at least Q, K,
        V, the output, their gradients and a copy. The reference takes one sequence in double beside all inputs, and a
        block of scores. Its results are held beside the variant."""
        shape = (self.batch_size, self.seq_len, self.d_head)
        each = 4 * self.batch_size * self.seq_len * self.d_head
        if self.variant in flops.FORMULA:
            cast = precision.AUTOCAST[self.precision] is not None and not self.native
            copy = 4 * self.batch_size * self.seq_len**2 if cast else 0
            held = max(copy + sum(memory.attention_peak_bytes(*shape, self.causal).values()), 9 * each)
        else:
            held = 9 * each + 3 * 4 * self.batch_size * self.seq_len * min(memory.TILE, self.seq_len)
        one = 2 * each // self.batch_size  # a sequence in double
        return max(held + 4 * one, 5 * each + 13 * one + attending.block_bytes(1, self.seq_len, width=8))

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration."""
        shape = (self.batch_size, self.seq_len, self.d_head)
        return flops.attention_costs(self.variant, *shape, self.causal, self.precision, self.native)

    def setup(self) -> Work:
        """Draw Q, K, V and the gradient of the output from a standard normal."""
        autocast = precision.activate(self.precision, self.device)
        shape, narrow = (self.batch_size, self.seq_len, self.d_head), precision.AUTOCAST[self.precision]
        inputs = [torch.randn(shape, device=self.device) for _ in range(3)]
        dout_BTD = torch.randn(shape, device=self.device)
        dout_narrow_BTD = dout_BTD.to(narrow or torch.float32)
        if self.native:
            autocast, inputs = contextlib.nullcontext(), [tensor.to(narrow) for tensor in inputs]
        for tensor in inputs:
            tensor.requires_grad_()
        attend, last = attention.VARIANTS[self.variant], {}
        flush = cache.flush(self.device) if self.cold else lambda: None

        def iteration(mark: Mark) -> None:
            with autocast:
                last["out"] = attend(*inputs, self.causal)
            mark("forward")
            last["gradients"] = torch.autograd.grad(last["out"], inputs, dout_narrow_BTD)
            mark("backward")

        def before() -> None:
            precision.activate(self.precision, self.device)  # a baseline may have set another
            last.clear()
            flush()

        def expected() -> dict[str, torch.Tensor]:
            first = [exact.double(tensor[0]).requires_grad_() for tensor in inputs]
            out_TD = attending.by_rows(*first, self.causal)
            out_TD.backward(exact.double(dout_BTD[0]))
            return {"out": out_TD.detach(), "gradient": torch.stack([tensor.grad for tensor in first])}

        def result() -> dict[str, torch.Tensor]:
            gradient = torch.stack([gradient[0] for gradient in last["gradients"]])
            return {"out": last["out"][0].detach(), "gradient": gradient}

        moved = flops.attention_moved_bytes(self.variant, *shape, self.causal, self.precision, self.native)
        facts = {"forward_flops": flops.attention_flops(*shape), "moved_bytes": sum(moved.values())}
        if self.causal:
            facts["causal_flops"] = flops.attention_flops(*shape, causal=True)
        if self.variant == "sdpa":
            with autocast:
                kernel = attention.sdpa_backend(*inputs, self.causal)
            facts |= {"sdpa_backend": kernel} if kernel else {}
        return Work(
            self.device, iteration, expected, result, TOLERANCE[self.precision], facts,
            compiled=self.compiles, before=before, repeats=not self.cold,
        )  # fmt: skip
