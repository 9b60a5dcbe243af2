"""What attention alone holds and moves is what the formulas say, to the byte where it can be counted."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.cost import flops, memory
from lib.experiments import attending, cases
from lib.instruments import memory_timeline

SHAPES = [(2, 64, 16), (3, 130, 8), (1, 40, 40), (2, 150, 32)]
COPIES = ("aten.new_empty_strided", "aten.copy_")  # of K's gradient, which was made transposed: no kernel must
VIEWS = ("aten.view", "aten.transpose", "aten.expand", "aten._unsafe_view", "aten.unsqueeze", "aten.detach", "aten.t.")


def one(variant, batch_size, seq_len, d_head, causal, precision="fp32", native=False):
    axes = {"variant": variant, "seq_len": seq_len, "d_head": d_head, "batch_size": batch_size, "causal": causal}
    (case,) = cases.grid("attention", **axes, precision=precision, native=native, cold=False, device="cpu")
    return case


def followed(case):
    work = case.setup()
    work.before()
    return memory_timeline.follow(work.iteration).peaks()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", ["naive", "tiled", "sdpa"])
def test_what_is_kept_for_the_backward_pass_is_the_sum_of_its_parts(variant, shape, causal):
    found = followed(one(variant, *shape, causal))["forward_end"]
    assert found == sum(memory.attention_kept_bytes(variant, *shape, causal).values())


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_peak_of_naive_attention_is_the_sum_of_its_parts_and_what_is_predicted(shape, causal):
    case = one("naive", *shape, causal)
    found = followed(case)
    parts = memory.attention_peak_bytes(*shape, causal)
    assert max(found["forward_peak"], found["backward_peak"]) == sum(parts.values())
    sequence = 2 * parts["output"] // shape[0]  # the reference's result for a sequence, in double
    reference = 5 * parts["output"] + 13 * sequence + attending.block_bytes(1, shape[1], width=8)
    assert case.predicted_bytes() == max(sum(parts.values()) + 4 * sequence, reference)


@pytest.mark.parametrize(("precision", "native"), [("fp32", False), ("bf16", False), ("bf16", True)])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 16, 64), (8, 256, 16), (2, 300, 64)])
@pytest.mark.parametrize("variant", ["naive", "tiled", "sdpa"])
def test_no_variant_holds_more_than_predicted(variant, shape, precision, native):
    for causal in (True, False):
        case = one(variant, *shape, causal, precision, native)
        found = followed(case)
        assert max(found["forward_peak"], found["backward_peak"]) <= case.predicted_bytes()


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
    work = one("naive", *shape, causal).setup()
    work.before()
    moved, mode = {}, Moved()

    def mark(phase):
        moved[phase], mode.bytes = mode.bytes, 0

    with mode:
        work.iteration(mark)
    assert moved == flops.attention_moved_bytes("naive", *shape, causal, "fp32")


def test_a_fused_kernel_moves_no_scores_and_a_compiled_formula_fewer_than_the_eager_one():
    shape, scores = (8, 512, 64), 4 * 8 * 512**2
    each = 4 * 8 * 512 * 64
    moved = {
        name: flops.attention_moved_bytes(name, *shape, True, "fp32") for name in ("naive", "compiled", "sdpa", "flex")
    }
    assert moved["sdpa"] == moved["flex"] == {"forward": 4 * each, "backward": 8 * each}
    assert moved["compiled"] == {"forward": 4 * each + 4 * scores, "backward": 8 * each + 7 * scores}
    assert sum(moved["naive"].values()) == 12 * each + 19 * scores
    narrow = flops.attention_moved_bytes("compiled", *shape, True, "bf16")
    assert moved["compiled"]["forward"] - narrow["forward"] == 4 * scores // 2
    native = flops.attention_moved_bytes("sdpa", *shape, True, "bf16", native=True)
    assert native == {"forward": 4 * each // 2, "backward": 8 * each // 2}


def test_only_one_kernel_skips_the_masked_half():
    costs = {
        (name, causal): flops.attention_costs(name, 8, 512, 64, causal, "bf16")
        for name in ("naive", "compiled", "tiled", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flex")
        for causal in (True, False)
    }
    halved = {name for name, causal in costs if costs[name, True].flops == costs[name, False].flops / 2}
    assert halved == {"sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flex"}
    assert len({costs[name, True].bytes for name in halved}) == 1
