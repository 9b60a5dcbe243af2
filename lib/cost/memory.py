"""Compute by formula how many bytes a training step, its phases or attention alone hold.

It is the assignment's accounting. Where the system cannot limit a process's memory, it also refuses steps and
attention that do not fit. Tests compare each formula with what PyTorch saves and allocates.
"""

from dataclasses import dataclass

from lib.cost.flops import FORMULA, Shape, width

TILE = 128  # keys of a tile


def state_bytes(shape: Shape) -> int:
    """Return the bytes of parameters, gradients and moments in fp32, and of step counts."""
    tensors = 9 * shape.num_layers + 3
    return 16 * shape.parameters + 4 * tensors


def activation_bytes(shape: Shape, precision: str, attention: str, device: str = "cpu") -> int:
    """Return the bytes that a forward pass of `lib.model` keeps for its backward pass.

    These are the inputs that each operation's derivative needs, each tensor once (Korthikanti et al. 2022, "Reducing
    Activation Recomputation in Large Transformer Models", section 4). Unlike theirs, this model has RMSNorm, RoPE,
    SwiGLU and the loss instead of LayerNorm, GELU and dropout. Counted are also autocast's copies of activations, and
    the terms that they neglect; not counted are autocast's copies of the matrices."""
    step = _Step(shape, precision, attention, device)
    return shape.num_layers * step.layer_bytes + step.last_bytes


def peak_bytes(
    shape: Shape, precision: str, attention: str, optimizer: str, mode: str, device: str = "cpu", checkpoint: int = 0
) -> int:
    """Return the peak bytes of the part of a training step that `mode` names.

    The step is the second, when the optimizer has its moments. The peak is fp32 parameters, moments, batch, RoPE's
    tables, and the most that any point of the step adds. With `checkpoint`, layers run in groups of that many, which
    keep only their input."""
    step = _Step(shape, precision, attention, device, checkpoint)
    parameters = 4 * shape.parameters
    held = parameters
    if mode == "train_step":
        held = state_bytes(shape) - parameters  # all but the gradients
    held += 8 * shape.batch_size * (shape.context_length + 1)  # token ids
    held += 4 * shape.context_length * shape.d_head  # RoPE's tables
    points = step.forward_points(graph=mode != "no_grad")
    if mode in ("forward_backward", "train_step"):  # these modes hold the logits to the end
        logits = step.narrow * step.logits
        points += [logits + point for point in step.backward_points()]
        if mode == "train_step":
            points.append(logits + parameters + _optimizer_bytes(shape, optimizer))
    return held + max(points)


def _optimizer_bytes(shape: Shape, optimizer: str) -> int:
    """Return the bytes of an optimizer's temporaries: as large as all parameters, as three tensors, or none."""
    if "foreach" in optimizer:
        return 4 * shape.parameters
    if optimizer == "fused":
        return 0
    largest = max(shape.vocab_size, shape.d_ff, shape.d_model) * shape.d_model
    return 3 * 4 * largest


