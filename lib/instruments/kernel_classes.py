"""Sorts kernels and operators into classes by their names.

The names are those of cuBLAS, CUTLASS and PyTorch's own CUDA kernels, of the kernels that torch.compile writes in
Triton and in C++ (which list the operations they fuse), and of the operators of ATen on a CPU.
"""

import re

PRODUCT, ELEMENTWISE, REDUCTION, COPY = "matrix product", "elementwise", "reduction", "copy"
ATTENTION, OPTIMIZER, OVERHEAD, OTHER = "attention", "optimizer", "overhead", "other"
CLASSES = (PRODUCT, ATTENTION, ELEMENTWISE, REDUCTION, COPY, OPTIMIZER, OVERHEAD, OTHER)

_FUSED = r"^(?:graph_\d+_)?(?:cpp|triton_poi)_fused"
_MOVED = r"_(?:_to_copy|_unsafe_view|clone|copy|expand|fill|permute|slice|stack|t|transpose|unsqueeze|view|zeros)"
_REDUCED = r"(?:mean|sum|softmax|amax|max|norm|var|nll_loss|embedding_dense_backward)"


def _aten(names: str) -> str:
    """A pattern for operators of ATen, in place or not, of their own or behind a public one."""
    return rf"^aten::_?(?:{'|'.join(names.split())})_?$"


_RULES = tuple(  # the first that fits counts
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        # what calls operators rather than computes; then fused kernels, whose names hold those of what they fuse
        (OVERHEAD, r"^autograd::|^torch::autograd::|^\w+Backward\d+$|^CompiledFunction|^## Call"),
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
        (
            ELEMENTWISE,
            _aten("add addcdiv addcmul clamp cos div eq exp gelu gelu_backward ge gt le lerp log lt maximum"),
        ),
        (ELEMENTWISE, _aten("masked_fill minimum mul ne neg pow reciprocal rsqrt rsub sigmoid silu silu_backward sin")),
        (ELEMENTWISE, _aten(r"sqrt square sub tanh tril triu where bitwise_\w+ logical_\w+")),
        # views and allocations
        (OVERHEAD, _aten(r"alias as_strided chunk detach diagonal empty\w* expand expand_as flatten item lift_fresh")),
        (OVERHEAD, _aten(r"local_scalar_dense mT narrow new_empty\w* permute promote_types reshape reshape_alias")),
        (OVERHEAD, _aten(r"resize resolve_\w+ result_type select slice split squeeze t to transpose unbind unflatten")),
        (OVERHEAD, _aten("unsafe_view unsqueeze view view_as view_as_real")),
        (OVERHEAD, r"^_?(?-i:[A-Z])\w*$"),  # the Python of an autograd.Function
    )
)


def classify(name: str, phase: str = "") -> str:
    """The class of what has this name and ran in this phase: all that the optimizer runs is of its class, and what no
    rule knows is `other`."""
    if phase == OPTIMIZER:
        return OPTIMIZER
    return next((found for found, pattern in _RULES if pattern.search(name)), OTHER)


def short(name: str) -> str:
    """A kernel's name without what C++ says of its types: of a template of ATen with the functions among its arguments
    that tell what it computes, of any other the name before its arguments."""
    head = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    if "at::native" not in head:
        return re.sub(r"^cutlass::Kernel2?<(\w+)>.*|(?<=\w)[<(].*", r"\1", head).strip()
    outer = re.match(r"[\w:]+", head)[0].rpartition("::")[2]
    inner = re.findall(r"\w*(?:Functor_\w+|Functor|_kernel_cuda|_kernel_impl|Ops)\b", head)
    told = [part for part in dict.fromkeys(inner) if part not in (outer, "gpu_kernel_impl")]
    return outer + (f" ({', '.join(told[:2])})" if told else "")
