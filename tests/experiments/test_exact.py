"""A reference holds no more than what it checks and computes what the plain formula does; MPS has no doubles."""

import pytest
import torch

import plain
from lib import attention, model
from lib.experiments import attending, exact, measure
from lib.instruments import memory_timeline
from pretended import NO_DOUBLE, pretended


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scores", [1, 100, 2**22])
def test_blocks_of_rows_compute_what_the_plain_formula_does_forward_and_backward(monkeypatch, scores, causal):
    monkeypatch.setattr(attending, "SCORES", scores)
    inputs = [torch.randn(2, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    dout = torch.randn(2, 13, 4, dtype=torch.float64)
    outs = [attend(*inputs, causal) for attend in (attention.naive, attending.by_rows)]
    expected, found = ((out, *torch.autograd.grad(out, inputs, dout)) for out in outs)
    torch.testing.assert_close(found, expected)


def test_a_copy_in_double_is_on_the_cpu_and_no_view():
    tensor = torch.ones(3, dtype=torch.float64, requires_grad=True)
    double = exact.double(tensor)
    double += 1
    assert (tensor.sum().item(), double.sum().item(), double.requires_grad) == (3, 6, False)


def checked_peaks(case):
    """The most bytes alive while the reference runs, then the first iteration, and then the comparison."""
    work = case.setup()

    def check(mark):
        expected = work.expected()
        mark("reference")
        work.before()
        work.iteration(lambda phase: None)
        mark("iteration")
        measure._check(work.result(), expected, float("inf"))
        mark("comparison")

    return memory_timeline.follow(check).peaks()


LONG = {"seq_len": 1024, "d_head": 16}
NARROW = {"precision": "bf16", "attention": "sdpa"}


@pytest.mark.usefixtures("former_precision", "one_thread")
@pytest.mark.parametrize(
    ("experiment", "changed"),
    [
        *(("attention", LONG | {"variant": v, "batch_size": b}) for v in ("naive", "tiled", "sdpa") for b in (1, 8)),
        *(("adam", {"variant": v, "num_params": 3, "param_size": 2**17}) for v in ("single_tensor", "foreach")),
        *(("ceilings", {"operation": o, "rows": 64, "columns": 128}) for o in ("matmul", "products", "add", "adamw")),
        *(("step", NARROW | {"mode": m, "context_length": 128}) for m in ("no_grad", "forward", "train_step")),
        *(("memory", NARROW | {"checkpoint": 1, "mode": m}) for m in ("forward_backward", "train_step")),
    ],
    ids=str,
)
def test_case_and_check_need_no_more_memory_than_predicted_and_a_third_at_least(experiment, changed):
    case = plain.one(experiment, **changed)
    peaks = checked_peaks(case)
    assert max(peaks.values()) <= case.predicted_bytes() <= 3 * max(peaks.values()), peaks


@pytest.mark.usefixtures("former_precision", "one_thread")
@pytest.mark.parametrize("fields", [{}, NARROW | {"checkpoint": 1}], ids=str)
@pytest.mark.parametrize("mode", ["no_grad", "train_step"])
def test_the_reference_of_a_step_needs_less_memory_than_the_step(monkeypatch, mode, fields):
    config = model.Config(48, d_model=32, d_ff=96, num_layers=5, num_heads=2)
    monkeypatch.setitem(model.SIZES, "tiny", config)
    case = plain.one("memory", context_length=64, batch_size=2, mode=mode, **fields)
    assert checked_peaks(case)["reference_peak"] < case.formula_bytes()


@pytest.mark.parametrize("variant", ["tiled", "sdpa"])
def test_long_attention_in_tiles_fits_into_little_memory(variant):
    case = plain.one("attention", variant=variant, seq_len=16384, d_head=64, batch_size=8)
    assert case.predicted_bytes() < 2**30 < plain.one("attention", seq_len=16384).predicted_bytes()


@pytest.mark.parametrize("fields", [{"attention": "naive"}, NARROW], ids=str)
def test_the_step_and_not_its_reference_decides_whether_the_largest_model_fits(fields):
    case = plain.one("step", size="2.7B", context_length=512, batch_size=4, optimizer="fused", **fields)
    assert case.formula_bytes() < case.predicted_bytes() < 1.0003 * case.formula_bytes()


def test_a_double_on_a_device_that_has_none_is_refused_in_a_backward_pass_too():
    with pretended("mps"):
        there, here = torch.ones(2, device="mps"), torch.ones(2)
        for double in (lambda: there.double(), lambda: here.double().to("mps"), lambda: (there + here).double()):
            with pytest.raises(TypeError, match=NO_DOUBLE):
                double()
        assert there.cpu().double().sum() == (here.to("mps") + there).to("cpu").double().mean() == 2
        there.requires_grad_().register_hook(lambda gradient: gradient.double())
        with pytest.raises(TypeError, match=NO_DOUBLE):
            there.sum().backward()
