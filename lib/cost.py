"""What a computation costs in theory: parameters, FLOPs, bytes; plain arithmetic, knows no tensor.

A multiplication and an addition are two FLOPs. Attention counts every score, causal or not, since the naive
variant computes them all; a variant that skips the masked half therefore shows a rate above its own work.
"""

from dataclasses import dataclass


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
    def matrix_parameters(self) -> int:
        """Parameters that take part in matrix products: all but the embedding and the norms."""
        layer = 4 * self.d_model**2 + 3 * self.d_model * self.d_ff
        return self.num_layers * layer + self.vocab_size * self.d_model

    @property
    def parameters(self) -> int:
        """All parameters: matrices, embedding, two norms a layer and the last one."""
        norms = (2 * self.num_layers + 1) * self.d_model
        return self.matrix_parameters + self.vocab_size * self.d_model + norms


def forward_flops(shape: Shape) -> int:
    """FLOPs of the matrix products of one forward pass, 2 N a token and attention's 4 T^2 d_model a sequence
    and layer. The backward pass takes twice as many (Kaplan et al. 2020, section 2.1)."""
    sequences = shape.batch_size * shape.num_layers
    return 2 * shape.matrix_parameters * shape.tokens + sequences * attention_flops(
        1, shape.context_length, shape.d_model
    )


def attention_flops(batch_size: int, seq_len: int, d_head: int) -> int:
    """FLOPs of the two matrix products of one attention forward, Q K^T and the weights times V."""
    return 4 * batch_size * seq_len**2 * d_head


def adam_bytes(elements: int, amsgrad: bool) -> int:
    """Bytes that one AdamW step in fp32 must move: read parameter, gradient and moments, write all but the
    gradient; with amsgrad also the running maximum both ways."""
    return 4 * elements * (9 if amsgrad else 7)


FORMULA = ("naive", "compiled")  # the attention variants that hold every score; the others work in tiles
TILE = 128  # keys of a tile


def activation_bytes(shape: Shape, precision: str, attention: str) -> int:
    """Bytes that a forward pass of `lib.model` keeps for its backward pass, by counting the tensors which
    autograd saves. In single precision a layer holds 10 of tokens x d_model (one more where attention works in
    tiles, which keeps its output as well), 4 of tokens x d_ff and, unless it works in tiles, the weights of every
    head; the last norm and the head add 3 of tokens x d_model, the loss one of tokens x vocabulary. Under
    autocast 4 and 2 of those of tokens x d_model stay in single precision, and what is cast is kept as well."""
    narrow = 2 if precision in ("bf16", "fp16") else 4
    cast = 9 if narrow == 2 else 6
    hidden = shape.tokens * shape.d_model * (4 * 4 + (cast + (attention not in FORMULA)) * narrow)
    wide = 4 * shape.tokens * shape.d_ff * narrow
    weights = shape.num_heads * shape.tokens * shape.context_length * (4 if narrow == 4 else 6)
    layer = hidden + wide + (weights if attention in FORMULA else 0)
    return shape.num_layers * layer + shape.tokens * (shape.vocab_size * 4 + shape.d_model * (2 * 4 + narrow))


def step_bytes(shape: Shape, precision: str, attention: str, optimizer: str) -> int:
    """Peak bytes of one training step in fp32 parameters: parameters, gradients and two moments (16 bytes a
    parameter), the logits, and beside them either the activations with the temporaries of one attention or of
    the loss, or the temporaries of the optimizer, whichever is more; cast parameters count as activations."""
    narrow = precision in ("bf16", "fp16")
    cast = 2 * shape.matrix_parameters if narrow else 0
    logits = shape.tokens * shape.vocab_size * (2 if narrow else 4)
    seen = shape.context_length if attention in FORMULA else min(TILE, shape.context_length)
    temporaries = max(3 * 4 * shape.num_heads * shape.tokens * seen, 2 * 4 * shape.tokens * shape.vocab_size)
    training = activation_bytes(shape, precision, attention) + cast + temporaries
    largest = max(shape.vocab_size, shape.d_ff) * shape.d_model
    optimizing = 4 * shape.parameters if "foreach" in optimizer else 3 * 4 * largest
    return 16 * shape.parameters + logits + max(training, optimizing)
