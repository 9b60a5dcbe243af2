"""Every variant of AdamW steps as PyTorch's own does, and its state can be saved, loaded and exchanged with it."""

import copy
import io

import numpy as np
import pytest
import torch

from lib.adam import VARIANTS, AdamW, Hyper
from lib.catalog import CATALOG
from lib.instruments import environment

COMPILING = [name for name, variant in CATALOG["adam"].variants.items() if variant.compiles]
EAGER = [name for name in VARIANTS if name not in COMPILING]
pytestmark = pytest.mark.usefixtures("forget_graphs")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")
SHAPES = [(6,), (5,), (3, 5), (), (7,), (2, 3, 4)]
FLAT, UNUSED = 0, 1  # the parameters whose gradient is zero, and None, throughout

PLAIN = Hyper(lr=0.01, weight_decay=0.0)
DECAYED = Hyper(lr=0.01, beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=0.3, amsgrad=True)


def parameters(count=None):
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES[:count]]


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


def check(results, expected):
    torch.testing.assert_close(results, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("variant", "hyper"),
    [
        *((name, hyper) for name in EAGER for hyper in (PLAIN, DECAYED)),
        *(pytest.param(name, DECAYED, marks=needs_compiler) for name in COMPILING),
    ],
)
def test_twenty_steps_are_those_of_torch_compile_once_and_change_no_gradient(variant, hyper):
    count = 3 if variant in COMPILING else None  # compiling code for a parameter takes seconds
    optimizer = AdamW(parameters(count), variant, hyper)
    run(optimizer, [0])
    with torch.compiler.set_stance("fail_on_recompile"):
        stepped = run(optimizer, range(1, 20))
    check(stepped, run(torch_adamw(parameters(count), hyper, foreach=False), range(20)))
    assert torch.equal(stepped[UNUSED], parameters(count)[UNUSED])
    own = optimizer.param_groups[0]["params"]
    fresh = parameters(count)
    give_gradients(fresh, 19)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(own, fresh, strict=True) if q.grad is not None)


@pytest.mark.parametrize("variant", EAGER)
@pytest.mark.parametrize(("saved", "loaded"), [("ours", "ours"), ("ours", "torch"), ("torch", "ours")])
def test_a_saved_optimizer_continues_as_if_never_stopped_and_exchanges_with_torch(variant, saved, loaded):
    make = {
        "ours": lambda params, hyper: AdamW(params, variant, hyper),
        "torch": lambda params, hyper: torch_adamw(
            params, hyper, fused=variant == "fused", foreach=variant == "foreach"
        ),
    }
    first = make[saved](parameters(), DECAYED)
    run(first, range(5))
    second = make[loaded]([p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]], PLAIN)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    check(run(second, range(5, 10)), run(first, range(5, 10)))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])  # by the state that a pickle has, too
def test_a_copy_with_groups_steps_as_that_of_torch_by_closures_and_rates_of_numpy_and_torch(copied):
    results = []
    for make in (lambda groups: AdamW(groups, "foreach", DECAYED), lambda groups: torch_adamw(groups, DECAYED)):
        params = parameters()
        optimizer = copied(make([{"params": params[:2]}, {"params": params[2:], "lr": 0.1, "weight_decay": 0.0}]))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.float64(0.5) ** step)
        for step in range(3):
            run(optimizer, [step])
            schedule.step()
        optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
        assert optimizer.step(lambda: 3.0) == 3.0
        results.append(run(optimizer, [3]))
    check(*results)


@pytest.mark.parametrize("variant", EAGER)
def test_large_fp16_gradients_and_a_small_rate_step_as_in_torch(variant):
    results = []
    hyper = Hyper(lr=1e-4)
    for make in (lambda params: AdamW(params, variant, hyper), lambda params: torch_adamw(params, hyper, foreach=True)):
        p = torch.nn.Parameter(torch.full((3,), 0.01, dtype=torch.float16))
        p.grad = torch.full_like(p, 100.0)
        make([p]).step()
        results.append(p.detach())
    assert results[1][0] < 0.01
    torch.testing.assert_close(*results)


@needs_compiler
@torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=False)  # the second as PyTorch has it
def test_more_sets_of_gradients_than_graphs_step_as_in_torch():
    results = []
    for optimizer in (AdamW(parameters(2), "compiled_foreach"), torch_adamw(parameters(2), Hyper())):
        params = optimizer.param_groups[0]["params"]
        for gradients in ((1.0, None), (None, 1.0), (1.0, 2.0)):
            for p, value in zip(params, gradients, strict=True):
                p.grad = None if value is None else torch.full_like(p, value)
            optimizer.step()
        results.append([p.detach() for p in params])
    check(*results)


def test_what_cannot_be_is_refused_by_name():
    for field, value in {"lr": "1e-3", "eps": -1e-8, "beta1": 1.0}.items():
        with pytest.raises(ValueError, match=f"^{field}: "):
            Hyper(**{field: value})
    with pytest.raises(ValueError, match=r"variant: got 'fusd'.*nearest: fused"):
        AdamW(parameters(), "fusd")