@dataclass(frozen=True)
class _Step:
    """Hold what the memory of a training step depends on, and count its tensors.

    `hidden`, `wide` and `logits` are numbers of tokens x d_model, tokens x d_ff and tokens x vocabulary."""

    shape: Shape
    precision: str
    attention: str
    device: str
    checkpoint: int = 0

    @property
    def narrow(self) -> int:
        return width(self.precision)

    @property
    def hidden(self) -> int:
        return self.shape.tokens * self.shape.d_model

    @property
    def wide(self) -> int:
        return self.shape.tokens * self.shape.d_ff

    @property
    def logits(self) -> int:
        return self.shape.tokens * self.shape.vocab_size

    @property
    def holds_scores(self) -> bool:
        return self.attention in FORMULA

    @property
    def casts(self) -> bool:
        """Return True if autocast copies what products read."""
        return self.narrow < 4

    @property
    def widens_softmax(self) -> bool:
        """Return True where autocast computes the softmax in fp32 and casts its result: on a GPU."""
        return self.casts and self.device != "cpu"

    @property
    def layer_bytes(self) -> int:
        """Return the bytes that one layer keeps.

        In tokens x d_model: both norms' inputs and quotients in fp32, their outputs, queries, keys, values and
        attention's output. Tiled variants keep that last one twice; autocast keeps a norm's output once for each matrix
        that uses it. SwiGLU keeps four arrays of tokens x d_ff, each norm one root a token. Each head keeps its weights
        or the logarithms of its sums; all heads share one mask."""
        norm_outputs = 2 + 3 * self.casts
        attention_outputs = 2 - self.holds_scores
        narrow_tensors = norm_outputs + 3 + attention_outputs
        norms = 4 * 4 * self.hidden + 2 * 4 * self.shape.tokens
        if self.holds_scores:
            weight = self.narrow + 4 * self.widens_softmax
            heads = weight * self.shape.scores + self.shape.context_length**2
        else:
            heads = 4 * self.shape.num_heads * self.shape.tokens
        return norms + narrow_tensors * self.narrow * self.hidden + 4 * self.narrow * self.wide + heads

    @property
    def last_bytes(self) -> int:
        """Return the bytes that the last norm, the head and the loss keep."""
        norm = 2 * 4 * self.hidden + 4 * self.shape.tokens
        head = self.narrow * self.hidden
        loss = 4 * self.logits + 8 * self.shape.tokens
        return norm + head + loss

    def copies_bytes(self, layers: int) -> int:
        """Return the bytes of autocast's copies of the matrices of some layers and the head."""
        numbers = layers * self.shape.layer_matrices + self.shape.vocab_size * self.shape.d_model
        return numbers * (4 - self.narrow)

    @property
    def kept_bytes(self) -> int:
        """Return what a forward pass keeps for its backward pass, with autocast's copies of matrices.

        In groups of layers, these are only the input of each group, and what comes after the last layer."""
        layers = self.shape.num_layers
        if self.checkpoint:
            groups = -(-layers // self.checkpoint)
            return groups * 4 * self.hidden + self.last_bytes + self.copies_bytes(0)
        return layers * self.layer_bytes + self.last_bytes + self.copies_bytes(layers)

    def forward_points(self, graph: bool) -> list[int]:
        """Return the bytes at each point of the forward pass that can be the peak.

        These are attention and SwiGLU of the last layer, and the loss. Autocast keeps its copies of matrices to the
        end. `graph` is True if a backward pass will follow."""
        narrow = self.narrow
        layers_before = self.shape.num_layers - 1
        before = 0  # what layers before the last left
        norms = 0  # what the last layer's first norm left
        end = 4 * self.logits + 8 * self.shape.tokens
        if self.checkpoint and (layers_before % self.checkpoint or (self.checkpoint > 1 and not graph)):
            before = 4 * self.hidden  # the group's input, in addition to that of its last layer
        if graph and self.checkpoint:
            before += layers_before // self.checkpoint * 4 * self.hidden
            end = self.kept_bytes - self.copies_bytes(0)
        elif graph:
            before = layers_before * self.layer_bytes
            norms = (4 + 3 * narrow * self.casts) * self.hidden
            end = self.kept_bytes - self.copies_bytes(self.shape.num_layers)

        attention = (2 * 4 + 5 * narrow) * self.hidden + norms
        if self.holds_scores:
            score = narrow + 2 * 4 if self.widens_softmax else 2 * narrow
            attention += score * self.shape.scores + self.shape.context_length**2 + 2 * narrow * self.hidden
        else:
            attention += (2 * narrow + 4) * self.hidden
            if self.attention == "tiled":
                attention += (4 + narrow * self.casts) * self._tile_scores
        swiglu = 3 * 4 * self.hidden + 3 * narrow * self.wide
        log_probabilities = (narrow + 4 * self.casts) * self.logits

        copies = self.copies_bytes(self.shape.num_layers)
        copies_of_layers = copies - self.copies_bytes(0)
        return [
            copies_of_layers + before + attention,
            copies_of_layers + before + swiglu,
            copies + end + log_probabilities,
        ]

    def backward_points(self) -> list[int]:
        """Return the bytes at each point of the backward pass that can be the peak.

        Each layer frees activations and autocast's copies, and makes gradients. If it frees more than it makes, memory
        is highest at the last layer, else at the first. Both are counted for each group of layers, whose activations
        exist only while its backward pass runs."""
        shape = self.shape
        head = shape.vocab_size * shape.d_model
        # the gradient of the head's input; under autocast the log-probabilities are gone by then
        head_input = self.narrow * self.hidden - 4 * self.logits * self.casts
        points = [
            self.kept_bytes + 2 * 4 * self.logits,  # the gradients of the log-probabilities and of the logits
            self.kept_bytes + 4 * head + head_input,
            4 * shape.parameters + 4 * self.hidden,  # the embedding's gradient, the last to come
        ]
        size = self.checkpoint or shape.num_layers
        for first in range(0, shape.num_layers, size):
            points += self._group_points(first, min(shape.num_layers, first + size))
        return points

    def _group_points(self, first: int, last: int) -> list[int]:
        """Return the bytes at the points of a backward pass through the layers from `first` to before `last`."""
        shape = self.shape
        narrow = self.narrow
        # what the gradient of a matrix adds for each parameter: 4, less the 4 - narrow of the copy that it replaces
        matrix = narrow
        layers = last - first
        groups_before = first // (self.checkpoint or shape.num_layers)
        inputs = 4 * self.hidden * (groups_before + 1)  # of the groups up to this one
        done = 4 * (shape.vocab_size * shape.d_model + (shape.num_layers - last) * shape.layer_matrices)
        own = layers * (self.layer_bytes + (4 - matrix) * shape.layer_matrices)
        norms = 4 * (2 * shape.num_layers + 1) * shape.d_model  # too small for their time to matter
        at_last_layer = inputs + done + own + norms
        at_first_layer = at_last_layer + (layers - 1) * (matrix * shape.layer_matrices - self.layer_bytes)

        # at SwiGLU's product: its gradient, those of its factors, and that of the matrix after it
        swiglu = matrix * shape.d_ff * shape.d_model + 2 * narrow * self.wide
        # at attention: SwiGLU, its norm and the output projection are done
        gradients = matrix * (3 * shape.d_ff * shape.d_model + shape.d_model**2)
        freed = 4 * narrow * self.wide + (2 * 4 + (2 + self.casts) * narrow) * self.hidden
        attention = gradients + self._attention_temporaries - freed
        return [layer + part for layer in (at_last_layer, at_first_layer) for part in (swiglu, attention)]

    @property
    def _attention_temporaries(self) -> int:
        """Return the bytes of temporaries in the backward pass of one attention.

        Variants in `FORMULA` hold the gradients of weights and scores, others those of queries, keys, values and
        output. `tiled` adds the scaled queries, a tile's part of their gradient, and for each score of a tile two fp32
        numbers and a narrow one."""
        if self.holds_scores:
            return 2 * self.shape.scores * (4 if self.widens_softmax else self.narrow)
        hidden = self.narrow * self.hidden
        temporaries = 4 * hidden
        if self.attention == "tiled":
            temporaries += 2 * hidden + (8 + self.narrow * self.casts) * self._tile_scores
        return temporaries

    @property
    def _tile_scores(self) -> int:
        return self.shape.num_heads * self.shape.tokens * min(TILE, self.shape.context_length)


def attention_kept_bytes(variant: str, batch_size: int, seq_len: int, d_head: int, causal: bool) -> dict[str, int]:
    """Return the bytes, by part, that attention alone keeps in fp32 for its backward pass.

    These are inputs, output, the output's gradient, which exists from the start, and what the variant keeps for the
    backward pass: weights and mask, or one logarithm for each query."""
    tensor = 4 * batch_size * seq_len * d_head
    parts = {"Q, K and V": 3 * tensor, "output": tensor, "gradient of the output": tensor}
    if variant in FORMULA:
        parts["weights"] = 4 * batch_size * seq_len**2
        if causal:
            parts["mask"] = seq_len**2
    else:
        parts["logarithms of the sums"] = 4 * batch_size * seq_len
    return parts


def attention_peak_bytes(batch_size: int, seq_len: int, d_head: int, causal: bool) -> dict[str, int]:
    """Return the bytes, by part, at the peak of naive attention in fp32, for at least d_head tokens.

    The backward pass then has the gradients of weights and scores, and has not yet freed what it reads."""
    parts = attention_kept_bytes("naive", batch_size, seq_len, d_head, causal)
    parts["gradient of V"] = 4 * batch_size * seq_len * d_head
    parts["gradient of the weights"] = parts["weights"]
    parts["gradient of the scores"] = parts["weights"]
    return parts
