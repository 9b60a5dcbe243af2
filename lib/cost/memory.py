"""Compute the bytes that a step, its phases or attention alone hold, by formula.

It is the assignment's accounting. Where the system cannot limit a process's memory, it also refuses steps and
attention that do not fit. Tests compare each formula with what PyTorch saves and allocates.
"""

from lib.cost.flops import FORMULA, Shape, width

TILE = 128  # keys of a tile


def state_bytes(shape: Shape) -> int:
    """Return the bytes of fp32 parameters, gradients, moments and step counts."""
    tensors = 9 * shape.num_layers + 3
    return 16 * shape.parameters + 4 * tensors


def activation_bytes(shape: Shape, precision: str, attention: str, device: str = "cpu") -> int:
    """Return the bytes that `lib.model` keeps from a forward for its backward pass.

    These are the inputs that each operation's derivative needs, each tensor once (Korthikanti et al. 2022, "Reducing
    Activation Recomputation in Large Transformer Models", section 4), for RMSNorm, RoPE, SwiGLU and the loss instead
    of LayerNorm, GELU and dropout. They include autocast's copies of activations, but not those of the matrices."""
    return _Step(shape, precision, attention, device).kept_bytes


def peak_bytes(
    shape: Shape, precision: str, attention: str, optimizer: str, mode: str, device: str = "cpu", checkpoint: int = 0
) -> int:
    """Return the peak bytes of the part of a training step that `mode` names.

    The optimizer has its moments by then. With `checkpoint`, layers run in groups of that many, which keep only their
    input."""
    step = _Step(shape, precision, attention, device, checkpoint)
    parameters = 4 * shape.parameters
    held = parameters
    if mode == "train_step":
        held = state_bytes(shape) - parameters  # all but the gradients
    held += 8 * shape.batch_size * (shape.context_length + 1)  # token ids
    held += 4 * shape.context_length * shape.d_head  # RoPE's tables
    points = step.forward_points(graph=mode != "no_grad")
    if mode in ("forward_backward", "train_step"):
        # the head's output is held to the end; backward points count only what the loss keeps of it
        logits = step.narrow * step.logits
        points += [logits + point for point in step.backward_points()]
        if mode == "train_step":
            points.append(logits + parameters + _optimizer_bytes(shape, optimizer))
    return held + max(points)


def _optimizer_bytes(shape: Shape, optimizer: str) -> int:
    """Return the bytes of an optimizer's temporaries."""
    if "foreach" in optimizer:
        return 4 * shape.parameters
    if optimizer == "fused":
        return 0
    return 3 * 4 * max(shape.vocab_size, shape.d_ff, shape.d_model) * shape.d_model


