"""Every variant of AdamW steps as PyTorch's own does, and its state can be saved, loaded and exchanged with it."""

import io

import pytest
import torch

from lib import adam
from lib.adam import VARIANTS, AdamW, Hyper
from lib.instruments import environment

EAGER = [name for name in VARIANTS if not name.startswith("compiled")]
pytestmark = pytest.mark.usefixtures("forget_graphs")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")
ALL = [name if name in EAGER else pytest.param(name, marks=needs_compiler) for name in VARIANTS]
SHAPES = [(3, 5), (7,), (), (2, 3, 4), (6,), (5,)]
FLAT, UNUSED = 4, 5  # the parameters whose gradient is zero, and None, throughout

PLAIN = Hyper(lr=0.01, weight_decay=0.0)
DECAYED = Hyper(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3, amsgrad=True)


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def give_gradients(params, step):
    """The gradients of a step; they shrink, so that amsgrad's maxima differ from the second moments."""
    generator = torch.Generator().manual_seed(1 + step)
    for i, p in enumerate(params):
        gradient = torch.randn(p.shape, generator=generator) * 0.7**step
        p.grad = None if i == UNUSED else torch.zeros_like(p) if i == FLAT else gradient


def run(optimizer, steps):
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for step in steps:
        give_gradients(params, step)
        optimizer.step()
    return [p.detach() for p in params]


def torch_adamw(params, hyper, **options):
    return torch.optim.AdamW(
        params, lr=hyper.lr, betas=(hyper.beta1, hyper.beta2), eps=hyper.eps, weight_decay=hyper.weight_decay,
        amsgrad=hyper.amsgrad, **options,
    )  # fmt: skip


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def check_twenty_steps(variant, hyper):
    optimizer = AdamW(parameters(), variant, hyper)
    found = run(optimizer, [0])
    with torch.compiler.set_stance("fail_on_recompile"):
        run(optimizer, range(1, 20))
    check(found, run(torch_adamw(parameters(), hyper, foreach=False), range(20)))


@pytest.mark.parametrize("hyper", [PLAIN, DECAYED], ids=["plain", "decayed-amsgrad"])
@pytest.mark.parametrize("variant", ALL)
def test_twenty_steps_are_those_of_torch_and_compile_once(variant, hyper):
    check_twenty_steps(variant, hyper)


@pytest.mark.parametrize("hyper", [Hyper(lr=0.01, weight_decay=0.3), Hyper(lr=0.01, weight_decay=0, amsgrad=True)])
@pytest.mark.parametrize("variant", EAGER)
def test_decay_and_amsgrad_work_one_without_the_other(variant, hyper):
    check_twenty_steps(variant, hyper)


@pytest.mark.parametrize("variant", EAGER)
def test_without_a_gradient_a_parameter_is_not_touched_and_with_a_zero_one_only_decays(variant):
    optimizer = AdamW(parameters(), variant, DECAYED)
    found, start = run(optimizer, range(20)), parameters()
    assert torch.equal(found[UNUSED], start[UNUSED])
    assert optimizer.param_groups[0]["params"][UNUSED] not in optimizer.state
    check(found[FLAT], start[FLAT].detach() * (1 - 0.01 * 0.3) ** 20)


@pytest.mark.parametrize("variant", EAGER)
def test_one_step_by_hand(variant):
    # moments 0.05 and 0.0025 are 0.5 and 0.25 without bias: 1 (1 - 0.1 0.1) - 0.1 0.5 / (sqrt(0.25) + 0.5) = 0.94
    p = torch.nn.Parameter(torch.ones(1))
    p.grad = torch.full((1,), 0.5)
    AdamW([p], variant, Hyper(lr=0.1, beta1=0.9, beta2=0.99, eps=0.5, weight_decay=0.1)).step()
    assert p.item() == pytest.approx(0.94, rel=1e-6)


@pytest.mark.parametrize("variant", EAGER)
def test_a_step_by_name_changes_no_gradient_and_counts_itself(variant):
    params = [p.detach() for p in parameters()]
    grads = [torch.ones_like(p) for p in params]
    states = [adam.state(p, variant, amsgrad=False) for p in params]
    adam.step(variant, params, grads, states, Hyper())
    adam.step(variant, params, grads, states, Hyper())
    assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in grads)
    assert [state["step"].item() for state in states] == [2] * len(SHAPES)
    check([state["exp_avg"] for state in states], [torch.full_like(p, 1 - 0.9**2) for p in params])


@pytest.mark.parametrize("amsgrad", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_parameter_has_the_state_that_torch_gives_it(variant, amsgrad):
    p = torch.nn.Parameter(torch.ones(3))
    p.grad = torch.ones(3)
    optimizer = torch_adamw([p], Hyper(amsgrad=amsgrad))
    optimizer.step()
    found = {name: value.shape for name, value in adam.state(p, variant, amsgrad).items()}
    assert found == {name: value.shape for name, value in optimizer.state[p].items()}


@pytest.mark.parametrize("variant", ALL)
def test_a_saved_optimizer_continues_as_if_never_stopped(variant):
    first = AdamW(parameters(), variant, DECAYED)
    run(first, range(5))
    second = AdamW([p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]], variant)
    second.load_state_dict(through_a_file(first.state_dict()))
    for one, other in zip(run(first, range(5, 10)), run(second, range(5, 10)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("variant", EAGER)
@pytest.mark.parametrize("ours_first", [True, False], ids=["to-torch", "from-torch"])
def test_the_state_exchanges_with_torch(variant, ours_first):
    def ours(params, hyper):
        return AdamW(params, variant, hyper)

    def theirs(params, hyper):
        return torch_adamw(params, hyper, fused=variant == "fused", foreach=variant == "foreach")

    make_first, make_second = (ours, theirs) if ours_first else (theirs, ours)
    first = make_first(parameters(), DECAYED)
    run(first, range(5))
    second = make_second([p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]], PLAIN)
    second.load_state_dict(through_a_file(first.state_dict()))
    check(run(second, range(5, 10)), run(first, range(5, 10)))


@pytest.mark.parametrize("variant", EAGER)
def test_a_schedule_of_the_learning_rate_is_followed(variant):
    mine, its = AdamW(parameters(), variant, DECAYED), torch_adamw(parameters(), DECAYED, foreach=False)
    for step in range(10):
        for optimizer in (mine, its):
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 10)
        found, expected = run(mine, [step]), run(its, [step])
    check(found, expected)


@pytest.mark.parametrize("variant", EAGER)
def test_groups_keep_their_own_learning_rate(variant):
    params, expected = parameters(), parameters()
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.1, "weight_decay": 0.0}]
    found = run(AdamW(groups, variant, DECAYED), range(5))
    groups = [{"params": expected[:2]}, {"params": expected[2:], "lr": 0.1, "weight_decay": 0.0}]
    check(found, run(torch_adamw(groups, DECAYED, foreach=False), range(5)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lr", -1e-3), ("lr", "1e-3"), ("eps", -1e-8), ("weight_decay", -0.1), ("beta1", 1.0), ("beta1", -0.1),
        ("beta2", 1.5), ("beta2", float("nan")), ("amsgrad", 1), ("amsgrad", "yes"),
    ],
)  # fmt: skip
def test_a_hyper_parameter_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}: "):
        Hyper(**{field: value})


def test_an_unknown_variant_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"^variant: got 'fusd'.*nearest: fused"):
        AdamW(parameters(), "fusd")
