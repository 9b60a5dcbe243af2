"""What a computation costs in theory: parameters, FLOPs, bytes; plain arithmetic, knows no tensor.

A multiplication and an addition are two FLOPs. Attention counts every score, causal or not and whatever the kernel,
as Chowdhery et al. (2022, appendix B) do; a variant that skips the masked half therefore shows a rate above its own
work, and what a kernel computes a second time counts for nothing. Model FLOP utilisation (MFU, the same authors,
section 4.1) is the FLOPs of the forward and the backward pass over the time of the whole step, as a share of the
ceiling: they take the peak that the maker states, `tidy.with_percent_of` the measured one.
"""

from dataclasses import dataclass, replace

from lib.config import SIZES, Config

FORMULA = ("naive", "compiled")  # the attention variants that hold every score; the others work in tiles


@dataclass(frozen=True)
class Shape:
    """The dimensions of a language model and of its batch."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    vocab_size: int
    batch_size: int
    context_length: int

    @property
    def tokens(self) -> int:
        """Tokens of one batch."""
        return self.batch_size * self.context_length

    @property
    def d_head(self) -> int:
        """Features of one attention head."""
        return self.d_model // self.num_heads

    @property
    def scores(self) -> int:
        """Scores of one layer's attention, a query and a key each."""
        return self.num_heads * self.tokens * self.context_length

    @property
    def matrix_parameters(self) -> int:
        """Parameters that take part in matrix products: all but the embedding and the norms."""
        layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff
        return self.num_layers * layer + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """All parameters: matrices, embedding, two norms a layer and the last one."""
        norms = (2 * self.num_layers + 1) * self.d_model
        return self.matrix_parameters + self.vocab_size * self.d_model + norms


def shape_of(config: Config, batch_size: int) -> Shape:
    """Return the dimensions of a model's configuration with a batch."""
    names = ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "context_length")
    return Shape(batch_size=batch_size, **{name: getattr(config, name) for name in names})


def model_shape(size: str, context_length: int) -> Shape:
    """Return the dimensions of a size of model with the vocabulary and the batch of the assignment."""
    return shape_of(replace(SIZES[size], context_length=int(context_length)), batch_size=4)


def width(precision: str) -> int:
    """Bytes of a number in matrix products."""
    return 2 if precision in ("bf16", "fp16") else 4


def forward_flops(shape: Shape) -> int:
    """FLOPs of the matrix products of one forward pass, 2 N a token (Kaplan et al. 2020, section 2.1) and
    attention's 4 T^2 d_model a sequence and layer."""
    sequences = shape.batch_size * shape.num_layers
    return 2 * shape.matrix_parameters * shape.tokens + sequences * attention_flops(
        1, shape.context_length, shape.d_model
    )


def backward_flops(shape: Shape) -> int:
    """FLOPs of the matrix products of one backward pass, exactly twice those of the forward pass: each product
    Y = X W takes two more of its size, dX = dY W^T and dW = X^T dY, and so do both of attention. The first layer
    is no exception, since the embedding that feeds it is trained."""
    return 2 * forward_flops(shape)


def attention_flops(batch_size: int, seq_len: int, d_head: int, causal: bool = False) -> int:
    """FLOPs of the two matrix products of one attention forward, Q K^T and the weights times V: over the whole
    square of scores, or with `causal` over those alone that a query may see, T (T + 1) / 2 of T^2."""
    scores = seq_len * (seq_len + 1) // 2 if causal else seq_len**2
    return 4 * batch_size * scores * d_head


def optimizer_flops(elements: int, amsgrad: bool) -> int:
    """Elementwise operations of one AdamW step by `adam.single_tensor`, a root and a division as one each: weight
    decay 1, first moment 3, second 4, denominator 3, update 3, and the maximum of amsgrad 1."""
    return elements * (15 if amsgrad else 14)


def adam_bytes(elements: int, amsgrad: bool) -> int:
    """Bytes that one AdamW step in fp32 must move: read parameter, gradient and moments, write all but the
    gradient; with amsgrad also the running maximum both ways."""
    return 4 * elements * (9 if amsgrad else 7)