class _Step:
    """Count the bytes that a training step holds at the points that can be its peak."""

    def __init__(self, shape: Shape, precision: str, attention: str, device: str, checkpoint: int = 0):
        self.shape = shape
        self.attention = attention
        self.narrow = width(precision)  # bytes of what products read
        self.casts = self.narrow < 4  # autocast copies what they read
        # on a GPU autocast computes the softmax in fp32 and casts its result
        self.widens_softmax = self.casts and device != "cpu"
        self.holds_scores = attention in FORMULA
        # numbers of tokens x d_model, tokens x d_ff and tokens x vocabulary, of a tile's scores, and of the head
        self.hidden = shape.tokens * shape.d_model
        self.wide = shape.tokens * shape.d_ff
        self.logits = shape.tokens * shape.vocab_size
        self.tile_scores = shape.num_heads * shape.tokens * min(TILE, shape.context_length)
        self.head = shape.vocab_size * shape.d_model

        self.checkpoint = checkpoint
        self.layer_bytes = self._kept_by_layer()
        self.kept_bytes = (2 * 4 + self.narrow) * self.hidden  # the last norm's input, quotient and output
        self.kept_bytes += 4 * shape.tokens  # its roots
        self.kept_bytes += 4 * self.logits + 8 * shape.tokens  # the loss's log-probabilities and targets
        if checkpoint:
            self.kept_bytes += -(-shape.num_layers // checkpoint) * 4 * self.hidden  # the input of each group
        else:
            self.kept_bytes += shape.num_layers * self.layer_bytes
        # autocast's copies of the layers' matrices and of the head
        self.layer_copies = (4 - self.narrow) * shape.num_layers * shape.layer_matrix_parameters
        self.head_copy = (4 - self.narrow) * self.head

    def _kept_by_layer(self) -> int:
        """Return the bytes that one layer keeps."""
        narrow_hidden = self.narrow * self.hidden
        norm_inputs = 2 * 4 * self.hidden
        norm_quotients = 2 * 4 * self.hidden
        norm_roots = 2 * 4 * self.shape.tokens
        norm_outputs = 2 * narrow_hidden
        if self.casts:
            # autocast keeps one for each matrix that reads it: three in attention, two in SwiGLU
            norm_outputs = 5 * narrow_hidden
        queries_keys_values = 3 * narrow_hidden
        if self.holds_scores:
            weights = (self.narrow + 4 * self.widens_softmax) * self.shape.scores
            mask = self.shape.context_length**2  # of all heads
            attention = weights + mask + narrow_hidden  # and the output
        else:
            log_sums = 4 * self.shape.num_heads * self.shape.tokens
            # its own output, and that with the heads joined
            attention = log_sums + 2 * narrow_hidden
        swiglu = 4 * self.narrow * self.wide  # w1 x, silu(w1 x), w3 x, and the product of the last two
        norms = norm_inputs + norm_quotients + norm_roots + norm_outputs
        return norms + queries_keys_values + attention + swiglu

    def forward_points(self, graph: bool) -> list[int]:
        """Return the bytes at the last layer, and at the loss.

        At the layer they are the larger of those at attention and at SwiGLU. `graph` is True if a backward pass will
        follow. Autocast keeps its copies of matrices to the end."""
        narrow = self.narrow
        layers_before = self.shape.num_layers - 1
        before_bytes = 0  # what layers before the last left
        norm_bytes = 0  # what the last layer's first norm left
        kept_at_loss = 4 * self.logits + 8 * self.shape.tokens  # log-probabilities and targets
        if graph:
            kept_at_loss = self.kept_bytes  # with all that came before
            if self.checkpoint:
                before_bytes = -(-layers_before // self.checkpoint) * 4 * self.hidden
            else:
                before_bytes = layers_before * self.layer_bytes
                # the quotient, and autocast's outputs for three matrices
                norm_bytes = (4 + 3 * narrow * self.casts) * self.hidden

        attention = 2 * 4 * self.hidden + norm_bytes  # the layer's input, and the norm's output in fp32
        attention += 5 * narrow * self.hidden  # queries and keys, before and after RoPE, and values
        if self.holds_scores:
            # each score, and its weight
            score = 2 * narrow
            if self.widens_softmax:
                score = narrow + 2 * 4  # the scores also in fp32, and the weights only so
            attention += score * self.shape.scores + self.shape.context_length**2  # and the mask
            attention += 2 * narrow * self.hidden  # a contiguous copy of the values, and the output
        else:
            attention += (2 * narrow + 4) * self.hidden  # scaled queries, copied values, and the output in fp32
            if self.attention == "tiled":
                attention += (4 + narrow * self.casts) * self.tile_scores  # scores in fp32, and narrow under autocast
        swiglu = 3 * 4 * self.hidden  # the layer's input, the stream after attention, and the norm's output
        swiglu += 3 * narrow * self.wide  # silu(w1 x), w3 x, and their product
        logits = (narrow + 4 * self.casts) * self.logits  # the head's output, and autocast's copy in fp32
        return [
            self.layer_copies + before_bytes + max(attention, swiglu),
            self.layer_copies + self.head_copy + kept_at_loss + logits,
        ]

    def backward_points(self) -> list[int]:
        """Return the bytes at the loss, the head, the embedding and groups of layers.

        A group's activations exist only while its backward pass runs; without checkpointing, all layers are one group.
        Each layer frees activations and autocast's copies, and makes gradients. If it frees more than it makes, memory
        is highest at the group's last layer, else at its first."""
        shape = self.shape
        narrow = self.narrow
        at_loss = self.kept_bytes + self.head_copy
        if not self.checkpoint:
            at_loss += self.layer_copies
        # the gradient of the head's input; under autocast the log-probabilities are gone by then
        head_input = narrow * self.hidden - 4 * self.logits * self.casts
        points = [
            at_loss + 2 * 4 * self.logits,  # the gradients of the log-probabilities and of the logits
            at_loss + 4 * self.head + head_input,
            4 * shape.parameters + 4 * self.hidden,  # the embedding's gradient, the last to come
        ]
        # the gradient of a matrix adds `narrow` for each parameter: 4, less the 4 - narrow of the copy that it replaces
        made_by_layer = narrow * shape.layer_matrix_parameters
        # at SwiGLU's product: its gradient, those of its factors, and that of the matrix after it
        swiglu = narrow * shape.d_ff * shape.d_model + 2 * narrow * self.wide
        # at attention: SwiGLU, its norm and the output projection are done
        gradients = narrow * (3 * shape.d_ff * shape.d_model + shape.d_model**2)
        freed = 4 * narrow * self.wide + (2 * 4 + (2 + self.casts) * narrow) * self.hidden
        attention = gradients + self._attention_temporaries() - freed
        group = self.checkpoint or shape.num_layers
        for first in range(0, shape.num_layers, group):
            last = min(shape.num_layers, first + group)
            inputs = 4 * self.hidden * (first // group + 1)  # of the groups up to this one
            done = 4 * (self.head + (shape.num_layers - last) * shape.layer_matrix_parameters + shape.norm_parameters)
            activations = (last - first) * (self.layer_bytes + (4 - narrow) * shape.layer_matrix_parameters)
            grown = (last - first - 1) * (made_by_layer - self.layer_bytes)
            points.append(inputs + done + activations + max(0, grown) + max(swiglu, attention))
        return points

    def _attention_temporaries(self) -> int:
        """Return the bytes of temporaries in the backward pass of one attention.

        Variants in `FORMULA` hold the gradients of weights and scores, others those of queries, keys, values and
        output. `tiled` adds the scaled queries, a tile's part of their gradient, and for each score of a tile two fp32
        numbers and a narrow one."""
        if self.holds_scores:
            number = self.narrow
            if self.widens_softmax:
                number = 4
            return 2 * number * self.shape.scores
        temporaries = 4 * self.narrow * self.hidden
        if self.attention == "tiled":
            temporaries += 2 * self.narrow * self.hidden + (8 + self.narrow * self.casts) * self.tile_scores
        return temporaries


def attention_peak_bytes(batch_size: int, seq_len: int, d_head: int, causal: bool) -> int:
    """Return the peak bytes of naive attention in fp32, for at least d_head tokens.

    The backward pass then has the gradients of weights and scores, and has not yet freed what it reads."""
    # Q, K, V, output, its gradient, and the gradient of V
    tensors = 6 * 4 * batch_size * seq_len * d_head
    # weights, their gradient and that of the scores
    scores = 3 * 4 * batch_size * seq_len**2
    mask = causal * seq_len**2
    return tensors + scores + mask
