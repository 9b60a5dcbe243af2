"""Train a model for one iteration, and compute what the iteration should give."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lib import adam, fast, model, precision
from lib.config import MODES
from lib.experiments.reference import by_rows, checked, double
from lib.timing import Mark

FIRST = "layers.0.attn.q_proj.weight"  # a weight whose gradient passes through every layer
MASTERS = "masters"  # the optimizer of matrices in bf16, `fast.MastersAdamW`


def drawn(config: model.Config, batch_size: int, device: str, attention: str = "naive") -> tuple[nn.Module, Tensor]:
    """Draw a model, and a batch of token ids (B, T + 1), from a fixed seed."""
    torch.manual_seed(0)
    with torch.device(device):
        module = model.TransformerLM(config, attention)
        batch = torch.randint(config.vocab_size, (batch_size, config.context_length + 1))
    return module, batch


class Group(nn.Sequential):
    """Run consecutive layers, of which a forward pass keeps only the input."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        # layers draw no random numbers, so the state of the generator need not be saved
        return checkpoint(super().forward, x_BTC, use_reentrant=False, preserve_rng_state=False)


def regroup(module: nn.Module, size: int) -> None:
    """Run a model's `layers` in groups of `size`, which backward computes again.

    See Chen et al. 2016, https://arxiv.org/abs/1604.06174. The parameters stay the same tensors, under longer names."""
    groups = nn.ModuleList()
    for start in range(0, len(module.layers), size):
        groups.append(Group(*module.layers[start : start + size]))
    module.layers = groups


@functools.cache
def reference(config: model.Config, batch_size: int, device: str, backward: bool, sequence: int) -> dict[str, Tensor]:
    """Compute in fp32 what the plain model gives, from the seed that all cases have.

    `logits` are those of one sequence. `gradient`, if `backward`, is that of the first layer's query weights. Both are
    `checked` rows only."""
    module, batch = drawn(config, batch_size, device)
    first = module.get_parameter(FIRST)
    # hold few scores, and of each layer only the input
    for layer in module.layers:
        layer.attn.attend = by_rows
    regroup(module, 1)
    with precision.strict(), torch.set_grad_enabled(backward):
        logits_BTV = module(batch[:, :-1])
        results = {"logits": checked(logits_BTV[sequence])}
        if backward:
            loss = model.loss(logits_BTV, batch[:, 1:])
            results["gradient"] = checked(*torch.autograd.grad(loss, first))
    return results


class Training:
    """Hold a model in training, its optimizer and a batch of random tokens.

    `case` has the fields of `step.Step`; layers run in groups of `checkpoint` if not 0. A compiled case compiles the
    loss, and each layer or the whole model in the mode `whole_mode`."""

    def __init__(self, case, checkpoint: int = 0, whole_mode: str | None = None):
        self.case = case
        self.autocast = precision.activate(case.precision, case.device)
        self.module, batch = drawn(case.config, case.batch_size, case.device, case.attention)
        self.inputs_BT = batch[:, :-1]
        self.targets_BT = batch[:, 1:]
        # the place, in the batch of all ranks, of this batch's first sequence, which is checked
        self.sequence = 0
        self.first = self.module.get_parameter(FIRST)
        self.start = double(checked(self.first))
        self.synchronize: Callable[[], None] | None = None  # on ranks, waits until gradients are averages of all
        if checkpoint:
            regroup(self.module, checkpoint)
        if case.optimizer == MASTERS:
            self.optimizer = fast.MastersAdamW(self.module.parameters())
            self.optimizer.round_matrices(self.module)
        else:
            self.optimizer = adam.AdamW(self.module.parameters(), case.optimizer)
        self.network = self.module
        self.loss = model.loss
        if case.compiled:
            self.loss = torch.compile(model.loss, dynamic=False)
            if whole_mode is None:
                fast.compile_layers(self.module)
            else:
                self.network = torch.compile(self.module, dynamic=False, mode=whole_mode)
        self.last = {}

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the phases that `mode` has.

        On several ranks an iteration marks `synchronization`, too."""
        return MODES[self.case.mode]

    def iteration(self, mark: Mark) -> None:
        """Run the phases of the mode; `last` holds logits and loss until `before`."""
        with self.autocast, torch.set_grad_enabled(self.case.mode != "no_grad"):
            self.last["logits"] = self.network(self.inputs_BT)
            self.last["loss"] = self.loss(self.last["logits"], self.targets_BT)
        mark("forward")
        if "backward" in self.phases:
            self.last["loss"].backward()
            mark("backward")
        if self.synchronize is not None:
            self.synchronize()
            mark("synchronization")
        if "optimizer" in self.phases:
            self.optimizer.step()
            mark("optimizer")

    def before(self) -> None:
        """Free what the last iteration left."""
        # a baseline may have set another
        precision.activate(self.case.precision, self.case.device)
        self.last.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def expected(self) -> dict:
        """Return the plain model's results.

        If the mode has an optimizer, `update` is a function that computes the first update of the query weights from
        the iteration's own gradient."""
        case = self.case
        results = dict(reference(case.config, case.batch_size, case.device, "backward" in self.phases, self.sequence))
        if "optimizer" in self.phases:
            results["update"] = self._expected_update
        return results

    def _expected_update(self, results: dict[str, Tensor]) -> Tensor:
        new = self.start.clone()
        state = adam.state(new, "single_tensor", amsgrad=False)
        adam.step("single_tensor", [new], [double(results["gradient"])], [state], adam.Hyper())
        return new - self.start

    def result(self) -> dict[str, Tensor]:
        """Return the results of the first iteration, `checked` rows of each.

        Call it after exactly one: `update` is the change of the weights since the start."""
        results = {"logits": checked(self.last["logits"][0])}
        if "backward" in self.phases:
            results["gradient"] = checked(self.plain(self.first.grad))
        if "optimizer" in self.phases:
            new = self.optimizer.state.get(self.first, {}).get("master", self.first.detach())
            results["update"] = double(checked(self.plain(new))) - self.start
        return results

    def plain(self, weights: Tensor) -> Tensor:
        """Return `first`, or its gradient, as the plain model has it."""
        return weights
