"""Sorts kernels and operators into classes by their names; knows neither torch nor how long anything took.

The names are those of cuBLAS, CUTLASS and PyTorch's own CUDA kernels, of the kernels that torch.compile writes in Triton
and in C++ (which list the operations they fuse), and of the operators of ATen on a CPU.
"""

import re

PRODUCT, ELEMENTWISE, REDUCTION, COPY = "matrix product", "elementwise", "reduction", "copy"
ATTENTION, OPTIMIZER, OVERHEAD, OTHER = "attention", "optimizer", "overhead", "other"
CLASSES = (PRODUCT, ATTENTION, ELEMENTWISE, REDUCTION, COPY, OPTIMIZER, OVERHEAD, OTHER)

_FUSED = r"^(?:graph_\d+_)?(?:cpp|triton_poi)_fused"
_MOVED = r"_(?:_to_copy|_unsafe_view|clone|copy|expand|fill|permute|slice|stack|t|transpose|unsqueeze|view|zeros)"
_REDUCED = r"(?:mean|sum|softmax|amax|max|norm|var|nll_loss|embedding_dense_backward)"
_POINTWISE = (
    r"add|addcdiv|addcmul|bitwise_\w+|clamp|cos|div|eq|exp|gelu|gelu_backward|ge|gt|le|lerp|log|logical_\w+|lt|masked_fill|maximum|minimum"
    r"|mul|ne|neg|pow|reciprocal|rsqrt|rsub|sigmoid|silu|silu_backward|sin|sqrt|square|sub|tanh|tril|triu|where"
)
_RULES = tuple(  # the first that fits counts
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        # what calls operators rather than computes; then fused kernels, since their names hold those of what they fuse
        (OVERHEAD, r"^autograd::|^torch::autograd::|^\w+Backward\d+$|^CompiledFunction|^## Call|^Torch(?:Dynamo|-Comp)"),
        (OVERHEAD, r"^AOTDispatcher|^Pregraph|^detach$"),
        (COPY, rf"{_FUSED}(?:{_MOVED})+_\d+$"),
        (REDUCTION, rf"^triton_(?:red|per)_|^(?:graph_\d+_)?cpp_fused.*_{_REDUCED}(?:_|$)"),
        (ELEMENTWISE, _FUSED),
        (ATTENTION, r"flash|fmha|scaled_dot_product|attention"),
        (PRODUCT, r"gemm|gemv|cutlass|nvjet|xmma|splitk|cublas|triton_(?:tem|mm)|mkldnn::|_linear_pointwise"),
        (PRODUCT, r"^aten::_?(?:mm|bmm|addmm|addbmm|baddbmm|matmul|linear|mv|dot|einsum|scaled_mm)(?:_out)?$"),
        (COPY, r"memcpy|memset|copy|(?<!masked_)fill|CatArray|indexSelect|index_put|indexing|gather|scatter|embedding"),
        (COPY, r"^aten::new_full$|^aten::\w+_like$"),
        (COPY, r"^aten::(?:cat|stack|clone|contiguous|index|index_select|index_add_?|\w*zero\w*|ones|(?:slice|select)_backward)$"),
        (REDUCTION, r"reduce|softmax|norm|welford|nll_loss|cross_entropy"),
        (REDUCTION, r"^aten::(?:sum|mean|amax|amin|max|min|argmax|var|std|logsumexp|cumsum|sum_to_size)$"),
        (ELEMENTWISE, r"elementwise|unrolled|multi_tensor_apply|triu_tril|arange"),
        (ELEMENTWISE, rf"^aten::_?(?:foreach_)?(?:{_POINTWISE})_?$"),
        (OVERHEAD, r"^aten::(?:empty|new_empty|resolve_|_?unsafe_view)"),
        (OVERHEAD, r"^aten::_?(?:alias|as_strided|chunk|detach|diagonal|expand|expand_as|flatten|item|lift_fresh|mT|narrow)_?$"),
        (OVERHEAD, r"^aten::_?(?:local_scalar_dense|permute|promote_types|reshape|reshape_alias|resize|result_type|select|slice)_?$"),
        (OVERHEAD, r"^aten::_?(?:split|squeeze|t|to|transpose|unbind|unflatten|unsqueeze|view|view_as|view_as_real)_?$"),
        (OVERHEAD, r"^_?[A-Z]\w*$"),  # the Python of an autograd.Function
    )
)  # fmt: skip


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
