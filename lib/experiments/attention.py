"""Measure attention on queries, keys and values alone, without projections.

The batch holds `batch_size` sequences of `num_heads` heads each; one head is what the assignment times, and several in
a native type are FlashAttention's own benchmark.
"""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import attention, precision, timing
from lib.catalog import CATALOG
from lib.cost import flops, memory
from lib.experiments.case import Case, Work
from lib.experiments.reference import by_rows, double
from lib.instruments import device, environment, memory_limit
from lib.instruments.peak_memory import MIB, identity
from lib.validate import one_of


@dataclass(frozen=True)
class Attention(Case):
    """Run attention forward and backward; raises ValueError for a bad value."""

    experiment: ClassVar[str] = "attention"
    variant: str = one_of(attention.VARIANTS, "naive")
    seq_len: int = 128
    d_head: int = 64
    num_heads: int = 1
    batch_size: int = 8
    causal: bool = True
    precision: str = one_of(precision.NAMES, "fp32")
    native: bool = False  # Q, K and V are in the narrow type, without autocast
    cold: bool = False  # flush the caches before each iteration
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        if self.native and precision.AUTOCAST[self.precision] is None:
            raise ValueError(f"native: got True, expected False in {self.precision}, which casts nothing")

    @property
    def compiles(self) -> bool:
        return CATALOG["attention"].variants[self.variant].compiles

    def unavailable(self) -> str | None:
        shape = (self.batch_size * self.num_heads, self.seq_len, self.d_head)
        held_bytes = 0
        if CATALOG["attention"].variants[self.variant].holds_scores:
            # under autocast some scores are in fp32, too
            number_bytes = flops.width(self.precision) if self.native else 4
            held_bytes = memory.attention_peak_bytes(*shape, self.causal, number_bytes)
        missing = attention_unavailable(self, self.variant, self.d_head)
        return missing or memory_limit.refusal(held_bytes, self.device)

    def setup(self) -> Work:
        """Draw Q, K, V and the gradient of the output from a standard normal."""
        autocast = precision.activate(self.precision, self.device)
        narrow = precision.AUTOCAST[self.precision] or torch.float32
        shape = (self.batch_size * self.num_heads, self.seq_len, self.d_head)
        dtype = torch.float32
        if self.native:
            autocast = contextlib.nullcontext()
            dtype = narrow
        # no fp32 tensor but the case's own stays on the device, since the peak would count it
        inputs = [torch.randn(shape, device=self.device).to(dtype).requires_grad_() for _ in range(3)]
        dout_narrow_BTD = torch.randn(shape, device=self.device).to(narrow)
        attend = attention.VARIANTS[self.variant]
        flush = timing.nothing
        if self.cold:
            flush = device.flush(self.device)
        last = {}

        def iteration(mark: timing.Mark) -> None:
            with autocast:
                last["out"] = attend(*inputs, self.causal)
            mark("forward")
            last["gradients"] = torch.autograd.grad(last["out"], inputs, dout_narrow_BTD)
            mark("backward")

        def before() -> None:
            # a baseline may have set another precision
            precision.activate(self.precision, self.device)
            last.clear()
            flush()

        def expected() -> dict[str, torch.Tensor]:
            return _expected(shape, dtype, narrow, self.causal, self.device)

        def result() -> dict[str, torch.Tensor]:
            gradient = torch.stack([tensor[0] for tensor in last["gradients"]])
            return {"out": last["out"][0].detach(), "gradient": gradient}

        moved = flops.attention_moved_bytes(self.variant, *shape, self.causal, self.precision, self.native)
        facts = {"forward_flops": flops.attention_flops(*shape), "moved_bytes": sum(moved.values())}
        if self.causal:
            facts["causal_flops"] = flops.attention_flops(*shape, causal=True)
        if self.variant == "sdpa":
            with autocast:
                facts["sdpa_kernel"] = attention.chosen_kernel(*inputs, self.causal)
        return Work(
            self.device, iteration, expected, result, precision.TOLERANCE[self.precision], facts,
            before=before, repeats=not self.cold, around_first=saved,
        )  # fmt: skip


@functools.lru_cache(maxsize=8)  # shapes, which all variants share
def _expected(
    shape: tuple[int, int, int], dtype: torch.dtype, narrow: torch.dtype, causal: bool, device: str
) -> dict[str, torch.Tensor]:
    """Compute in double precision what the first head of `Attention.setup` gives.

    It draws the inputs again, from the seed that every case has."""
    torch.manual_seed(0)
    q_TD, k_TD, v_TD = [double(torch.randn(shape, device=device)[0].to(dtype)).requires_grad_() for _ in range(3)]
    dout_TD = double(torch.randn(shape, device=device)[0].to(narrow))
    out_TD = by_rows(q_TD, k_TD, v_TD, causal)
    out_TD.backward(dout_TD)
    return {"out": out_TD.detach(), "gradient": torch.stack([q_TD.grad, k_TD.grad, v_TD.grad])}


def attention_unavailable(case: Case, variant: str, d_head: int) -> str | None:
    """Return why this machine cannot run a case with a variant of attention, or None."""
    # Triton needs a compiler as well, and `compiles` tells only of torch.compile
    missing = environment.compiler_missing(case.device) if variant == "triton" else None
    capability = device.on(case.device).capability()
    missing = missing or attention.unavailable(variant, case.device, d_head, case.precision, capability)
    # not case.unavailable, which calls this function
    return missing or Case.unavailable(case)


@contextlib.contextmanager
def saved() -> Iterator[dict[str, list[float]]]:
    """Yield a dict that gets `saved_mib`: what the block saves for a backward pass.

    Each tensor counts once, however often it is saved."""
    metrics: dict[str, list[float]] = {}
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        sizes[identity(storage)] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield metrics
    metrics["saved_mib"] = [sum(sizes.values()) / MIB]
