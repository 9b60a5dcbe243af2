"""Measure self-attention with its four projections, forward and backward."""

import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from lib import model, precision
from lib.cost import flops
from lib.experiments.case import Case, Work
from lib.experiments.reference import by_rows, checked
from lib.instruments.peak_memory import MIB
from lib.timing import Mark
from lib.validate import one_of


@dataclass(frozen=True)
class AttentionModule(Case):
    """Run causal self-attention as in a layer; raises ValueError for a bad value."""

    experiment: ClassVar[str] = "attention_module"
    d_model: int = 128
    # a single token gives the queries no gradient to check
    context_length: int = field(default=16, metadata={"least": 2})
    batch_size: int = 8
    num_heads: int = 1
    precision: str = one_of(precision.NAMES, "fp32")
    compiled: bool = False
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        # refuses a num_heads that does not divide d_model
        _ = self.config

    @property
    def compiles(self) -> bool:
        return self.compiled

    @property
    def config(self) -> model.Config:
        """Return the config of a model with such a layer, or raise ValueError."""
        return model.Config(d_model=self.d_model, num_heads=self.num_heads, context_length=self.context_length)

    def module(self) -> model.SelfAttention:
        """Build a layer's self-attention, with weights drawn as the model draws them."""
        rope = model.RoPE(self.config.d_head, self.config.context_length, self.config.rope_theta)
        return model.SelfAttention(self.config, rope, "naive")

    def setup(self) -> Work:
        """Build the module; draw input and output gradient from a standard normal."""
        autocast = precision.activate(self.precision, self.device)
        with torch.device(self.device):
            module = self.module()
            x_BTC = torch.randn(self.batch_size, self.context_length, self.d_model, requires_grad=True)
            dout_BTC = torch.randn_like(x_BTC)
        dout_narrow_BTC = dout_BTC.to(precision.AUTOCAST[self.precision] or torch.float32)
        weight = module.q_proj.weight
        # shares the weights, but neither compiles nor keeps scores
        reference = copy.copy(module)
        reference.attend = by_rows
        if self.compiled:
            module.compile(dynamic=False)
        last = {}

        def iteration(mark: Mark) -> None:
            with autocast:
                last["out"] = module(x_BTC)
            mark("forward")
            last["out"].backward(dout_narrow_BTC)
            mark("backward")

        def before() -> None:
            # a baseline may have set another
            precision.activate(self.precision, self.device)
            last.clear()
            x_BTC.grad = None
            module.zero_grad(set_to_none=True)

        def expected() -> dict[str, Tensor]:
            with precision.strict():
                out_BTC = reference(x_BTC)
                gradient_BTC, weight_gradient = torch.autograd.grad(out_BTC, (x_BTC, weight), dout_BTC)
            return {
                "out": out_BTC[0].detach().cpu(),
                "gradient": gradient_BTC[0].cpu(),
                "weight_gradient": checked(weight_gradient),
            }

        def result() -> dict[str, Tensor]:
            return {
                "out": last["out"][0].detach(),
                "gradient": x_BTC.grad[0],
                "weight_gradient": checked(weight.grad),
            }

        module_bytes = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
        facts = self._facts() | {"module_mib": [module_bytes / MIB]}
        return Work(self.device, iteration, expected, result, precision.TOLERANCE[self.precision], facts, before=before)

    def _facts(self) -> dict:
        """Return FLOPs of projections and attention, and the least bytes of each pass.

        Forward reads weights and input and writes the output. Backward reads weights, input and the output's gradient,
        and writes the gradients of the weights and of the input. All count as in fp32, although autocast narrows the
        output and its gradient."""
        weights_bytes = 4 * 4 * self.d_model**2
        input_bytes = 4 * self.batch_size * self.context_length * self.d_model
        projections = 8 * self.batch_size * self.context_length * self.d_model**2
        attention = flops.attention_flops(self.batch_size, self.context_length, self.d_model)
        return {
            "projection_flops": projections,
            "forward_flops": projections + attention,
            "forward_bytes": weights_bytes + 2 * input_bytes,
            "backward_bytes": 2 * weights_bytes + 3 * input_bytes,
        }
