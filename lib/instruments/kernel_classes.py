"""Sort kernels, and a CPU's operators, into classes by name."""

import functools
import re

PRODUCT, ELEMENTWISE, REDUCTION, COPY = "matrix product", "elementwise", "reduction", "copy"
ATTENTION, OPTIMIZER, OVERHEAD, OTHER = "attention", "optimizer", "overhead", "other"
CLASSES = (PRODUCT, ATTENTION, ELEMENTWISE, REDUCTION, COPY, OPTIMIZER, OVERHEAD, OTHER)

_FUSED = r"^(?:graph_\d+_)?(?:cpp|triton_poi)_fused"
_MOVED = r"_(?:_to_copy|_unsafe_view|clone|copy|expand|fill|permute|slice|stack|t|transpose|unsqueeze|view|zeros)"
_REDUCED = r"(?:mean|sum|softmax|amax|max|norm|var|nll_loss|embedding_dense_backward)"


def _aten(names: str) -> str:
    """Return a pattern for operators of ATen, in place or not, public or private."""
    return rf"^aten::_?(?:{'|'.join(names.split())})_?$"


# the first match counts
_RULES = (
    # callers of operators; then fused kernels, whose names contain those of what they fuse
    (OVERHEAD, r"^autograd::|^torch::autograd::|^\w+Backward\d*$|^FlashAttention\w+$|^CompiledFunction|^## Call"),
    (OVERHEAD, r"^TorchDynamo|^Torch-Compiled|^AOTDispatcher|^Pregraph|^detach$"),
    (COPY, rf"{_FUSED}(?:{_MOVED})+_\d+$"),
    (REDUCTION, rf"^triton_(?:red|per)_|^(?:graph_\d+_)?cpp_fused.*_{_REDUCED}(?:_|$)"),
    (ELEMENTWISE, _FUSED),
    (ATTENTION, r"flash|fmha|scaled_dot_product|attention"),
    (PRODUCT, r"gemm|gemv|cutlass|nvjet|xmma|splitk|cublas|triton_(?:tem|mm)|mkldnn::|_linear_pointwise"),
    (PRODUCT, _aten("mm bmm addmm addbmm baddbmm matmul linear mv dot einsum scaled_mm")),
    (COPY, r"memcpy|memset|copy|(?<!masked_)fill|CatArray|indexSelect|index_put|indexing|gather|scatter|embedding"),
    (COPY, r"cub::|krn_partial|compute_grad_weight|num_of_(?:partial_)?segments"),  # an embedding's backward
    (COPY, _aten(r"cat stack clone contiguous index index_select index_add \w*zero\w* ones new_full \w+_like")),
    (COPY, _aten("slice_backward select_backward")),
    (REDUCTION, r"reduce|softmax|norm|welford|nll_loss|cross_entropy"),
    (REDUCTION, _aten("sum mean amax amin max min argmax var std logsumexp cumsum sum_to_size")),
    (ELEMENTWISE, r"elementwise|unrolled|multi_tensor_apply|triu_tril|arange|^aten::_foreach_"),
    (ELEMENTWISE, _aten("add addcdiv addcmul clamp cos div eq exp gelu gelu_backward ge gt le lerp log lt maximum")),
    (ELEMENTWISE, _aten("masked_fill minimum mul ne neg pow reciprocal rsqrt rsub sigmoid silu silu_backward sin")),
    (ELEMENTWISE, _aten(r"sqrt square sub tanh tril triu where bitwise_\w+ logical_\w+")),
    # views and allocations
    (OVERHEAD, _aten(r"alias as_strided chunk detach diagonal empty\w* expand expand_as flatten item lift_fresh")),
    (OVERHEAD, _aten(r"local_scalar_dense mT narrow new_empty\w* permute promote_types reshape reshape_alias")),
    (OVERHEAD, _aten(r"resize resolve_\w+ result_type select slice split squeeze t to transpose unbind unflatten")),
    (OVERHEAD, _aten("unsafe_view unsqueeze view view_as view_as_real")),
    (OVERHEAD, r"^_?(?-i:[A-Z])\w*$"),  # an autograd.Function in Python
)


@functools.cache  # a trace has few names, many times
def classify(name: str, phase: str = "") -> str:
    """Return a kernel's or operator's class: `optimizer` in that phase, else by name."""
    if phase == OPTIMIZER:
        return OPTIMIZER
    for kind, pattern in _RULES:
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return OTHER


def short(name: str) -> str:
    """Shorten a kernel's name: drop its C++ types and arguments.

    A template of ATen keeps up to two functors from its arguments, which say what it computes."""
    name = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    if "at::native" not in name:
        # In CUTLASS, the first template argument is the kernel. In others \1 is empty: types and arguments go, but not
        # what follows a blank, as in "Memcpy DtoD (Device -> Device)".
        return re.sub(r"^cutlass::Kernel2?<(\w+)>.*|(?<=\w)[<(].*", r"\1", name).strip()
    outer = re.match(r"[\w:]+", name)[0].rpartition("::")[2]
    functors = dict.fromkeys(re.findall(r"\w*(?:Functor_\w+|Functor|_kernel_cuda|_kernel_impl|Ops)\b", name))
    telling = [functor for functor in functors if functor not in (outer, "gpu_kernel_impl")]
    return f"{outer} ({', '.join(telling[:2])})" if telling else outer
