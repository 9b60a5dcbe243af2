"""Compute parameters, FLOPs and bytes by formula, without tensors.

A multiplication and an addition are two FLOPs. In a model, attention counts every score, whatever the mask or the
kernel, as Chowdhery et al. (2022, appendix B) do. Rates of attention alone count only the scores that a query may see.
Recomputation counts for nothing.

Model FLOP utilisation (MFU, same authors, section 4.1) is a share of the ceiling, which the report measures. The rate
is the FLOPs of a forward and backward pass over the time of a whole step.

>>> forward_flops(Shape(d_model=2, d_ff=3, num_layers=1, num_heads=1, vocab_size=5, batch_size=1, context_length=7))
1008
"""

from collections.abc import Collection
from dataclasses import asdict, dataclass

from lib.catalog import CATALOG
from lib.config import Config


@dataclass(frozen=True)
class Shape(Config):
    """Hold the dimensions of a model and of its batch."""

    batch_size: int = 4

    @property
    def tokens(self) -> int:
        """Return the tokens of one batch."""
        return self.batch_size * self.context_length

    @property
    def num_scores(self) -> int:
        """Count the scores of one layer's attention: one for each head, query and key."""
        return self.num_heads * self.tokens * self.context_length

    @property
    def layer_matrix_parameters(self) -> int:
        """Count the parameters in the matrix products of a layer."""
        return 4 * self.d_model**2 + 3 * self.d_model * self.d_ff

    @property
    def matrix_parameters(self) -> int:
        """Count the parameters in matrix products: all but the embedding and the norms."""
        return self.num_layers * self.layer_matrix_parameters + self.vocab_size * self.d_model

    @property
    def norm_parameters(self) -> int:
        """Count the parameters of two norms a layer and of the last norm."""
        return (2 * self.num_layers + 1) * self.d_model

    @property
    def parameters(self) -> int:
        """Count all parameters: matrices, embedding and norms."""
        return self.matrix_parameters + self.vocab_size * self.d_model + self.norm_parameters


def shape_of(config: Config, batch_size: int) -> Shape:
    """Return the dimensions of a model's configuration with a batch."""
    return Shape(**asdict(config) | {"batch_size": batch_size})


def width(precision: str) -> int:
    """Return the bytes of a number in matrix products."""
    return 2 if precision in ("bf16", "fp16") else 4


def forward_flops(shape: Shape) -> int:
    """Return a forward pass's FLOPs in products (Chowdhery et al. 2022, app. B)."""
    attention = attention_flops(shape.batch_size, shape.context_length, shape.d_model)
    return 2 * shape.matrix_parameters * shape.tokens + shape.num_layers * attention


def backward_flops(shape: Shape) -> int:
    """Return the FLOPs of a backward pass's products, twice the forward pass's."""
    # each product Y = X W takes two more of its size, dX = dY W^T and dW = X^T dY; so do both of attention
    return 2 * forward_flops(shape)


def attention_flops(batch_size: int, seq_len: int, features: int, causal: bool = False) -> int:
    """Return the FLOPs of attention's forward pass.

    With `causal` only the scores that a query may see count.
    `features` is the size of all heads of a sequence, or of one if `batch_size` counts the heads: 8 sequences of 16
    heads of size 64 are `attention_flops(8, seq_len, 1024)` or `attention_flops(128, seq_len, 64)`."""
    scores = seq_len**2
    if causal:
        scores = seq_len * (seq_len + 1) // 2
    return 4 * batch_size * scores * features


def adam_bytes(elements: int, amsgrad: bool) -> int:
    """Return the bytes that one AdamW step in fp32 must move."""
    # it reads parameter, gradient and moments, and writes all but the gradient; amsgrad reads and writes its maximum
    return 4 * elements * (7 + 2 * amsgrad)


