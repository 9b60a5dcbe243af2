"""Trains a model: what one iteration does, with activation checkpointing or without, and what it should compute."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lib import adam, model, precision
from lib.timing import Mark

MODES = {  # how much of a training step an iteration is, and the phases that it marks
    "train_step": ("forward", "backward", "optimizer"),
    "forward_backward": ("forward", "backward"),
    "forward": ("forward",),  # with the graph that a backward pass would need
    "no_grad": ("forward",),  # without it, as for inference
}


class Group(nn.Module):
    """Layers one after the other, of whose tensors a forward pass keeps only the first."""

    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x_BTC: Tensor) -> Tensor:
        # nothing here is drawn at random, so that no state of a generator need be kept
        return checkpoint(self.layers, x_BTC, use_reentrant=False, preserve_rng_state=False)


def regroup(module: nn.Module, size: int) -> None:
    """Let the `layers` of a model run in groups of `size`, the last perhaps smaller; 0 leaves them as they are.

    Of each group only the input is kept, and the rest is computed again for the backward pass (Chen et al. 2016,
    https://arxiv.org/abs/1604.06174). The parameters stay the same tensors, under longer names."""
    if size:
        starts = range(0, len(module.layers), size)
        module.layers = nn.ModuleList(Group(module.layers[start : start + size]) for start in starts)


class Training:
    """The model, its optimizer, a batch of random tokens, and the iteration that they make, for a `case` that has the
    fields of `step.Step`, with activation checkpointing in groups of `checkpoint` layers unless that is 0.
    `weights` are the parameters and buffers under the names of the plain model."""

    def __init__(self, case, checkpoint: int = 0):
        self.case, self.autocast = case, precision.activate(case.precision, case.device)
        with torch.device(case.device):
            self.module = model.TransformerLM(case.config, case.attention)
            self.batch = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length + 1))
        self.inputs_BT, self.targets_BT = self.batch[:, :-1], self.batch[:, 1:]
        self.weights = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self.first = self.module.layers[0].attn.q_proj.weight  # its gradient has come through every layer
        regroup(self.module, checkpoint)
        self.start = self.first.detach().clone()
        self.optimizer = adam.AdamW(self.module.parameters(), case.optimizer)
        self.network = torch.compile(self.module, dynamic=False) if case.compiled else self.module
        self.last = {}

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases that an iteration marks."""
        return MODES[self.case.mode]

    def iteration(self, mark: Mark) -> None:
        """Forward, with the loss, and as far as the mode goes backward and optimizer; the logits stay, to be
        compared, and with them the graph where there is one."""
        with self.autocast, torch.set_grad_enabled(self.case.mode != "no_grad"):
            self.last["logits"] = self.network(self.inputs_BT)
            loss = model.loss(self.last["logits"], self.targets_BT)
        mark("forward")
        if "backward" in self.phases:
            loss.backward()
            mark("backward")
        if "optimizer" in self.phases:
            self.optimizer.step()
            mark("optimizer")

    def before(self) -> None:
        """Free what the last iteration left."""
        precision.activate(self.case.precision, self.case.device)  # a baseline may have set its own
        self.last.clear()
        self.optimizer.zero_grad(set_to_none=True)

    def expected(self) -> dict:
        """The logits of the plain model in fp32 with the same weights, and, where there is a backward pass, the
        gradient of the first layer; where the optimizer runs, the first update of that layer, by the reference from
        the gradient that the iteration found."""
        with torch.device("meta"):
            reference = model.TransformerLM(self.case.config)
        with precision.strict(), torch.set_grad_enabled("backward" in self.phases):
            logits = torch.func.functional_call(reference, self.weights, self.inputs_BT)
            if "backward" not in self.phases:
                return {"logits": logits}
            (gradient,) = torch.autograd.grad(model.loss(logits, self.targets_BT), self.first)
        found = {"logits": logits.detach(), "gradient": gradient}
        return found | ({"update": self._update} if "optimizer" in self.phases else {})

    def _update(self, results: dict[str, Tensor]) -> Tensor:
        """What the reference's first step makes of the gradient in `results`, in double precision."""
        new = self.start.double()
        state = adam.state(new, "single_tensor", amsgrad=False)
        adam.step("single_tensor", [new], [results["gradient"].double()], [state], adam.Hyper())
        return new - self.start.double()

    def result(self) -> dict[str, Tensor]:
        """The same of the last iteration; the update is that since the start, so of the first iteration alone."""
        found = {"logits": self.last["logits"].detach()}
        if "backward" in self.phases:
            found["gradient"] = self.first.grad
        if "optimizer" in self.phases:
            found["update"] = self.first.detach().double() - self.start.double()
        return found
