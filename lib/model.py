"""Build the Transformer language model of Stanford's CS336.

Shapes in names: B batch, T tokens, C d_model, F d_ff, H heads, D head size, P pairs of features, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from lib import validate
from lib.attention import VARIANTS
from lib.config import SIZES, Config

__all__ = ["SIZES", "Block", "Config", "RMSNorm", "RoPE", "SelfAttention", "SwiGLU", "TransformerLM", "linear", "loss"]


def linear(d_in: int, d_out: int) -> nn.Linear:
    """Draw a map without bias: normal, variance 2 / (d_in + d_out), cut at 3 sigma."""
    layer = nn.Linear(d_in, d_out, bias=False)
    truncated_normal_(layer.weight, math.sqrt(2 / (d_in + d_out)))
    return layer


@torch.no_grad()
def truncated_normal_(weight: Tensor, sigma: float) -> None:
    """Fill a tensor from a normal distribution of mean 0 cut at 3 sigma."""
    # the inverse of its distribution function: nn.init.trunc_normal_ draws until all lie inside, 6 times as long
    edge = math.erf(3 / math.sqrt(2))
    weight.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2) * sigma)


class RMSNorm(nn.Module):
    """Scale each row x to x / rms(x) * weight, in at least fp32.

    See Zhang and Sennrich 2019."""

    def __init__(self, d_model: int, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x_BTC: Tensor) -> Tensor:
        wide_BTC = x_BTC.to(torch.promote_types(x_BTC.dtype, torch.float32))
        rms_BT1 = torch.sqrt(wide_BTC.square().mean(-1, keepdim=True) + self.eps)
        return (wide_BTC / rms_BT1 * self.weight).to(x_BTC.dtype)


class SwiGLU(nn.Module):
    """Compute w2(silu(w1 x) * w3 x) (Shazeer 2020)."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.w1 = linear(d_model, d_ff)
        self.w2 = linear(d_ff, d_model)
        self.w3 = linear(d_model, d_ff)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.w2(nn.functional.silu(self.w1(x_BTC)) * self.w3(x_BTC))


class RoPE(nn.Module):
    """Rotate pairs 2i, 2i + 1 at t by t / theta^(2i / D) radians (Su et al. 2021)."""

    def __init__(self, d_head: int, context_length: int, theta: float):
        super().__init__()
        self.theta = theta
        # not in the state dict, which has the parameters alone
        self.register_buffer("cos_TP", torch.empty(context_length, d_head // 2), persistent=False)
        self.register_buffer("sin_TP", torch.empty_like(self.cos_TP), persistent=False)
        self.fill_tables()

    def fill_tables(self) -> None:
        """Compute the tables in fp32 on the CPU, and move them where they were."""
        context_length, pairs = self.cos_TP.shape
        frequency_P = self.theta ** -(torch.arange(pairs, device="cpu") / pairs)
        angle_TP = torch.arange(context_length, device="cpu")[:, None] * frequency_P
        self.cos_TP = angle_TP.cos().to(self.cos_TP)
        self.sin_TP = angle_TP.sin().to(self.sin_TP)

    def _apply(self, fn, recurse=True):
        """Move or cast the module, and compute the tables anew.

        `to_empty` leaves them unwritten, and a state dict has none."""
        super()._apply(fn, recurse)
        self.fill_tables()
        return self

    def forward(self, x_BHTD: Tensor) -> Tensor:
        # the model was built without memory, and got its parameters by assignment: the tables were never filled
        if self.cos_TP.is_meta:
            self.to_empty(device=x_BHTD.device)
        tokens = x_BHTD.shape[-2]
        cos_TP = self.cos_TP[:tokens]
        sin_TP = self.sin_TP[:tokens]
        even_BHTP = x_BHTD[..., 0::2]
        odd_BHTP = x_BHTD[..., 1::2]
        turned_even_BHTP = even_BHTP * cos_TP - odd_BHTP * sin_TP
        turned_odd_BHTP = even_BHTP * sin_TP + odd_BHTP * cos_TP
        return torch.stack([turned_even_BHTP, turned_odd_BHTP], dim=-1).flatten(-2).to(x_BHTD.dtype)


def split_heads(x_BTC: Tensor, num_heads: int) -> Tensor:
    """View features (B, T, C) as those of each head, (B, H, T, D)."""
    return x_BTC.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def join_heads(x_BHTD: Tensor) -> Tensor:
    """Put the features of all heads side by side again, (B, T, C)."""
    return x_BHTD.transpose(1, 2).flatten(-2)


class SelfAttention(nn.Module):
    """Compute causal multi-head self-attention with RoPE on queries and keys."""

    def __init__(self, config: Config, rope: RoPE, attention: str):
        super().__init__()
        self.num_heads = config.num_heads
        self.rope = rope
        self.attend = VARIANTS[attention]
        self.q_proj = linear(config.d_model, config.d_model)
        self.k_proj = linear(config.d_model, config.d_model)
        self.v_proj = linear(config.d_model, config.d_model)
        self.output_proj = linear(config.d_model, config.d_model)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q_BHTD = split_heads(self.q_proj(x_BTC), self.num_heads)
        k_BHTD = split_heads(self.k_proj(x_BTC), self.num_heads)
        v_BHTD = split_heads(self.v_proj(x_BTC), self.num_heads)
        out_BHTD = self.attend(self.rope(q_BHTD), self.rope(k_BHTD), v_BHTD, causal=True)
        return self.output_proj(join_heads(out_BHTD))


class Block(nn.Module):
    """Run a pre-norm layer: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, config: Config, rope: RoPE, attention: str):
        super().__init__()
        self.ln1 = RMSNorm(config.d_model)
        self.attn = SelfAttention(config, rope, attention)
        self.ln2 = RMSNorm(config.d_model)
        self.ffn = SwiGLU(config.d_model, config.d_ff)

    def forward(self, x_BTC: Tensor) -> Tensor:
        x_BTC = x_BTC + self.attn(self.ln1(x_BTC))
        return x_BTC + self.ffn(self.ln2(x_BTC))


class TransformerLM(nn.Module):
    """Map token ids (B, T) to logits (B, T, V).

    State-dict keys are those of the course's staff model. Raises ValueError for an unknown `attention`, and for more
    tokens than `config.context_length`."""

    def __init__(self, config: Config, attention: str = "naive"):
        super().__init__()
        validate.choice("attention", attention, VARIANTS)
        self.config = config
        # its tables serve all layers
        rope = RoPE(config.d_head, config.context_length, config.rope_theta)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        truncated_normal_(self.token_embeddings.weight, 1.0)
        self.layers = nn.ModuleList(Block(config, rope, attention) for _ in range(config.num_layers))
        self.ln_final = RMSNorm(config.d_model)
        self.lm_head = linear(config.d_model, config.vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        tokens = tokens_BT.shape[-1]
        if tokens > self.config.context_length:
            raise ValueError(f"tokens: got {tokens}, expected at most context_length {self.config.context_length}")
        x_BTC = self.token_embeddings(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        return self.lm_head(self.ln_final(x_BTC))


def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    """Compute mean cross-entropy of logits (B, T, V) for token ids (B, T), in nats."""
    return nn.functional.cross_entropy(logits_BTV.flatten(0, -2), targets_BT.flatten())
