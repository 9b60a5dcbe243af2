"""Train one model on several ranks, each on its part of the batch."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch.distributed as dist
from torch import Tensor

from lib import model, timing, validate
from lib.cost import flops, memory
from lib.experiments import attending
from lib.experiments.case import Work
from lib.experiments.on_ranks import BACKENDS, OnRanks
from lib.experiments.step import TOLERANCE, Step
from lib.experiments.training import MODES, Training
from lib.instruments import peak_memory
from lib.instruments.live_memory import held_bytes
from lib.parallel import accounting, ddp
from lib.timing import Mark
from lib.validate import one_of

MOVED = 3  # times that a rank reads or writes a message


class TrainingOnRanks(Training):
    """A model in training whose batch the ranks share: the first sequences of `batch` are this rank's.

    Replace `network` and `optimizer`, and `synchronize`, which waits until gradients are the averages of all ranks."""

    def __init__(self, case: "StepOnRanks"):
        super().__init__(replace(case.step, device=case.place))
        own = case.batch_size // case.world
        self.batch = self.batch.roll(-own * dist.get_rank(), 0)
        self.inputs_BT, self.targets_BT = self.batch[:, :-1], self.batch[:, 1:]
        self.own_BT, self.own_targets_BT = self.inputs_BT[:own], self.targets_BT[:own]
        self.synchronize: Callable[[], None] = timing.nothing

    def replicate(self, variant: str = "bucketed", bucket_mib: float = ddp.BUCKET_MIB) -> None:
        """Average the gradients of all ranks by our own class."""
        self.network = ddp.DistributedDataParallel(self.module, variant, bucket_mib)
        self.synchronize = self.network.finish_gradient_synchronization

    def iteration(self, mark: Mark) -> None:
        """Run a training step; synchronization left after the backward pass is a phase of its own."""
        with self.autocast:
            self.last["logits"] = self.network(self.own_BT)
            self.last["loss"] = model.loss(self.last["logits"], self.own_targets_BT)
        mark("forward")
        self.last["loss"].backward()
        mark("backward")
        self.synchronize()
        mark("synchronization")
        self.optimizer.step()
        mark("optimizer")

    def held_bytes(self) -> dict[str, int]:
        """Return the bytes of parameters, gradients, the optimizer's states and all other tensors."""
        params = list(self.network.parameters())
        optimizer = getattr(self.optimizer, "optim", self.optimizer)  # ZeroRedundancyOptimizer's own is inside
        states = [value for state in optimizer.state.values() for value in state.values()]
        owners = {
            "parameters": params,
            "gradients": [param.grad for param in params if param.grad is not None],
            "states": [value for value in states if isinstance(value, Tensor)],
        }
        return held_bytes(owners, self.case.device)


@dataclass(frozen=True)
class StepOnRanks(OnRanks):
    """A training step of `world` ranks, by the `variant` of how they work together.

    They share `batch_size` sequences. A subclass adds `precision`, and `training()`, which builds the model and its
    optimizer as the variant has them. Raises ValueError for an unknown or impossible value."""

    variants: ClassVar[dict[str, str]]  # each with its scheme in `parallel.accounting`
    size: str = one_of(model.SIZES)
    context_length: int = field(metadata={"least": 2})
    batch_size: int
    variant: str
    world: int = field(metadata={"least": 2})
    backend: str = one_of(BACKENDS)
    device: str

    def __post_init__(self):
        super().__post_init__()
        validate.choice("variant", self.variant, self.variants)
        if self.batch_size % self.world:
            raise ValueError(f"batch_size: got {self.batch_size}, expected a multiple of world, {self.world}")

    @property
    def step(self) -> Step:
        """Return the step of one process on the whole batch."""
        return Step(
            self.size, self.context_length, self.batch_size, self.precision, compiled=False, attention="sdpa",
            optimizer="fused", mode="train_step", device=self.device,
        )  # fmt: skip

    @property
    def own_shape(self) -> flops.Shape:
        """Return the dimensions of the model and of a rank's part of the batch."""
        return replace(self.step.shape, batch_size=self.batch_size // self.world)

    def formula_bytes(self) -> int:
        """Return the peak memory of a rank in its step by `parallel.accounting`."""
        ways = self.world, self.precision, "sdpa", "fused", self.place
        return int(sum(accounting.memory_bytes(self.variants[self.variant], self.own_shape, *ways).values()))

    def rank_bytes(self) -> int:
        """Predict the peak of a rank: the step's, or the reference's if that is larger.

        The check of a rank holds its share of the states beside all weights, and the activations of one sequence."""
        one = replace(self.own_shape, batch_size=1)
        reference = memory.peak_bytes(one, "fp32", "sdpa", "fused", "forward_backward", self.place, checkpoint=1)
        scores = attending.block_bytes(one.num_heads, self.context_length, width=4)
        return max(self.formula_bytes(), reference + scores)

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration: on one device of the ranks that share it, or of one rank's own."""
        of_rank = flops.step_costs(self.own_shape, self.precision, "sdpa", "fused", MODES["train_step"])
        sharing = self.world if self.backend == "gloo" else 1
        moved = MOVED * accounting.step_bytes(self.variants[self.variant], self.own_shape, self.world, self.precision)
        calls = 2 * accounting.tensors(self.own_shape)
        return flops.Costs(
            sharing * of_rank.flops, sharing * (of_rank.bytes + moved), of_rank.operations + calls, of_rank.drawn
        )

    def setup(self) -> Work:
        """Build the training step in this rank, ready to measure."""
        return self.work(self.training())

    def work(self, training: TrainingOnRanks) -> Work:
        """Return the measurable work of a model in training, which tells the memory of its first step."""
        facts = {
            "tokens": self.step.shape.tokens,
            "parameters": self.own_shape.parameters,
            "gradient_bytes": 4 * self.own_shape.parameters,
            "step_bytes": accounting.step_bytes(
                self.variants[self.variant], self.own_shape, self.world, self.precision
            ),
            "forward_flops": flops.forward_flops(self.step.shape),
            "backward_flops": flops.backward_flops(self.step.shape),
            "formula_mib": [self.formula_bytes() / peak_memory.MIB],
        } | self.threads()
        return Work(
            self.place, training.iteration, training.expected, training.result, TOLERANCE[self.precision], facts,
            before=training.before, around_first=lambda: memory_of_first(training), clock=self.clock(),
        )  # fmt: skip


@contextlib.contextmanager
def memory_of_first(training: TrainingOnRanks) -> Iterator[dict]:
    """Fill in the memory of live tensors before the first step and around its optimizer, by owner."""
    noted = {"initial_mib": [training.held_bytes()["all"] / peak_memory.MIB]}

    def before_step(*_) -> None:
        noted["before_step_mib"] = [training.held_bytes()["all"] / peak_memory.MIB]

    hook = training.optimizer.register_step_pre_hook(before_step)
    yield noted
    hook.remove()
    after = {name: [size / peak_memory.MIB] for name, size in training.held_bytes().items()}
    noted["after_step_mib"] = after.pop("all")
    noted |= {f"after_{owner}_mib": size for owner, size in after.items()}
