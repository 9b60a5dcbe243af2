"""Compute the bytes that a step, its phases or attention alone hold, by formula.

It is the assignment's accounting. Where the system cannot limit a process's memory, `memory_limit.refusal` refuses by
it what does not fit. Tests compare each formula with what PyTorch saves and allocates. Left out are RoPE's angles, and
tensors of at most one number a token and head.
"""

import bisect
import math

from lib.catalog import CATALOG
from lib.config import Config
from lib.cost.flops import Shape, shape_of, width

TILE = 128  # keys of a tile
MOST_SEQUENCES = 1 << 16


def activation_bytes(shape: Shape, precision: str, attention: str, device: str = "cpu") -> int:
    """Return the bytes that a forward pass of `lib.model` keeps for its backward.

    These are the inputs that each operation's derivative needs; each tensor counts once (Korthikanti et al. 2022,
    "Reducing Activation Recomputation in Large Transformer Models", section 4). RMSNorm, RoPE, SwiGLU and the loss take
    the place of the paper's LayerNorm, GELU and dropout. Autocast's copies of activations count, and those of the
    matrices do not."""
    return _Step(shape, precision, attention, device).total_kept_bytes


def peak_bytes(
    shape: Shape, precision: str, attention: str, optimizer: str, mode: str, device: str = "cpu", checkpoint: int = 0
) -> int:
    """Return the peak bytes of the part of a step that `mode` names.

    It is the largest sum of `peak_terms`."""
    terms = peak_terms(shape, precision, attention, optimizer, mode, device, checkpoint)
    return max(sum(point.values()) for point in terms.values())


def peak_terms(
    shape: Shape, precision: str, attention: str, optimizer: str, mode: str, device: str = "cpu", checkpoint: int = 0
) -> dict[str, dict[str, int]]:
    """Return the bytes alive where a phase's memory is highest, by phase and by term.

    In a whole step the optimizer has its moments from the start. With `checkpoint`, layers run in groups of that many,
    and a group keeps only its input. `activations` of the backward pass include the gradients made by then."""
    step = _Step(shape, precision, attention, device, checkpoint)
    parameters = 4 * shape.parameters  # their bytes; all gradients take as many
    held = {"weights": parameters}
    if mode == "train_step":
        held["moments"] = 2 * parameters
    # the forward pass can be the peak: with checkpointing it alone holds all of autocast's copies of matrices
    terms = {"forward": held | {"activations": step.forward_peak(graph=mode != "no_grad")}}
    if mode in ("no_grad", "forward"):
        return terms
    # the logits, which the caller of a step holds to its end
    held["logits"] = width(precision) * shape.tokens * shape.vocab_size
    terms["backward"] = held | {"activations": step.backward_peak()}
    if mode == "forward_backward":
        return terms
    # beside the gradients; fused and compiled variants have none
    temporaries = 0
    if optimizer == "single_tensor":
        # three tensors as large as the largest parameter: rms, m / rms and the update
        temporaries = 3 * 4 * max(shape.vocab_size, shape.d_ff, shape.d_model) * shape.d_model
    elif optimizer == "foreach":
        temporaries = parameters
    terms["optimizer"] = held | {"gradients": parameters, "temporaries": temporaries}
    return terms


def largest_batch(config: Config, limit_bytes: float, precision: str, checkpoint: int, device: str = "cuda") -> int:
    """Return the most sequences with which a plain step stays within `limit_bytes`.

    It is 0 if one is too many."""

    def peak(batch_size: int) -> int:
        shape = shape_of(config, batch_size)
        return peak_bytes(shape, precision, "naive", "single_tensor", "train_step", device, checkpoint)

    return bisect.bisect_right(range(1, MOST_SEQUENCES), limit_bytes, key=peak)