def bytes_outside_products(shape: Shape, precision: str, attention: str) -> dict[str, tuple[int, int]]:
    """Return the least bytes that each part of a step moves, without the products.

    A part has two numbers: the bytes of the forward pass, and those of the backward pass.

    - Every part is one fused kernel that reads each input and writes each output once, whatever the caches.
    - The residual stream, the norms' weights and the angles are in fp32.
    - Inputs and outputs of products have the product's precision. The neighbouring parts cast them.
    - Scale, mask and softmax count only if the variant holds the scores.
    - A backward kernel reads what its derivative needs: norms and the gate their inputs again, the softmax its weights.
      It writes the gradients of inputs and weights."""
    number_bytes = width(precision)
    # tensors in fp32, but for ids
    ids_bytes = 8 * shape.tokens
    stream_bytes = 4 * shape.tokens * shape.d_model
    angles_bytes = 4 * shape.context_length * shape.d_head  # a sine and a cosine for each pair of features
    weight_bytes = 4 * shape.d_model
    table_bytes = 4 * shape.vocab_size * shape.d_model
    # tensors in the precision of products
    inner_bytes = number_bytes * shape.tokens * shape.d_model
    wide_bytes = number_bytes * shape.tokens * shape.d_ff
    logits_bytes = number_bytes * shape.tokens * shape.vocab_size
    # the narrow copy of the stream's gradient, for the product that reads it
    cast_bytes = 0
    if number_bytes < 4:
        cast_bytes = inner_bytes
    scores_bytes = 0
    if CATALOG["attention"].variants[attention].holds_scores:
        scores_bytes = number_bytes * shape.num_scores
    layers = shape.num_layers
    norms = 2 * layers + 1
    return {
        # ids and rows to the stream; backward writes the whole table's gradient
        "embedding": (ids_bytes + 2 * stream_bytes, ids_bytes + stream_bytes + table_bytes),
        # the stream and a weight to a product's input
        "norms": (
            norms * (stream_bytes + weight_bytes + inner_bytes),
            norms * (2 * stream_bytes + 2 * weight_bytes + inner_bytes),
        ),
        # queries and keys are rotated; backward their gradients
        "rope": (2 * layers * (2 * inner_bytes + angles_bytes), 2 * layers * (2 * inner_bytes + angles_bytes)),
        # scores to weights; backward reads the weights' gradient, too
        "softmax": (layers * 2 * scores_bytes, layers * 3 * scores_bytes),
        # w1 x and w3 x to what w2 takes; backward writes the gradients of the first two
        "gate": (layers * 3 * wide_bytes, layers * 5 * wide_bytes),
        # the branches of attention and SwiGLU join the stream; backward their gradients join the stream's, of which a
        # product reads a narrow copy
        "residuals": (2 * layers * (2 * stream_bytes + inner_bytes), 2 * layers * (3 * stream_bytes + cast_bytes)),
        # logits and targets to their mean; backward writes the logits' gradient
        "loss": (logits_bytes + ids_bytes + 4, 2 * logits_bytes + ids_bytes + 4),
    }


def attention_moved_bytes(
    variant: str, batch_size: int, seq_len: int, d_head: int, causal: bool, precision: str, native: bool = False
) -> dict[str, int]:
    """Return the least bytes that attention alone must move, by phase.

    Each kernel reads its inputs and writes its outputs once; the mask's own bytes are left out. `batch_size` counts the
    heads, too.

    - Q, K, V, the output and their four gradients count as fp32, although autocast narrows the output and its gradient.
      With `native` they have the products' type.
    - The forward pass moves four of them. The backward pass moves eight: the seven besides the output, and one more.
      That is the output's gradient again where each product is a kernel, and the output where a kernel works in tiles.
    - Scores have the products' width. `naive` writes them, then scales, masks, normalises and reads them, each in a
      kernel of its own. `compiled` has one kernel between the two products.
    - The backward pass of both has the derivative of each step. It reads the weights twice, for the gradients of V and
      of the scores.
    - Other variants count as if scores never left the processor."""
    number_bytes = 4
    if native:
        number_bytes = width(precision)
    tensor_bytes = number_bytes * batch_size * seq_len * d_head
    scores_bytes = width(precision) * batch_size * seq_len**2
    # how often all scores are read or written
    forward = 0
    backward = 0
    attention = CATALOG["attention"].variants[variant]
    if attention.holds_scores and attention.compiles:
        forward = 4
        backward = 7
    elif attention.holds_scores:
        forward = 6
        backward = 9
        # the mask is a kernel of its own
        if causal:
            forward += 2
            backward += 2
    return {
        "forward": 4 * tensor_bytes + forward * scores_bytes,
        "backward": 8 * tensor_bytes + backward * scores_bytes,
    }


def attention_part_costs(shape: Shape, precision: str, phases: Collection[str]) -> dict[str, list]:
    """Tabulate FLOPs and least bytes of all layers' naive attention, by part.

    The products (`scores`, `values`) count as in `attention_flops`, and twice that backward. Each operation of the
    softmax on a score is one FLOP, be it an exponential or an addition. There are five forward (running maximum,
    subtraction, exponential, running sum, division) and four backward (P * dP, running sum, subtraction, product with
    P). Every part reads its inputs and writes its outputs once. Scale and mask count for nothing."""
    scores = shape.num_scores
    hidden = shape.tokens * shape.d_model
    product = 2 * scores * shape.d_head
    # FLOPs, and numbers read and written, of one layer
    layer_costs = [
        ("scores", "forward", product, 2 * hidden + scores),
        ("softmax", "forward", 5 * scores, 2 * scores),
        ("values", "forward", product, 2 * hidden + scores),
        ("scores", "backward", 2 * product, 4 * hidden + scores),
        ("softmax", "backward", 4 * scores, 3 * scores),
        ("values", "backward", 2 * product, 3 * hidden + 2 * scores),
    ]
    number_bytes = width(precision)
    table = {"part": [], "phase": [], "flops": [], "bytes": []}
    for part, phase, flops, numbers in layer_costs:
        if phase in phases:
            table["part"].append(part)
            table["phase"].append(phase)
            table["flops"].append(shape.num_layers * flops)
            table["bytes"].append(shape.num_layers * number_bytes * numbers)
    return table
