"""Measure self-attention with its four projections, forward and backward."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lib import model, precision
from lib.cost import flops
from lib.experiments import attending, exact
from lib.experiments.case import Case, Work
from lib.instruments import device, peak_memory
from lib.timing import Mark
from lib.validate import one_of

TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class AttentionModule(Case):
    """Causal self-attention as in a layer of the model; raises ValueError for a bad value."""

    experiment: ClassVar[str] = "attention_module"
    d_model: int
    context_length: int = field(metadata={"least": 2})  # a single token gives the queries no gradient to check
    batch_size: int
    num_heads: int
    precision: str = one_of(precision.NAMES)
    compiled: bool
    device: str

    def __post_init__(self):
        super().__post_init__()
        _ = self.config  # refuses a num_heads that does not divide d_model

    @property
    def config(self) -> model.Config:
        """Return the config of a model with this layer."""
        return model.Config(
            context_length=self.context_length, d_model=self.d_model, num_heads=self.num_heads, d_ff=1, num_layers=1
        )

    @property
    def weights_bytes(self) -> int:
        """Return the bytes of the four projections, in single precision."""
        return 4 * 4 * self.d_model**2

    @property
    def input_bytes(self) -> int:
        """Return the bytes of a tensor of the input's shape, in single precision."""
        return 4 * self.batch_size * self.context_length * self.d_model

    @property
    def compiles(self) -> bool:
        """Return True if the module goes through torch.compile."""
        return self.compiled

    def predicted_bytes(self) -> int:
        """Predict the peak: the module's or the reference's, beside what is compared.

        The module holds the weights and their gradients; at most nine arrays of the input's shape and three of the
        scores'; the mask and the tables of the rotary embeddings. The reference holds the weights and the gradient of
        one, the arrays of one sequence, and a block of scores."""
        squares = self.context_length**2
        scores = 4 * self.batch_size * self.num_heads * squares
        tables = 4 * self.context_length * self.config.d_head
        sequence = self.input_bytes // self.batch_size
        compared = 3 * 4 * min(exact.CHECKED, self.d_model) * self.d_model + 2 * sequence
        iteration = 2 * self.weights_bytes + 9 * self.input_bytes + 3 * scores + squares
        block = attending.block_bytes(self.num_heads, self.context_length, width=4)
        reference = 5 * self.weights_bytes // 4 + 2 * self.input_bytes + 13 * sequence + block
        return max(iteration, reference) + compared + tables

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration: its attention, and the projections as 3 products."""
        shape = (self.batch_size * self.num_heads, self.context_length, self.config.d_head)
        inner = flops.attention_costs("naive", *shape, True, self.precision)
        facts = self._facts()
        outer = 3 * facts["projection_flops"], 3 * (facts["forward_bytes"] + facts["backward_bytes"]), 150
        return flops.Costs(*map(sum, zip(inner[:3], outer, strict=True)), self.weights_bytes // 4)

    def setup(self) -> Work:
        """Draw the weights as the model does, input and gradient of the output from a standard normal."""
        autocast = precision.activate(self.precision, self.device)
        with torch.device(self.device):
            module = self._module()
            x_BTC = torch.randn(self.batch_size, self.context_length, self.d_model, requires_grad=True)
            dout_BTC = torch.randn_like(x_BTC)
            dout_narrow_BTC = dout_BTC.to(precision.AUTOCAST[self.precision] or torch.float32)
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        built_bytes = device.on(self.device).memory_bytes().get("end")
        network, last = torch.compile(module, dynamic=False) if self.compiled else module, {}

        def iteration(mark: Mark) -> None:
            with autocast:
                last["out"] = network(x_BTC)
            mark("forward")
            last["out"].backward(dout_narrow_BTC)
            mark("backward")

        def before() -> None:
            precision.activate(self.precision, self.device)  # a baseline may have set another
            last.clear()
            x_BTC.grad = None
            module.zero_grad(set_to_none=True)

        def expected() -> dict[str, torch.Tensor]:
            with torch.device("meta"):
                reference = self._module()
            reference.attend, weight = attending.by_rows, module.q_proj.weight

            def sequence(x_BTC: torch.Tensor, dout_BTC: torch.Tensor) -> tuple[torch.Tensor, ...]:
                out_BTC = torch.func.functional_call(reference, held, x_BTC)
                gradient_BTC, weight_gradient = torch.autograd.grad(out_BTC, (x_BTC, weight), dout_BTC)
                return out_BTC[0].detach().cpu(), gradient_BTC[0].cpu(), exact.checked(weight_gradient)

            with precision.strict():
                found = map(sequence, x_BTC.split(1), dout_BTC.split(1))
                out_TC, gradient_TC, weight_gradient = next(found)
                for *_, other in found:
                    weight_gradient += other
            return {"out": out_TC, "gradient": gradient_TC, "weight_gradient": weight_gradient}

        def result() -> dict[str, torch.Tensor]:
            gradients = {"gradient": x_BTC.grad[0], "weight_gradient": exact.checked(module.q_proj.weight.grad)}
            return {"out": last["out"][0].detach(), **gradients}

        facts = self._facts() | {"model_mib": [sum(tensor.nbytes for tensor in held.values()) / peak_memory.MIB]}
        if built_bytes is not None:
            facts["built_mib"] = [built_bytes / peak_memory.MIB]
        return Work(
            self.device, iteration, expected, result, TOLERANCE[self.precision], facts,
            compiled=self.compiled, before=before,
        )  # fmt: skip

    def _module(self) -> model.SelfAttention:
        config = self.config
        return model.SelfAttention(config, model.RoPE(config.d_head, config.context_length, config.rope_theta), "naive")

    def _facts(self) -> dict:
        """Return the FLOPs of projections and attention, and the least bytes that each pass moves.

        Forward reads weights and input and writes the output. Backward reads weights, input and the output's gradient,
        and writes the gradients of the weights and of the input."""
        projections = 8 * self.batch_size * self.context_length * self.d_model**2
        attention = flops.attention_flops(self.batch_size, self.context_length, self.d_model)
        return {
            "projection_flops": projections,
            "attention_flops": attention,
            "forward_flops": projections + attention,
            "weights_bytes": self.weights_bytes,
            "forward_bytes": self.weights_bytes + 2 * self.input_bytes,
            "backward_bytes": 2 * self.weights_bytes + 3 * self.input_bytes,
        }