class _Step:
    """Count the bytes that a training step holds at the points that can be its peak."""

    def __init__(self, shape: Shape, precision: str, attention: str, device: str, checkpoint: int = 0):
        self.shape = shape
        self.checkpoint = checkpoint
        self.number_bytes = width(precision)  # bytes of what products read
        # autocast copies what products read; without it a copy has no bytes
        self.casts = self.number_bytes < 4
        self.copy_bytes = 0
        if self.casts:
            self.copy_bytes = self.number_bytes
        self.stream_bytes = 4 * shape.tokens * shape.d_model  # the residual stream, as wide as d_model, in fp32
        self.logits_bytes = 4 * shape.tokens * shape.vocab_size  # as wide as the vocabulary, in fp32
        self.inner_bytes = self.number_bytes * shape.tokens * shape.d_model  # a product's input, as wide as d_model
        self.wide_bytes = self.number_bytes * shape.tokens * shape.d_ff  # a product's input, as wide as d_ff
        # autocast's copies of all layers' matrices and of the head's
        self.layer_copies_bytes = self.copy_bytes * shape.num_layers * shape.layer_matrix_parameters
        self.head_copy_bytes = self.copy_bytes * shape.vocab_size * shape.d_model

        attention_kept, self.attention_forward_bytes, self.attention_backward_bytes = self._attention(attention, device)
        norms = 4 * self.stream_bytes + 2 * self.inner_bytes  # inputs, quotients and outputs
        # autocast keeps an output for each matrix that reads it, which are three in attention and two in SwiGLU: three
        # more than without it
        if self.casts:
            norms += 3 * self.inner_bytes
        queries_keys_values = 3 * self.inner_bytes
        swiglu = 4 * self.wide_bytes  # w1 x, silu(w1 x), w3 x, and the product of the last two
        self.layer_kept_bytes = norms + queries_keys_values + attention_kept + swiglu
        self.all_layers_kept_bytes = shape.num_layers * self.layer_kept_bytes
        if checkpoint:
            groups = math.ceil(shape.num_layers / checkpoint)
            self.all_layers_kept_bytes = groups * self.stream_bytes  # the input of each group
        # the last norm's input, quotient and output, and the loss's log-probabilities
        end_kept_bytes = 2 * self.stream_bytes + self.inner_bytes + self.logits_bytes
        self.total_kept_bytes = self.all_layers_kept_bytes + end_kept_bytes

    def _attention(self, variant: str, device: str) -> tuple[int, int, int]:
        """Return what attention keeps, its forward peak, and what its backward adds.

        All are in bytes. The forward peak includes those of the kept bytes that exist by then."""
        if CATALOG["attention"].variants[variant].holds_scores:
            mask = self.shape.context_length**2  # one for all heads and sequences, a byte a score
            softmax = self.number_bytes * self.shape.num_scores
            copy = 0
            if self.casts and device != "cpu":
                # on a GPU autocast computes the softmax in fp32 and casts its result
                copy = softmax  # the narrow weights
                softmax = 4 * self.shape.num_scores
            kept = softmax + copy + mask + self.inner_bytes  # the weights, the mask and the output
            # all that is kept, the scores, and a contiguous copy of the values. A softmax in fp32 has the peak itself:
            # narrow scores, as large as `copy`, wide scores and wide weights.
            forward = 2 * softmax + copy + mask + 2 * self.inner_bytes
            backward = 2 * softmax  # the gradients of weights and scores
            return kept, forward, backward
        kept = 2 * self.inner_bytes  # the output, and a copy of it with the heads joined
        # queries and values copied, and the output in fp32; `tiled` copies no queries
        forward = 2 * self.inner_bytes + self.stream_bytes
        backward = 4 * self.inner_bytes  # the gradients of queries, keys, values and output
        # left out: what other variants hold within kernels or compiled code, and the blocks of `flash_compiled`
        if variant == "tiled":
            # forward a tile's scores in fp32; backward also their gradients
            tile = self.shape.num_heads * self.shape.tokens * min(TILE, self.shape.context_length)
            forward += 4 * tile - self.inner_bytes
            # copied values, and the gradient of queries in fp32. Left out: of several sequences, the gradient of the
            # output is copied, too
            backward += self.stream_bytes + 8 * tile
            if self.casts:
                # a product of narrow factors is computed in fp32: one factor and the result have as many rows
                forward += 2 * self.stream_bytes
                backward += 2 * self.stream_bytes
        return kept, forward, backward

    def forward_peak(self, graph: bool) -> int:
        """Return the most bytes at the last layer's attention, its SwiGLU, or the loss.

        They do not count the parameters. `graph` is True if autograd keeps what a backward pass needs. Autocast keeps
        its copies of matrices to the end."""
        before = 0
        kept_at_loss = self.logits_bytes  # the log-probabilities
        if graph:
            # what all layers but the last keep; with checkpointing, nearly all of the groups' inputs
            before = self.all_layers_kept_bytes - self.all_layers_kept_bytes // self.shape.num_layers
            kept_at_loss = self.total_kept_bytes
        # the layer's input, and the norm's output in fp32; queries and keys, before and after RoPE, and values. With a
        # graph also the norm's quotient and autocast's copies of the norm's output, left out here: they are small
        attention = 2 * self.stream_bytes + 5 * self.inner_bytes + self.attention_forward_bytes
        # the layer's input, the stream after attention, and the norm's output; silu(w1 x), w3 x, and their product.
        # What the layer keeps for a graph is left out: the loss has it, too, and is higher
        swiglu = 3 * self.stream_bytes + 3 * self.wide_bytes
        # the head's output, and autocast's copy in fp32
        output = self.number_bytes * self.shape.tokens * self.shape.vocab_size
        if self.casts:
            output += self.logits_bytes
        at_loss = self.head_copy_bytes + kept_at_loss + output
        return self.layer_copies_bytes + max(before + attention, before + swiglu, at_loss)

    def backward_peak(self) -> int:
        """Return the most bytes at the loss, in a group of layers, or at the end.

        They do not count the parameters, nor the logits that the caller holds. A group's activations exist only while
        its backward pass runs; without checkpointing, all layers are one group. Each layer frees activations and
        autocast's copies, and makes gradients. If it frees more than it makes, memory is highest at the group's last
        layer, else at its first."""
        shape = self.shape
        # at the loss there are also the gradients of log-probabilities and logits
        at_loss = self.total_kept_bytes + self.head_copy_bytes + 2 * self.logits_bytes
        # with checkpointing no graph holds the layers' copies of matrices once autocast has ended
        if not self.checkpoint:
            at_loss += self.layer_copies_bytes
        points = [at_loss, 4 * shape.parameters]  # in the end there are all gradients
        # a parameter of a matrix adds its gradient, which replaces autocast's copy
        added = 4 - self.copy_bytes
        added_by_layer = added * shape.layer_matrix_parameters
        # What a layer adds to the group's `activations`, below, at its highest point. In SwiGLU these are the gradients
        # of w2, silu(w1 x) and w3 x; the gradient of w2's input replaces that input, and so adds nothing.
        swiglu = added * shape.d_ff * shape.d_model + 2 * self.wide_bytes
        # While attention runs backward, three parts are done: SwiGLU, its norm, and the output projection. What they
        # kept is freed: four tensors of SwiGLU, input, quotient and output of the norm, and the output projection's
        # input. Autocast keeps a second output of the norm.
        gradients = added * (3 * shape.d_ff * shape.d_model + shape.d_model**2)
        freed = 4 * self.wide_bytes + 2 * self.stream_bytes + 2 * self.inner_bytes
        if self.casts:
            freed += self.inner_bytes
        attention = gradients + self.attention_backward_bytes - freed
        group = self.checkpoint or shape.num_layers
        for first in range(0, shape.num_layers, group):
            last = min(shape.num_layers, first + group)
            inputs = self.stream_bytes * (first // group + 1)  # earlier groups' inputs, and the stream's gradient
            # the gradients of the head and of later layers
            done = 4 * (shape.vocab_size * shape.d_model + (shape.num_layers - last) * shape.layer_matrix_parameters)
            activations = (last - first) * (self.layer_kept_bytes + self.copy_bytes * shape.layer_matrix_parameters)
            # from the group's last layer to its first
            grown = (last - first - 1) * (added_by_layer - self.layer_kept_bytes)
            points.append(inputs + done + activations + max(0, grown) + max(swiglu, attention))
        return max(points)


def attention_peak_bytes(batch_size: int, seq_len: int, d_head: int, causal: bool, number_bytes: int = 4) -> int:
    """Return the peak bytes of naive attention, if `seq_len` is at least `d_head`.

    It is reached in the backward pass, which has the gradients of weights and scores, and has not yet freed what it
    reads. All tensors have numbers of `number_bytes`, but the mask, which has a byte a score and is the same for the
    whole batch. `batch_size` counts the heads, too."""
    # Q, K, V, output, its gradient, and the gradient of V; weights, their gradient and that of the scores; the mask
    return number_bytes * batch_size * (6 * seq_len * d_head + 3 * seq_len**2) + causal * seq_len**2
