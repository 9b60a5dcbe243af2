"""One training step of the language model: forward, backward and optimizer, in the same iteration."""

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from lib import adam, attention, check, cost, environment, memory, model, precision
from lib.measure import Work
from lib.timing import Mark

TOLERANCE = {"fp32": 1e-4, "tf32": 5e-2, "bf16": 2e-1, "fp16": 5e-1}  # in fp16 gradients underflow without scaling


@dataclass(frozen=True)
class Step:
    """A training step; raises ValueError for a value that is unknown or impossible."""

    experiment: ClassVar[str] = "step"
    size: str
    context_length: int
    batch_size: int
    precision: str
    compiled: bool
    attention: str
    optimizer: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        check.fields(self)
        check.choice("size", self.size, model.SIZES)
        check.choice("precision", self.precision, precision.NAMES)
        check.choice("attention", self.attention, attention.VARIANTS)
        check.choice("optimizer", self.optimizer, adam.VARIANTS)

    @property
    def config(self) -> model.Config:
        """The model's shape."""
        return model.Config(context_length=self.context_length, **model.SIZES[self.size])

    @property
    def shape(self) -> cost.Shape:
        """The dimensions that the costs depend on."""
        dimensions = {name: n for name, n in asdict(self.config).items() if name != "rope_theta"}
        return cost.Shape(batch_size=self.batch_size, **dimensions)

    @property
    def compiles(self) -> bool:
        """Whether any part of it goes through torch.compile."""
        return self.compiled or "compiled" in self.attention + self.optimizer

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        missing = environment.compiler_missing(self.device) if self.compiles else None
        return missing or precision.unavailable(self.precision, self.device)

    def predicted_bytes(self) -> int:
        """Peak memory of the step, or of the reference's, beside the logits that the two are compared by."""
        logits = 4 * self.shape.tokens * self.shape.vocab_size
        return logits + max(self.formula_bytes(), cost.step_bytes(self.shape, "fp32", "naive", "fused", self.device))

    def formula_bytes(self) -> int:
        """Peak memory of the step by the closed formula of `cost.step_bytes`."""
        return cost.step_bytes(self.shape, self.precision, self.attention, self.optimizer, self.device)

    def traced(self):
        """The peak memory of the step by kind and module, as `lib.predict` finds it without allocating, exactly.

        It takes seconds a case, and `predicted_bytes` microseconds; a sweep asks for hundreds of cases before it
        starts the first, which is why the formula decides whether one fits, and this explains where the bytes go.
        Raises ValueError where something compiles, since operations inside a graph cannot be followed."""
        if self.compiles:
            raise ValueError("compiled: a compiled step cannot be traced")
        from lib import predict  # brings torch.distributed along, which no measurement needs

        with precision.strict():
            return predict.predicted(lambda: Training(self))

    def setup(self) -> Work:
        """Build the model, its optimizer and a batch of random tokens."""
        training = Training(self)
        plain, inputs_BT, targets_BT = training.module, training.inputs_BT, training.targets_BT
        first = plain.layers[0].attn.q_proj.weight  # its gradient has come through every layer

        def expected() -> dict[str, torch.Tensor]:
            with torch.device("meta"):
                reference = model.TransformerLM(self.config)
            weights = {**dict(plain.named_parameters()), **dict(plain.named_buffers())}
            with precision.strict():
                logits = torch.func.functional_call(reference, weights, inputs_BT)
                (gradient,) = torch.autograd.grad(model.loss(logits, targets_BT), first)
            return {"logits": logits.detach(), "gradient": gradient}

        def result() -> dict[str, torch.Tensor]:
            return {"logits": training.last["logits"].detach(), "gradient": first.grad}

        traffic = cost.memory_bound_bytes(self.shape, self.precision, self.attention)
        facts = {
            "tokens": self.shape.tokens,
            "parameters": self.shape.parameters,
            "formula_mib": [self.formula_bytes() / memory.MIB],
            "d_model": self.config.d_model,
            "forward_flops": cost.forward_flops(self.shape),
            "backward_flops": cost.backward_flops(self.shape),
            "optimizer_flops": cost.optimizer_flops(self.shape.parameters, amsgrad=False),
            **{f"{phase}_bytes": sum(parts.values()) for phase, parts in traffic.items()},
        }
        return Work(
            self.device, training.iteration, expected, result, TOLERANCE[self.precision], facts,
            compiled=self.compiles, before=training.before,
        )  # fmt: skip


class Training:
    """The model, its optimizer, a batch of random tokens, and the step that they make."""

    def __init__(self, case: Step):
        self.case, self.autocast = case, precision.activate(case.precision, case.device)
        with torch.device(case.device):
            self.module = model.TransformerLM(case.config, case.attention)
            self.batch = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length + 1))
        self.inputs_BT, self.targets_BT = self.batch[:, :-1], self.batch[:, 1:]
        self.optimizer = adam.AdamW(self.module.parameters(), case.optimizer)
        self.network = torch.compile(self.module, dynamic=False) if case.compiled else self.module
        self.last = {}

    def iteration(self, mark: Mark) -> None:
        """Forward, backward and optimizer; the logits stay, to be compared."""
        with self.autocast:
            self.last["logits"] = self.network(self.inputs_BT)
            loss = model.loss(self.last["logits"], self.targets_BT)
        mark("forward")
        loss.backward()
        mark("backward")
        self.optimizer.step()
        mark("optimizer")

    def before(self) -> None:
        """Free what the last iteration left."""
        precision.activate(self.case.precision, self.case.device)  # a baseline may have set its own
        self.last.clear()
        self.optimizer.zero_grad(set_to_none=True)
