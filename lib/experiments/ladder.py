"""Measure training steps from plain to fastest, one switch more at each rung.

Every rung runs in interleaved pairs with the plain step, so that the gain of one switch is the quotient of two ratios
of the same kind. The allocator is the exception: a process that keeps freed pages cannot stop doing so, and the rung
`default_allocator` needs a process of its own and is compared by medians.
"""

import gc
from dataclasses import dataclass, field, replace
from typing import ClassVar

from lib import model, timing, validate
from lib.catalog import CATALOG
from lib.experiments import case as measuring
from lib.experiments.case import Case, Recording, Work
from lib.experiments.step import Step
from lib.experiments.training import Training
from lib.instruments import allocator, compilation, device
from lib.validate import one_of

PLAIN = "plain"
SWITCHES = CATALOG["ladder"].variants
# torch.compile's modes for the whole model; all but the default replay CUDA graphs
WHOLE_MODES = {"whole": "default", "reduce_overhead": "reduce-overhead", "max_autotune": "max-autotune"}
LOSS_STEPS = 50
# built and warmed up once: with a large model that takes longer than its pairs
_plain_works: dict["Ladder", Work] = {}  # the work of the last shape alone


@dataclass(frozen=True)
class Ladder(Case):
    """Run a step with `switches` on, or the `plain` one.

    Switches are joined by `+` in the order of the catalogue. `losses` also trains 50 steps with them, and 50 plain
    ones; among compiled cases, only the last one of a process may do that (see `compilation.cold`). Raises ValueError
    for switches that are unknown, out of order, exclude one another, or lack one which they need."""

    experiment: ClassVar[str] = "ladder"
    size: str = one_of(model.SIZES, "tiny")
    context_length: int = field(default=128, metadata={"least": 2})
    batch_size: int = 4
    switches: str = "fused"
    losses: bool = False
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        for switch in self.names:
            validate.choice("switches", switch, SWITCHES)
            for needed in SWITCHES[switch].needs:
                if needed not in self.names:
                    raise ValueError(f"switches: got {self.switches}, expected {needed} before {switch}")
        if list(self.names) != [switch for switch in SWITCHES if switch in self.names]:
            raise ValueError(f"switches: got {self.switches}, expected the order {', '.join(SWITCHES)}")
        if {"bf16_products", "bf16"} <= set(self.names):
            raise ValueError(f"switches: got {self.switches}, expected bf16_products or bf16, which replaces it")

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
        return any(SWITCHES[switch].compiles for switch in self.names)

    @property
    def whole_mode(self) -> str | None:
        """Return torch.compile's mode for the whole model.

        It is None if layers are compiled, or nothing is."""
        modes = [mode for switch, mode in WHOLE_MODES.items() if switch in self.names]
        return modes[-1] if modes else None

    @property
    def graphs(self) -> bool:
        """Return True if CUDA graphs replay the model's forward and backward pass."""
        return self.whole_mode not in (None, "default")

    @property
    def step(self) -> Step:
        """Return the step that these switches make."""
        return Step(
            self.size, self.context_length, self.batch_size,
            precision=next((name for name in ("bf16_products", "bf16") if name in self.names), "fp32"),
            compiled="compiled" in self.names,
            attention="sdpa" if "sdpa" in self.names else "naive",
            optimizer=next((name for name in ("masters", "fused") if name in self.names), "single_tensor"),
            mode="train_step", device=self.device,
        )  # fmt: skip

    def unavailable(self) -> str | None:
        if self.graphs and self.device != "cuda":
            return f"torch.compile's {self.whole_mode} is for CUDA"
        if self.allocator == "default" and not allocator.glibc():
            return "only glibc can be told to keep freed pages"
        return super().unavailable() or self.step.unavailable()

    def training(self) -> Training:
        """Build the model with the switches on, its optimizer and a batch."""
        return Training(self.step, whole_mode=self.whole_mode)

    def setup(self) -> Work:
        """Build the step, ready to measure."""
        work = self.step.work(self.training())
        work.graphs = self.graphs
        return work

    def measure(self, record: Recording, seconds: float) -> None:
        """Check the step, then time it in pairs with the plain one.

        `plain` and `default_allocator` are timed without pairs. The first round, and measuring by hand, add memory and,
        if asked, the losses of both."""
        plain = replace(self, switches=PLAIN, losses=False)
        # a GPU's allocator would count a plain step that waits for later rungs in the memory of this one
        if record.round <= 1 and self.device != "cpu":
            _plain_works.clear()
            gc.collect()
            record.level_bytes = device.on(self.device).memory_bytes().get("end", 0)
        work = record.setup()
        measuring.check(record, work)
        if record.round <= 1:
            record.metrics |= measuring.memory(work)
        if self.switches in (PLAIN, "default_allocator"):
            record.metrics |= measuring.times(work, seconds)
        else:
            record.part = "pairs"
            if plain not in _plain_works:
                _plain_works.clear()
                _plain_works[plain] = plain.setup()
            measuring.pairs_with(_plain_works[plain], record, work, seconds)
        if self.losses and record.round <= 1:
            record.free()
            compilation.reset()
            record.metrics["loss_nats"] = losses(self, LOSS_STEPS)
            record.metrics["plain_loss_nats"] = losses(plain, LOSS_STEPS)


def losses(case: Ladder, steps: int) -> list[float]:
    """Train from the same weights on one batch; return each step's loss in nats."""
    training = case.training()
    values = []
    for _ in range(steps):
        training.before()
        training.iteration(timing.nothing)
        values.append(training.last["loss"].item())
    return values
