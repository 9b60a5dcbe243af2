"""Measure training steps from plain to fastest, with one switch more at each rung.

Every rung runs in interleaved pairs with the plain step, so that the gain of one switch is the quotient of two ratios
of the same kind. The allocator is the exception: a process that keeps freed pages cannot give them back, so the rung
`default_allocator` needs a kernel of its own and is compared by medians.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lib import fast, model, timing, validate
from lib.experiments import case as measuring
from lib.experiments.case import Case, Recording, Work
from lib.experiments.step import Step
from lib.experiments.training import Training
from lib.instruments import compilation, environment
from lib.validate import one_of

PLAIN = "plain"
SWITCHES = {  # in the order in which a report lists them
    "default_allocator": "freed pages go back to the system",
    "fused": "AdamW(fused=True)",
    "sdpa": "scaled_dot_product_attention",
    "compiled": "torch.compile of each layer",
    "products": "matrix products by the faster library",
    "bf16": "bf16 autocast",
    "projections": "joined projections",
    "cast_once": "weights cast once a step",
    "whole": "torch.compile of the whole model",
    "reduce_overhead": "CUDA graphs (mode reduce-overhead)",
    "max_autotune": "mode max-autotune",
}
NEEDS = {  # a switch that works only with others
    "cast_once": ("bf16", "fused"),
    "whole": ("compiled",),
    "reduce_overhead": ("compiled", "whole"),
    "max_autotune": ("compiled", "whole"),
}
MODES = {"reduce_overhead": "reduce-overhead", "max_autotune": "max-autotune"}
LOSS_STEPS = 50
# built and warmed up once: with a large model that takes longer than its pairs
_plain_works: dict["Ladder", Work] = {}  # of the last shape alone


@dataclass(frozen=True)
class Ladder(Case):
    """Run a step with `switches`, joined by `+` in the order of SWITCHES, or `plain`.

    `losses` also trains 50 steps beside the plain one. Raises ValueError for switches that are unknown, out of order,
    or lack one that they need."""

    experiment: ClassVar[str] = "ladder"
    size: str = one_of(model.SIZES)
    context_length: int = field(metadata={"least": 2})
    batch_size: int
    switches: str
    losses: bool
    device: str

    def __post_init__(self):
        super().__post_init__()
        for switch in self.names:
            validate.choice("switches", switch, SWITCHES)
            for needed in NEEDS.get(switch, ()):
                if needed not in self.names:
                    raise ValueError(f"switches: got {self.switches}, expected {needed} before {switch}")
        if list(self.names) != [switch for switch in SWITCHES if switch in self.names]:
            raise ValueError(f"switches: got {self.switches}, expected the order {', '.join(SWITCHES)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Return the switches that are on."""
        if self.switches == PLAIN:
            return ()
        return tuple(self.switches.split("+"))

    @property
    def allocator(self) -> str:
        """Return what happens to freed pages."""
        return "default" if "default_allocator" in self.names else "keeps"

    @property
    def compiles(self) -> bool:
        return "compiled" in self.names or "cast_once" in self.names

    @property
    def step(self) -> Step:
        """Return the step that these switches make."""
        return Step(
            size=self.size,
            context_length=self.context_length,
            batch_size=self.batch_size,
            precision="bf16" if "bf16" in self.names else "fp32",
            compiled="compiled" in self.names,
            attention="sdpa" if "sdpa" in self.names else "naive",
            optimizer="fused" if "fused" in self.names else "single_tensor",
            mode="train_step",
            device=self.device,
        )

    def unavailable(self) -> str | None:
        for switch in MODES:
            if switch in self.names and self.device != "cuda":
                return f"torch.compile's {MODES[switch]} is for CUDA"
        if "products" in self.names and self.device != "cpu":
            return "a choice of libraries for products is for CPUs"
        missing = environment.compiler_missing(self.device) if self.compiles else None
        return missing or self.step.unavailable()

    def training(self) -> Training:
        """Build the accelerated model, its optimizer and a batch."""
        modes = [MODES[switch] for switch in MODES if switch in self.names]
        return Training(
            self.step,
            switches=[switch for switch in fast.SWITCHES if switch in self.names],
            whole="whole" in self.names,
            compile_mode=modes[0] if modes else "default",
        )

    def setup(self) -> Work:
        """Build the step, ready to measure."""
        work = self.step.work(self.training())
        work.compiled = self.compiles
        work.graphs = any(switch in self.names for switch in MODES)
        return work

    def plain(self) -> "Ladder":
        """Return the case without any switch."""
        return Ladder(self.size, self.context_length, self.batch_size, PLAIN, False, self.device)

    def measure(self, record: Recording, seconds: float) -> None:
        """Check the step, then time it in pairs with the plain one, else alone.

        The first round, and measuring by hand, add memory and, if asked, the losses of both."""
        work = record.setup()
        measuring.check(record, work)
        if record.round <= 1:
            record.metrics |= measuring.memory(work)
        if self.switches in (PLAIN, "default_allocator"):
            record.metrics |= measuring.times(work, seconds)
        else:
            record.part = "pairs"
            measuring.pairs_with(self._plain_work(), record, work, seconds)
        if self.losses and record.round <= 1:
            record.free()
            compilation.reset()
            record.metrics["loss_nats"] = losses(self, LOSS_STEPS)
            record.metrics["plain_loss_nats"] = losses(self.plain(), LOSS_STEPS)

    def _plain_work(self) -> Work:
        """Return the plain step, which this process keeps for other rungs of its shape."""
        plain = self.plain()
        if plain not in _plain_works:
            _plain_works.clear()
            torch.manual_seed(0)
            _plain_works[plain] = plain.setup()
        return _plain_works[plain]


def losses(case: Ladder, steps: int) -> list[float]:
    """Train from the same weights on one batch; return each step's loss in nats."""
    torch.manual_seed(0)
    training = case.training()
    values = []
    for _ in range(steps):
        training.before()
        training.iteration(timing.nothing)
        values.append(training.last["loss"].item())
    return values
