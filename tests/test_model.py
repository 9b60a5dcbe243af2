"""The language model is the one of the equations, whatever the attention, and refuses shapes it cannot have."""

import dataclasses

import pytest
import torch

from lib.attention import VARIANTS, unavailable
from lib.cost import flops
from lib.instruments import environment
from lib.model import SIZES, Config, RMSNorm, RoPE, TransformerLM, loss

# no two dimensions are equal, so that a mixed-up one cannot pass; the tokens are fewer than the context
CONFIG = Config(vocab_size=23, context_length=12, d_model=24, d_ff=40, num_layers=2, num_heads=3, rope_theta=100.0)
TOKENS = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(1))

pytestmark = pytest.mark.usefixtures("forget_graphs")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")
HERE = [name for name in VARIANTS if not unavailable(name, "cpu", CONFIG.d_head, "fp32")]
ATTENTIONS = [pytest.param(name, marks=needs_compiler) if name == "compiled" else name for name in HERE]


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
    frequencies = torch.tensor([config.rope_theta ** (-2 * i / d_head) for i in range(d_head // 2)])
    turns = torch.exp(1j * torch.outer(torch.arange(positions), frequencies.double()))

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


def loss_by_formula(logits, targets):
    wanted = logits.gather(-1, targets[..., None])[..., 0]
    return (logits.exp().sum(-1).log() - wanted).mean()


def test_logits_and_every_gradient_are_those_of_the_formula():
    network = build()
    logits = network(TOKENS)
    loss(logits, TARGETS).backward()

    weights = {name: p.detach().double().requires_grad_() for name, p in network.state_dict().items()}
    expected = logits_by_formula(weights, CONFIG, TOKENS)
    loss_by_formula(expected, TARGETS).backward()

    torch.testing.assert_close(logits.double(), expected, atol=1e-5, rtol=1e-5)
    found = {name: p.grad.double() for name, p in network.named_parameters()}
    wanted = {name: p.grad for name, p in weights.items()}
    assert all(gradient.abs().max() > 1e-4 for gradient in wanted.values())  # else the next line says little
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_attention_gives_the_same_logits(attention):
    with torch.no_grad():
        torch.testing.assert_close(build(attention=attention)(TOKENS), build()(TOKENS), atol=1e-5, rtol=1e-5)


def test_the_attention_named_is_the_one_used(monkeypatch):
    monkeypatch.setitem(VARIANTS, "sdpa", lambda q, k, v, causal: torch.zeros_like(v))
    with torch.no_grad():
        assert (build(attention="sdpa")(TOKENS) - build()(TOKENS)).abs().max() > 1e-2


@pytest.mark.parametrize("attention", ["naive", "tiled", "sdpa"])
@pytest.mark.parametrize("changed", [1, 5, 8])
def test_a_token_changes_no_earlier_logit(attention, changed):
    network = build(attention=attention)
    other = TOKENS.clone()
    other[:, changed] = (other[:, changed] + 1) % CONFIG.vocab_size
    with torch.no_grad():
        before, after = network(TOKENS), network(other)
    torch.testing.assert_close(after[:, :changed], before[:, :changed], atol=1e-6, rtol=0)
    assert ((after - before)[:, changed:].abs().amax(-1) > 1e-4).all()


def test_sequences_of_a_batch_do_not_see_each_other():
    with torch.no_grad():
        torch.testing.assert_close(build()(TOKENS)[1], build()(TOKENS[1:])[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("length", [1, 12])
def test_any_length_up_to_the_context_is_accepted(length):
    assert build()(torch.zeros(3, length, dtype=torch.long)).shape == (3, length, 23)


def test_more_tokens_than_the_context_are_refused():
    with pytest.raises(ValueError, match="got 13, expected at most context_length 12"):
        build()(torch.zeros(1, 13, dtype=torch.long))


def test_rope_makes_scores_depend_on_the_distance_only():
    torch.manual_seed(0)
    rope = RoPE(8, 64, 10_000.0)
    q, k = rope(torch.randn(1, 8).expand(64, 8)), rope(torch.randn(1, 8).expand(64, 8))
    scores = q @ k.T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], atol=1e-5, rtol=0)
    assert scores[0].std() > 0.1  # and on the distance they do depend


def test_rope_keeps_lengths_and_leaves_the_first_position_alone():
    x = torch.randn(2, 3, 64, 8, generator=torch.Generator().manual_seed(0))
    turned = RoPE(8, 64, 10_000.0)(x)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[..., 0, :], x[..., 0, :])
    assert (turned - x)[..., 1:, :].norm(dim=-1).min() > 0.1


def test_rope_returns_the_type_it_was_given():
    assert RoPE(8, 4, 10_000.0)(torch.ones(4, 8, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rmsnorm_computes_narrow_types_in_fp32(dtype):
    norm = RMSNorm(64)
    torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    wide = x.float()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * norm.weight
    found = norm(x)
    assert found.dtype == dtype
    # only the rounding of the result is left: half of the type's spacing, and a little for fp32's own
    torch.testing.assert_close(found.float(), expected, atol=0, rtol=0.51 * torch.finfo(dtype).eps)


def test_rmsnorm_of_large_fp16_does_not_overflow():
    x = torch.full((1, 8), 1e4, dtype=torch.float16)  # its square is beyond fp16
    torch.testing.assert_close(RMSNorm(8)(x), torch.ones_like(x))


def test_rmsnorm_of_zeros_is_zero():
    assert torch.equal(RMSNorm(8)(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_the_loss_is_log_sum_exp_minus_the_target():
    logits = torch.randn(2, 9, 23, generator=torch.Generator().manual_seed(0)) * 3
    torch.testing.assert_close(loss(logits, TARGETS).double(), loss_by_formula(logits.double(), TARGETS))


def test_the_loss_of_large_logits_is_finite():
    logits = torch.tensor([[[1e4, 0.0], [0.0, 1e4]]])
    assert loss(logits, torch.tensor([[0, 0]])).item() == pytest.approx(5e3)


@pytest.mark.parametrize("context_length", [16, 1024])
@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 3_609_728), ("small", 128_625_408), ("medium", 423_183_360), ("large", 969_411_840),
        ("xl", 1_998_235_200), ("2.7B", 3_406_809_600), ("10B", 12_832_823_808),
    ],
)  # fmt: skip
def test_the_sizes_have_the_parameters_of_the_assignment(size, parameters, context_length):
    config = dataclasses.replace(SIZES[size], context_length=context_length)
    with torch.device("meta"):
        network = TransformerLM(config)
    assert sum(p.numel() for p in network.parameters()) == parameters
    assert flops.shape_of(config, 4).parameters == parameters


def test_state_dict_keys_are_those_of_the_staff_model():
    parts = ["ln1", "ln2", *(f"attn.{x}_proj" for x in ("q", "k", "v", "output")), "ffn.w1", "ffn.w2", "ffn.w3"]
    keys = {f"layers.{n}.{name}.weight" for n in range(2) for name in parts}
    keys |= {"token_embeddings.weight", "ln_final.weight", "lm_head.weight"}
    assert set(build().state_dict()) == keys


def test_the_head_is_not_tied_to_the_embedding():
    network = build()
    assert network.lm_head.weight is not network.token_embeddings.weight
    assert not torch.equal(network.lm_head.weight, network.token_embeddings.weight)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"d_model": 34, "num_heads": 4}, "d_model: got 34, expected a multiple of num_heads 4"),
        ({"d_model": 12, "num_heads": 4}, "d_model: got a head size"), ({"d_model": -32, "num_heads": 4}, "d_model"),
        *(({name: 0}, name) for name in ("vocab_size", "d_ff", "num_layers", "num_heads", "rope_theta")),
        ({"context_length": -1}, "context_length"), ({"num_layers": True}, "num_layers"), ({"d_ff": "64"}, "d_ff"),
        ({"d_model": 32.0}, "d_model"), ({"vocab_size": None}, "vocab_size"), ({"rope_theta": "1e4"}, "rope_theta"),
        ({"rope_theta": True}, "rope_theta"),
    ],
    ids=str,
)  # fmt: skip
def test_a_shape_that_cannot_be_is_refused_by_the_name_of_its_field(values, field):
    with pytest.raises(ValueError, match=f"^{field}"):
        Config(**values)


def test_rope_theta_may_be_an_integer():
    assert Config(rope_theta=500_000).rope_theta == 500_000


def test_an_unknown_attention_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"^attention: got 'spda'.*nearest: sdpa"):
        TransformerLM(CONFIG, "spda")
