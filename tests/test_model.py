"""The language model is the one of the equations, has the assignment's sizes, and refuses shapes it cannot have."""

import io

import numpy as np
import pytest
import torch
from scipy import stats

from lib.attention import VARIANTS
from lib.cost import flops
from lib.model import SIZES, Config, RMSNorm, RoPE, TransformerLM, linear, loss

# no two dimensions are equal, so that a mixed-up one cannot pass; the tokens are fewer than the context
CONFIG = Config(vocab_size=23, context_length=12, d_model=24, d_ff=40, num_layers=2, num_heads=3, rope_theta=100.0)
TOKENS = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))


def build(config=CONFIG, attention="naive"):
    """A model whose norms have weights other than one, so that leaving them out would be seen."""
    torch.manual_seed(0)
    network = TransformerLM(config, attention)
    for name, parameter in network.named_parameters():
        if "ln" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return network


def logits_by_formula(w, config, tokens):
    """Logits from a state dict: one head and one query at a time, RoPE as multiplication by e^(i t f)."""
    d_head, positions = config.d_model // config.num_heads, tokens.shape[1]
    frequencies = config.rope_theta ** (-2 * torch.arange(d_head // 2).double() / d_head)
    turns = torch.exp(1j * torch.outer(torch.arange(positions), frequencies))

    def norm(x, gain):
        return gain * x * (torch.einsum("btc,btc->bt", x, x)[..., None] / config.d_model + 1e-5) ** -0.5

    def rotate(x):
        pairs = torch.complex(x[..., 0::2], x[..., 1::2]) * turns
        return torch.view_as_real(pairs).flatten(-2)

    def attention(x, w, prefix):
        heads = []
        for head in range(config.num_heads):
            rows = slice(head * d_head, (head + 1) * d_head)
            q, k, v = (torch.einsum("btc,dc->btd", x, w[f"{prefix}.{name}_proj.weight"][rows]) for name in "qkv")
            q, k = rotate(q), rotate(k)
            seen = []
            for t in range(positions):
                weights = torch.exp(torch.einsum("bd,bsd->bs", q[:, t], k[:, : t + 1]) / d_head**0.5)
                seen.append(torch.einsum("bs,bsd->bd", weights / weights.sum(-1, keepdim=True), v[:, : t + 1]))
            heads.append(torch.stack(seen, dim=1))
        return torch.einsum("btc,dc->btd", torch.cat(heads, dim=-1), w[f"{prefix}.output_proj.weight"])

    def feed_forward(x, w, prefix):
        gate = torch.einsum("btc,fc->btf", x, w[f"{prefix}.w1.weight"])
        up = torch.einsum("btc,fc->btf", x, w[f"{prefix}.w3.weight"])
        return torch.einsum("btf,cf->btc", gate / (1 + torch.exp(-gate)) * up, w[f"{prefix}.w2.weight"])

    x = w["token_embeddings.weight"][tokens]
    for n in range(config.num_layers):
        x = x + attention(norm(x, w[f"layers.{n}.ln1.weight"]), w, f"layers.{n}.attn")
        x = x + feed_forward(norm(x, w[f"layers.{n}.ln2.weight"]), w, f"layers.{n}.ffn")
    return torch.einsum("btc,vc->btv", norm(x, w["ln_final.weight"]), w["lm_head.weight"])


def test_logits_and_every_gradient_are_those_of_the_formula():
    network = build()
    logits = network(TOKENS)
    loss(logits, TARGETS).backward()

    weights = {name: p.detach().double().requires_grad_() for name, p in network.state_dict().items()}
    expected = logits_by_formula(weights, CONFIG, TOKENS)
    of_targets = expected.gather(-1, TARGETS[..., None])[..., 0]
    (expected.exp().sum(-1).log() - of_targets).mean().backward()

    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=1e-5)
    gradients = {name: p.grad.double() for name, p in network.named_parameters()}
    wanted = {name: p.grad for name, p in weights.items()}
    assert all(gradient.abs().max() > 1e-4 for gradient in wanted.values())  # else the next line says little
    torch.testing.assert_close(gradients, wanted, atol=1e-5, rtol=1e-5)


def test_the_attention_named_is_the_one_used_and_an_unknown_one_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^attention: got 'spda'.*nearest: sdpa"):
        TransformerLM(CONFIG, "spda")
    monkeypatch.setitem(VARIANTS, "sdpa", lambda q, k, v, causal: torch.zeros_like(v))
    with torch.no_grad():
        assert (build(attention="sdpa")(TOKENS) - build()(TOKENS)).abs().max() > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("assign", [False, True])
def test_a_model_without_memory_gives_the_logits_of_the_state_that_it_loads(assign, dtype):
    state = build().to(dtype).state_dict()
    with torch.device("meta"):
        network = TransformerLM(CONFIG).to(dtype)
    if not assign:
        network.to_empty(device="cpu")
        for buffer in network.buffers():
            assert buffer.dtype == dtype
    network.load_state_dict(state, assign=assign)
    assert torch.equal(network(TOKENS), build().to(dtype)(TOKENS))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_of_any_attention_can_be_pickled(variant):
    network = build(attention=variant)
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    torch.testing.assert_close(loaded.state_dict(), network.state_dict())
    assert loaded.layers[0].attn.attend is VARIANTS[variant]


def test_as_many_tokens_as_the_context_are_accepted_and_no_more():
    assert build()(torch.zeros(3, 12, dtype=torch.long)).shape == (3, 12, 23)
    with pytest.raises(ValueError, match="got 13, expected at most context_length 12"):
        build()(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rmsnorm_computes_narrow_types_in_fp32(dtype):
    norm = RMSNorm(64)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = x.float()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight
    normed = norm(x)
    assert normed.dtype == dtype
    assert RoPE(64, 5, 10_000.0)(x).dtype == dtype
    # only the rounding of the result is left: half of the type's spacing, and a little for fp32's own
    torch.testing.assert_close(normed.float(), expected, atol=0, rtol=0.51 * torch.finfo(dtype).eps)


def test_large_numbers_do_not_overflow_and_small_ones_are_not_divided_by():
    x = torch.full((1, 8), 1e4, dtype=torch.float16)  # its square is beyond fp16
    torch.testing.assert_close(RMSNorm(8)(x), torch.ones_like(x))
    assert torch.equal(RMSNorm(8)(torch.zeros(2, 8)), torch.zeros(2, 8))
    assert loss(torch.tensor([[[1e4, 0.0], [0.0, 1e4]]]), torch.tensor([[0, 0]])).item() == pytest.approx(5e3)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 3_609_728), ("small", 128_625_408), ("medium", 423_183_360), ("large", 969_411_840),
        ("xl", 1_998_235_200), ("2.7B", 3_406_809_600), ("10B", 12_832_823_808),
    ],
)  # fmt: skip
def test_the_sizes_have_the_parameters_of_the_assignment(size, parameters):
    with torch.device("meta"):
        network = TransformerLM(SIZES[size])
    assert torch.nn.utils.parameters_to_vector(network.parameters()).numel() == parameters
    assert flops.shape_of(SIZES[size], 4).parameters == parameters


def test_a_shape_that_cannot_be_is_refused_by_the_name_of_its_field():
    with pytest.raises(ValueError, match="d_model: got 34, expected a multiple of num_heads 4"):
        Config(d_model=34, num_heads=4)
    with pytest.raises(ValueError, match="d_model: got a head size of 3, expected an even one"):
        Config(d_model=12, num_heads=4)
    with pytest.raises(ValueError, match="rope_theta: got 0, expected a positive number"):
        Config(rope_theta=0)


def test_weights_are_normal_and_cut_at_three_sigma():
    torch.manual_seed(0)
    weight = linear(1000, 3000).weight.detach().numpy() / (2 / 4000) ** 0.5
    parts = [0.001, 0.1, 0.5, 0.7, 0.99, 1.0]
    assert np.quantile(weight, parts) == pytest.approx(stats.truncnorm(-3, 3).ppf(parts), abs=0.01)
