"""Measure our training step beside that of Hugging Face transformers, from equal weights on one batch."""

import importlib.util
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import ClassVar

import torch
from torch import Tensor, nn

from lib import adam, precision
from lib.config import SIZES, Config
from lib.experiments import exact
from lib.experiments.case import OfAnother, Work
from lib.experiments.ladder import Ladder
from lib.experiments.training import Training
from lib.validate import one_of

PEER = "transformers"  # the name of its package
PROGRAMS = ("ours", PEER)
SHORT = 256  # tokens
NAMES = {  # parts of our parameters' names, and of the Llama's
    "token_embeddings.": "model.embed_tokens.",
    "layers.": "model.layers.",
    "ln_final.": "model.norm.",
    "ln1.": "input_layernorm.",
    "ln2.": "post_attention_layernorm.",
    "attn.": "self_attn.",
    "output_proj.": "o_proj.",
    "ffn.w1.": "mlp.gate_proj.",
    "ffn.w2.": "mlp.down_proj.",
    "ffn.w3.": "mlp.up_proj.",
}
ROTATED = ("q_proj.weight", "k_proj.weight")  # whose outputs RoPE turns: in pairs of neighbours, or of halves
WITHOUT_MASK = "sdpa_without_mask"


@dataclass(frozen=True)
class Peers(OfAnother):
    """A training step of `program`: ours, or that of transformers' Llama, each in its fastest mode.

    Both have as many weights and activations, and so the same costs.
    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "peers"
    size: str = one_of(SIZES)
    context_length: int = field(metadata={"least": 2})
    batch_size: int
    precision: str = one_of(precision.NAMES)
    program: str = one_of(PROGRAMS)
    device: str

    @property
    def inner(self) -> Ladder:
        """Return our training step in its fastest mode.

        On a CPU, the compiled formula of attention is faster than PyTorch's kernel below fp32 up to `SHORT` tokens."""
        narrow = precision.AUTOCAST[self.precision] is not None
        short = self.device == "cpu" and narrow and self.context_length <= SHORT
        return Ladder(
            size=self.size, context_length=self.context_length, batch_size=self.batch_size, precision=self.precision,
            compiled=True, attention="naive" if short else "sdpa", optimizer="fused", mode="train_step",
            device=self.device, projections=True, cast_once=narrow,
            compile_mode="default",
        )  # fmt: skip

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        if self.program == PEER and importlib.util.find_spec(PEER) is None:
            return f"{PEER} is not installed (make peers)"
        return super().unavailable()

    def setup(self) -> Work:
        """Build the step of the program, with the peer's version among the facts."""
        if self.program != PEER:
            return super().setup()
        work = self.inner.work(Llama(self.inner))
        return replace(work, facts=work.facts | {"peer_version": metadata.version(PEER)})


class Llama(Training):
    """Train the Llama of transformers, with the weights and the batch that `Training` draws."""

    def __init__(self, case: Ladder):
        super().__init__(case)
        ours, heads = self.module, case.config.num_heads
        with torch.device(case.device):
            self.module = llama = _llama(case.config)
        weights = ours.state_dict().items()
        llama.load_state_dict({_theirs(name): _by_halves(name, weight, heads) for name, weight in weights})
        self.weights = dict(ours.named_buffers()) | {
            name: _by_pairs(name, llama.get_parameter(_theirs(name)), heads) for name, _ in ours.named_parameters()
        }
        self.first = llama.get_parameter(_theirs("layers.0.attn.q_proj.weight"))
        self.start = exact.double(exact.checked(self.first))
        self.optimizer = adam.AdamW(llama.parameters(), case.optimizer)
        self.network = torch.compile(lambda tokens_BT: llama(tokens_BT).logits, dynamic=False)


def _llama(config: Config) -> nn.Module:
    """Build a Llama of our model's shape.

    Compiled, transformers writes the causal mask to memory and reads it in every layer. It makes none for attention
    that is registered by name alone; its function then lets PyTorch leave out the masked half."""
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(WITHOUT_MASK, sdpa_attention_forward)
    shape = LlamaConfig(
        vocab_size=config.vocab_size, hidden_size=config.d_model, intermediate_size=config.d_ff,
        num_hidden_layers=config.num_layers, num_attention_heads=config.num_heads, rms_norm_eps=1e-5,
        max_position_embeddings=config.context_length, use_cache=False, attn_implementation=WITHOUT_MASK,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def _theirs(name: str) -> str:
    """Return the name that one of our parameters has in the Llama."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _by_halves(name: str, weight: Tensor, heads: int) -> Tensor:
    """Reorder rows from our RoPE's pairs of neighbours to the Llama's pairs across halves of a head."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2) if name.endswith(ROTATED) else weight


def _by_pairs(name: str, weight: Tensor, heads: int) -> Tensor:
    """Undo `_by_halves`, in a way that autograd follows."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2) if name.endswith(ROTATED) else weight