def memory_bound_bytes(shape: Shape, precision: str, attention: str) -> dict[str, dict[str, int]]:
    """The least bytes that what is no matrix product must move in one training step, by phase and part, with every
    part as one fused kernel that reads each of its inputs and writes each of its outputs once, whatever the caches.

    The stream that the residuals add to, the norms' weights, the angles and the optimizer are in single precision;
    what goes into a product or comes out of one is in the product's, a cast being fused with what precedes or
    follows it. The embedding reads a row a token; its backward writes the whole table. The scale, the mask and the
    softmax count only where the variant holds the scores. A backward kernel reads the inputs of its forward again
    (of the softmax the weights instead) and writes the gradients of inputs and weights; that of a residual adds
    its branch's gradient to the stream's. Where a tensor enters several products, the sum of its gradients is left
    to these."""
    narrow = width(precision)
    ids, stream = 8 * shape.tokens, 4 * shape.tokens * shape.d_model
    inner, wide = narrow * shape.tokens * shape.d_model, narrow * shape.tokens * shape.d_ff
    held = shape.num_heads * shape.tokens * shape.context_length if attention in FORMULA else 0
    logits, scores = narrow * shape.tokens * shape.vocab_size, narrow * held
    angles, weight = 4 * shape.context_length * shape.d_model // shape.num_heads, 4 * shape.d_model
    layers, pairs, norms = shape.num_layers, 2 * shape.num_layers, 2 * shape.num_layers + 1
    forward = {
        "embedding": ids + 2 * stream,
        "norms": norms * (stream + weight + inner),
        "rope": pairs * (2 * inner + angles),  # a sine and a cosine for each pair of features
        "softmax": layers * 2 * scores,
        "gate": layers * 3 * wide,
        "residuals": pairs * (2 * stream + inner),
        "loss": logits + ids + 4,
    }
    backward = {
        "embedding": ids + stream + 4 * shape.vocab_size * shape.d_model,
        "norms": norms * (2 * stream + 2 * weight + inner),
        "rope": forward["rope"],
        "softmax": layers * 3 * scores,
        "gate": layers * 5 * wide,
        "residuals": pairs * 3 * stream,
        "loss": 2 * logits + ids + 4,
    }
    return {"forward": forward, "backward": backward, "optimizer": {"adamw": adam_bytes(shape.parameters, False)}}


def attention_moved_bytes(
    variant: str, batch_size: int, seq_len: int, d_head: int, causal: bool, precision: str
) -> dict[str, int]:
    """The least bytes that attention alone must move, by phase, if each of its kernels reads its inputs and writes its
    outputs once. Q, K, V, the output and their gradients, in single precision: four in the forward pass, eight in the
    backward. Scores, in the width of the products: `naive` writes them, scales, masks, normalises and reads them,
    each a kernel of its own that reads and writes all; `compiled` has one kernel between the two products; in the
    backward pass the weights are read twice, for the gradients of V and of the scores, and all steps come again.
    What works in tiles must move none; its logarithms, one a query, are neglected, and so is the mask itself."""
    each = 4 * batch_size * seq_len * d_head
    scores = width(precision) * batch_size * seq_len**2
    forward, backward = {"naive": (8, 11) if causal else (6, 9), "compiled": (4, 7)}.get(variant, (0, 0))
    return {"forward": 4 * each + forward * scores, "backward": 8 * each + backward * scores}


def attention_part_costs(shape: Shape, precision: str, backward: bool) -> dict[str, list]:
    """FLOPs and least bytes of the parts of attention by the formula, of all layers, one row a part and phase: a table
    of `part, phase, flops, bytes`.

    The products (`scores`, `values`) count as in `attention_flops`, twice as many backward. The softmax counts each of
    its elementary operations on a score as one FLOP, an exponential and a division like an addition: forward five
    (the running maximum, its subtraction, the exponential, the running sum, the division by it), backward four
    (P * dP, its running sum, its subtraction, the product with P). Every part reads its inputs and writes its outputs
    once; the scale and the mask, which one kernel with the product would make, count for nothing."""
    scores, hidden = shape.scores, shape.tokens * shape.d_model
    product, narrow = 2 * scores * shape.d_head, width(precision)
    rows = [
        ("scores", "forward", product, narrow * (2 * hidden + scores)),
        ("softmax", "forward", 5 * scores, narrow * 2 * scores),
        ("values", "forward", product, narrow * (2 * hidden + scores)),
        ("scores", "backward", 2 * product, narrow * (4 * hidden + scores)),
        ("softmax", "backward", 4 * scores, narrow * 3 * scores),
        ("values", "backward", 2 * product, narrow * (3 * hidden + 2 * scores)),
    ]
    part, phase, flops, moved = zip(*(row for row in rows if backward or row[1] == "forward"), strict=True)
    whole = [[shape.num_layers * n for n in column] for column in (flops, moved)]
    return {"part": list(part), "phase": list(phase), "flops": whole[0], "bytes": whole[1]}
