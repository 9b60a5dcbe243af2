"""What attention alone holds and moves is what the formulas say, to the byte."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib import attention
from lib.cost import flops, memory
from lib.instruments import peak_memory

SHAPES = [(2, 64, 16), (3, 130, 8), (1, 40, 40)]
COPIES = ("aten.new_empty_strided", "aten.copy_")  # of K's gradient, which was made transposed: no kernel must
VIEWS = ("aten.view", "aten.transpose", "aten.expand", "aten._unsafe_view", "aten.unsqueeze", "aten.detach", "aten.t.")
pytestmark = pytest.mark.usefixtures("one_thread")


def iteration_of(shape, causal, dtype=torch.float32):
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]
    dout = torch.randn(shape, dtype=dtype)
    last = {}

    def iteration(mark):
        last["out"] = attention.naive(*inputs, causal)
        mark("forward")
        last["gradients"] = torch.autograd.grad(last["out"], inputs, dout)
        mark("backward")

    return iteration


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_of_naive_attention_is_the_predicted_one(shape, causal, dtype):
    measured = peak_memory.follow(iteration_of(shape, causal, dtype)).peaks()
    expected = memory.attention_peak_bytes(*shape, causal, dtype.itemsize)
    assert max(measured["forward_peak"], measured["backward_peak"]) == expected


class Moved(TorchDispatchMode):
    """Counts the bytes of the tensors that operations inside read and write, but not those of masks and numbers."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not str(function).startswith(VIEWS + COPIES):
            tensors = [x for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)]
            self.bytes += sum(x.numel() * 4 for x in tensors if x.dtype == torch.float32 and x.dim() == 3)
        return result


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_naive_attention_moves_what_its_operations_read_and_write(shape, causal):
    iteration = iteration_of(shape, causal)
    moved, mode = {}, Moved()

    def mark(phase):
        moved[phase] = mode.bytes
        mode.bytes = 0

    with mode:
        iteration(mark)
    assert moved == flops.attention_moved_bytes("naive", *shape, causal, "fp32")


def test_a_fused_kernel_moves_no_scores_and_a_narrow_one_half_as_many_bytes():
    shape = (8, 512, 64)
    tensor = 8 * 512 * 64
    full = flops.attention_moved_bytes("sdpa", *shape, True, "bf16")
    assert full == {"forward": 16 * tensor, "backward": 32 * tensor}
    native = flops.attention_moved_bytes("sdpa", *shape, True, "bf16", native=True)
    assert native == {"forward": 8 * tensor, "backward": 16 * tensor}
    compiled = flops.attention_moved_bytes("compiled", *shape, True, "bf16")
    assert compiled["backward"] == 32 * tensor + 7 * 2 * 8 * 512**2
