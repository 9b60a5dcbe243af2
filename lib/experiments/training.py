"""Train a model for one iteration, and compute what the iteration should give."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lib import adam, fast, model, precision
from lib.experiments.reference import by_rows, checked, double
from lib.timing import Mark

MODES = {  # each runs part of a training step and marks these phases
    "train_step": ("forward", "backward", "optimizer"),
    "forward_backward": ("forward", "backward"),
    "forward": ("forward",),  # with the graph that a backward pass would need
    "no_grad": ("forward",),  # without it, as for inference
}

_references: dict[tuple, dict[str, Tensor]] = {}  # results that this process has computed


class Group(nn.Module):
    """Consecutive layers of which a forward pass keeps only the input."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x_BTC: Tensor) -> Tensor:
        # layers draw no random numbers, so the state of the generator need not be saved
        return checkpoint(self.layers, x_BTC, use_reentrant=False, preserve_rng_state=False)


def regroup(module: nn.Module, size: int) -> None:
    """Run the `layers` of a model in groups of `size`; 0 leaves them as they are.

    Only the input of each group is kept; the backward pass recomputes the rest (Chen et al. 2016,
    https://arxiv.org/abs/1604.06174). The parameters stay the same tensors, under longer names."""
    if size == 0:
        return
    groups = nn.ModuleList()
    for start in range(0, len(module.layers), size):
        groups.append(Group(module.layers[start : start + size]))
    module.layers = groups


class Training:
    """Hold a model in training, its optimizer and a batch of random tokens.

    `case` has the fields of `step.Step`; layers run in groups of `checkpoint` (see `regroup`), and `switches` are those
    of `fast.accelerate`. A compiled case compiles each layer, or the `whole` model in a `compile_mode`. `weights` holds
    the parameters and buffers under the names of the plain model."""

    def __init__(
        self,
        case,
        checkpoint: int = 0,
        switches: Iterable[str] = (),
        whole: bool = False,
        compile_mode: str = "default",
    ):
        self.case = case
        self.autocast = precision.activate(case.precision, case.device)
        with torch.device(case.device):
            self.module = model.TransformerLM(case.config, case.attention)
            self.batch = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length + 1))
        self.inputs_BT = self.batch[:, :-1]
        self.targets_BT = self.batch[:, 1:]
        self.weights = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        # its gradient passes through every layer
        self.first = self.module.layers[0].attn.q_proj.weight
        fast.accelerate(self.module, switches, precision.AUTOCAST[case.precision])
        regroup(self.module, checkpoint)
        self.start = double(checked(self.first))
        if "cast_once" in switches:
            self.optimizer = fast.AdamW(self.module.parameters())
        else:
            self.optimizer = adam.AdamW(self.module.parameters(), case.optimizer)
        self.network = self.module
        if case.compiled and whole:
            self.network = torch.compile(self.module, dynamic=False, mode=compile_mode)
        elif case.compiled:
            fast.compile_layers(self.module)
        self.last = {}

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the phases that an iteration marks."""
        return MODES[self.case.mode]

    def iteration(self, mark: Mark) -> None:
        """Run the phases of the mode; the logits stay, with their graph if there is one."""
        with self.autocast, torch.set_grad_enabled(self.case.mode != "no_grad"):
            self.last["logits"] = self.network(self.inputs_BT)
            self.last["loss"] = model.loss(self.last["logits"], self.targets_BT)
        mark("forward")
        if "backward" in self.phases:
            self.last["loss"].backward()
            mark("backward")
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
        """Compute the results of the plain model in fp32 with the same weights.

        They are the logits of the first sequence; with a backward pass also the gradient of the first layer's query
        weights; with an optimizer also their first update. Of each, `checked` rows. The update is a function that takes
        the iteration's own results."""
        # all cases draw from one seed, so those of one shape share weights, batch and results
        drawn = (self.batch.shape, self.batch.sum().item(), self.first.sum().item())
        key = (type(self), self.case.config, self.case.device, "backward" in self.phases, drawn)
        if key not in _references:
            _references[key] = self._reference_results()
        results = dict(_references[key])
        if "optimizer" in self.phases:
            results["update"] = self._reference_update
        return results

    def _reference_results(self) -> dict[str, Tensor]:
        reference = self._reference()
        with precision.strict(), torch.set_grad_enabled("backward" in self.phases):
            logits_BTV = reference(self.inputs_BT)
            results = {"logits": checked(logits_BTV[0])}
            if "backward" in self.phases:
                loss = model.loss(logits_BTV, self.targets_BT)
                # a weight that is cast once asks for a narrow gradient, and this result serves other cases too
                grad_dtype = self.first.grad_dtype
                self.first.grad_dtype = torch.float32
                results["gradient"] = checked(*torch.autograd.grad(loss, self.first))
                self.first.grad_dtype = grad_dtype
        return results

    def _reference(self) -> nn.Module:
        """Build the plain model of the same weights; it keeps only its layers' inputs."""
        with torch.device("meta"):
            reference = model.TransformerLM(self.case.config)
        for name, weight in self.weights.items():
            module, _, own = name.rpartition(".")
            owner = reference.get_submodule(module)
            # a parameter cannot be replaced by a tensor that depends on others
            delattr(owner, own)
            setattr(owner, own, weight)
        for layer in reference.layers:
            layer.attn.attend = by_rows
        regroup(reference, 1)
        return reference

    def _reference_update(self, results: dict[str, Tensor]) -> Tensor:
        """Return the reference's first update from the gradient in `results`, in double."""
        new = self.start.clone()
        state = adam.state(new, "single_tensor", amsgrad=False)
        adam.step("single_tensor", [new], [double(results["gradient"])], [state], adam.Hyper())
        return new - self.start

    def result(self) -> dict[str, Tensor]:
        """Return the results of the first iteration.

        Call it after exactly one: `update` is the change of the weights since the start. Of each, `checked` rows."""
        results = {"logits": checked(self.last["logits"][0])}
        if "backward" in self.phases:
            results["gradient"] = checked(self.first.grad)
        if "optimizer" in self.phases:
            results["update"] = double(checked(self.first)) - self.start
        return results
