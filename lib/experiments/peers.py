"""Measure our step beside Hugging Face's, from equal weights on one batch."""

import importlib.util
from dataclasses import dataclass, field
from importlib import metadata
from typing import ClassVar

import torch
from torch import Tensor, nn

from lib import adam, model
from lib.experiments.case import Case, Work
from lib.experiments.ladder import Ladder
from lib.experiments.step import Step
from lib.experiments.training import FIRST, Training
from lib.validate import one_of

OURS, PEER = "ours", "transformers"  # the peer's name is that of its package
PRECISIONS = ("fp32", "bf16_products", "bf16")
# up to so many tokens, on a CPU, naive attention in a compiled layer is no slower than PyTorch's kernel
SHORT = 256
NAMES = {  # parts of our parameters' names, and of the Llama's
    "token_embeddings.": "model.embed_tokens.", "layers.": "model.layers.", "ln_final.": "model.norm.",
    "ln1.": "input_layernorm.", "ln2.": "post_attention_layernorm.",
    "attn.": "self_attn.", "output_proj.": "o_proj.",
    "ffn.w1.": "mlp.gate_proj.", "ffn.w2.": "mlp.down_proj.", "ffn.w3.": "mlp.up_proj.",
}  # fmt: skip
ROTATED = ("q_proj.weight", "k_proj.weight")  # weights whose outputs RoPE turns, in pairs of neighbours or of halves
WITHOUT_MASK = "sdpa_without_mask"


@dataclass(frozen=True)
class Peers(Case):
    """Run a step of `program`, ours or transformers' Llama, each with what makes it fast.

    Both have as many weights and activations, and so the same costs. Raises ValueError for a bad value."""

    experiment: ClassVar[str] = "peers"
    compiles: ClassVar[bool] = True
    size: str = one_of(model.SIZES, "tiny")
    context_length: int = field(default=128, metadata={"least": 2})
    batch_size: int = 4
    precision: str = one_of(PRECISIONS, "fp32")
    program: str = one_of((OURS, PEER), PEER)
    device: str = "auto"

    @property
    def ladder(self) -> Ladder:
        """Return our training step with the switches that the ladder finds to gain on such a device."""
        switches = ["fused", "sdpa", "bf16_products", "bf16", "compiled", "whole"]
        left_out = {*PRECISIONS} - {self.precision}
        if self.device == "cpu":
            # compiled by layer, a step is as fast and its first one takes a fifth of the time
            left_out.add("whole")
            if self.context_length <= SHORT:
                left_out.add("sdpa")
        chosen = "+".join(switch for switch in switches if switch not in left_out)
        return Ladder(self.size, self.context_length, self.batch_size, chosen, False, self.device)

    def unavailable(self) -> str | None:
        if self.program == PEER and importlib.util.find_spec(PEER) is None:
            return f"{PEER} is not installed (make peers)"
        return self.ladder.unavailable() or super().unavailable()

    def setup(self) -> Work:
        """Build the program's step; the facts name our switches and the peer's version."""
        if self.program == OURS:
            work = self.ladder.setup()
        else:
            work = self.ladder.step.work(Llama(self.ladder.step))
            work.facts["peer_version"] = metadata.version(PEER)
        work.facts["switches"] = self.ladder.switches
        return work


class Llama(Training):
    """Train transformers' Llama, with the weights and batch that `Training` draws."""

    def __init__(self, step: Step):
        super().__init__(step)
        self.heads = step.config.num_heads
        with torch.device(step.device):
            llama = new_llama(step.config)
        weights = {}
        for name, weight in self.module.state_dict().items():
            if name.endswith(ROTATED):
                # reorder rows: our RoPE pairs neighbours, and Llama's pairs the two halves
                weight = weight.unflatten(0, (self.heads, -1, 2)).transpose(1, 2).flatten(0, 2)
            weights[their_name(name)] = weight
        llama.load_state_dict(weights)
        self.module = llama
        self.first = llama.get_parameter(their_name(FIRST))
        self.optimizer = adam.AdamW(llama.parameters(), step.optimizer)
        # its fastest mode: the whole model in one graph, and the loss in another
        self.network = torch.compile(lambda tokens_BT: llama(tokens_BT).logits, dynamic=False)
        self.loss = torch.compile(model.loss, dynamic=False)

    def plain(self, weights: Tensor) -> Tensor:
        """Return the weights with their rows in our RoPE's pairs of neighbours."""
        return weights.unflatten(0, (self.heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def new_llama(config: model.Config) -> nn.Module:
    """Build a Llama of our model's shape, without a mask in memory.

    Compiled, transformers writes the causal mask to memory and reads it in every layer. It makes none for a name that
    is registered with an attention function, but without a mask function. Without a mask, PyTorch's kernel leaves out
    the masked half by itself."""
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(WITHOUT_MASK, sdpa_attention_forward)
    shape = LlamaConfig(
        vocab_size=config.vocab_size, max_position_embeddings=config.context_length,
        hidden_size=config.d_model, intermediate_size=config.d_ff,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads,
        rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        attn_implementation=WITHOUT_MASK, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def their_name(name: str) -> str:
    """Return the name that one of our parameters has in the Llama."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name
