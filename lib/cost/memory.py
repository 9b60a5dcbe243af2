"""Compute by formula how many bytes a training step, its phases or attention alone hold."""

from lib.cost.flops import FORMULA, Shape, width

TILE = 128  # keys of a tile


def activation_bytes(shape: Shape, precision: str, attention: str, device: str = "cpu") -> int:
    """Return the bytes that a forward pass of `lib.model` keeps for its backward pass.

    These are the inputs that each operation's derivative needs, each tensor once (Korthikanti et al. 2022, "Reducing
    Activation Recomputation in Large Transformer Models", section 4). Unlike theirs, this model has RMSNorm, RoPE,
    SwiGLU and the loss instead of LayerNorm, GELU and dropout. Counted are also autocast's copies of activations, and
    the terms that they neglect. `kept_bytes` adds autocast's copies of the matrices."""
    return shape.num_layers * _layer_bytes(shape, precision, attention, device) + _last_bytes(shape, precision)


def _layer_bytes(shape: Shape, precision: str, attention: str, device: str) -> int:
    """Return the bytes that one layer keeps.

    In tokens x d_model: both norms' inputs and quotients in fp32, their outputs, queries, keys, values and attention's
    output. Tiled variants keep that last one twice; autocast keeps a norm's output once for each matrix that uses it.
    SwiGLU keeps four arrays of tokens x d_ff, each norm one root a token. Each head keeps its weights or the logarithms
    of its sums; all heads share one mask."""
    narrow = width(precision)
    copies = 2 if narrow == 4 else 5
    hidden = shape.tokens * shape.d_model * (4 * 4 + (copies + 4 + (attention not in FORMULA)) * narrow)
    wide = shape.tokens * shape.d_ff * 4 * narrow
    if attention in FORMULA:
        softmax = narrow if device == "cpu" or narrow == 4 else 4 + narrow  # autocast elsewhere widens and casts it
        heads = softmax * shape.scores + shape.context_length**2
    else:
        heads = 4 * shape.num_heads * shape.tokens
    return hidden + wide + heads + 2 * 4 * shape.tokens


def _last_bytes(shape: Shape, precision: str) -> int:
    """Return the bytes that the last norm, the head and the loss keep."""
    return shape.tokens * (shape.d_model * (2 * 4 + width(precision)) + 4 * shape.vocab_size + 4 + 8)


def state_bytes(shape: Shape) -> int:
    """Return the bytes of parameters, gradients and moments in fp32, and of step counts."""
    return 16 * shape.parameters + 4 * (9 * shape.num_layers + 3)


def peak_bytes(
    shape: Shape, precision: str, attention: str, optimizer: str, mode: str, device: str = "cpu", checkpoint: int = 0
) -> int:
    """Return the peak bytes of the part of a training step that `mode` names.

    The step is the second, when the optimizer has its moments. The peak is fp32 parameters, moments, batch, RoPE's
    tables, and the most that any point of the step adds. With `checkpoint`, layers run in groups of that many, which
    keep only their input."""
    states = state_bytes(shape) - 4 * shape.parameters if mode == "train_step" else 4 * shape.parameters
    batch = 8 * shape.batch_size * (shape.context_length + 1) + 4 * shape.context_length * shape.d_head
    logits = shape.tokens * shape.vocab_size * width(precision)
    moments = _forward_bytes(shape, precision, attention, device, mode != "no_grad", checkpoint)
    if mode in ("forward_backward", "train_step"):  # these modes hold the logits to the end
        moments += [logits + moment for moment in _backward_bytes(shape, precision, attention, device, checkpoint)]
    if mode == "train_step":  # all gradients, and temporaries: as large as all parameters, three tensors, or none
        largest = max(shape.vocab_size, shape.d_ff, shape.d_model) * shape.d_model
        temporaries = 4 * shape.parameters if "foreach" in optimizer else 0 if optimizer == "fused" else 3 * 4 * largest
        moments.append(logits + 4 * shape.parameters + temporaries)
    return states + batch + max(moments)


def kept_bytes(shape: Shape, precision: str, attention: str, device: str, checkpoint: int) -> int:
    """Return what a forward pass keeps for its backward pass, with copies of matrices.

    With `checkpoint`, these are only the input of each group of layers, and what comes after the last layer."""
    head, last = _copies(shape, precision, 0), _last_bytes(shape, precision)
    if checkpoint:
        return -(-shape.num_layers // checkpoint) * 4 * shape.tokens * shape.d_model + last + head
    return activation_bytes(shape, precision, attention, device) + _copies(shape, precision, shape.num_layers)


def _copies(shape: Shape, precision: str, layers: int) -> int:
    """Return the bytes of autocast's copies of the matrices of `layers` and the head."""
    return (layers * shape.layer_matrices + shape.vocab_size * shape.d_model) * (4 - width(precision))


def _forward_bytes(
    shape: Shape, precision: str, attention: str, device: str, graph: bool, checkpoint: int
) -> list[int]:
    """Return the bytes at each point of the forward pass that can be the peak.

    These are attention and SwiGLU of the last layer, and the loss. Autocast keeps its copies of matrices to the end."""
    narrow, tokens = width(precision), shape.tokens
    hidden, wide, vocabulary = tokens * shape.d_model, tokens * shape.d_ff, tokens * shape.vocab_size
    copies = _copies(shape, precision, shape.num_layers)
    before, norms, end = 0, 0, 4 * vocabulary + 8 * tokens
    if checkpoint and ((shape.num_layers - 1) % checkpoint or (checkpoint > 1 and not graph)):
        before = 4 * hidden  # the group's input, in addition to that of its last layer
    if graph:
        kept_copies = _copies(shape, precision, 0 if checkpoint else shape.num_layers)
        end = kept_bytes(shape, precision, attention, device, checkpoint) - kept_copies
        if checkpoint:
            before += (shape.num_layers - 1) // checkpoint * 4 * hidden
        else:
            before = (shape.num_layers - 1) * _layer_bytes(shape, precision, attention, device)
            norms = (4 if narrow == 4 else 4 + 3 * narrow) * hidden
    attend = (2 * 4 + 5 * narrow) * hidden + norms
    if attention in FORMULA:
        softmax = 2 * narrow if device == "cpu" or narrow == 4 else narrow + 2 * 4
        attend += softmax * shape.scores + shape.context_length**2 + 2 * narrow * hidden
    else:
        tile = shape.num_heads * tokens * min(TILE, shape.context_length)
        attend += (2 * narrow + 4) * hidden + (attention == "tiled") * (4 + narrow % 4) * tile
    block = copies - _copies(shape, precision, 0)
    return [
        block + before + attend,
        block + before + 3 * 4 * hidden + 3 * narrow * wide,
        copies + end + vocabulary * (narrow if narrow == 4 else narrow + 4),
    ]


def _backward_bytes(shape: Shape, precision: str, attention: str, device: str, checkpoint: int) -> list[int]:
    """Return the bytes at each point of the backward pass that can be the peak.

    Each layer frees activations and autocast's copies, and makes gradients. If it frees more than it makes, memory is
    highest at the last layer, else at the first. Both are counted for each group of layers, whose activations exist
    only while its backward pass runs."""
    narrow, tokens, d_model, d_ff = width(precision), shape.tokens, shape.d_model, shape.d_ff
    hidden, wide, vocabulary = tokens * d_model, tokens * d_ff, tokens * shape.vocab_size
    matrix = 4 if narrow == 4 else 2  # bytes that a gradient adds for each parameter, less the copy that it replaces
    head, block = shape.vocab_size * d_model, shape.layer_matrices
    layer, size = _layer_bytes(shape, precision, attention, device), checkpoint or shape.num_layers

    start = kept_bytes(shape, precision, attention, device, checkpoint)
    moments = [
        start + 2 * 4 * vocabulary,  # the gradients of the log-probabilities and of the logits
        start + 4 * head + (4 * hidden if narrow == 4 else 2 * hidden - 4 * vocabulary),  # the head's gradient
        4 * shape.parameters + 4 * hidden,  # the embedding's gradient, the last to come
    ]
    for group in range(-(-shape.num_layers // size)):
        last = min(shape.num_layers, (group + 1) * size)
        layers, done = last - group * size, shape.num_layers - last
        # inputs of earlier groups, gradients of later ones, own activations, the output's gradient
        whole = 4 * hidden * (group + 1) + 4 * (head + done * block) + layers * (layer + (4 - matrix) * block)
        whole += 4 * (2 * shape.num_layers + 1) * d_model  # gradients of norms, too small for their time to matter
        for behind in (0, layers - 1):
            entry = whole + behind * (matrix * block - layer)
            # at SwiGLU's product: its gradient, those of its factors, and that of the matrix after it
            moments.append(entry + matrix * d_ff * d_model + 2 * narrow * wide)
            # at attention: SwiGLU, its norm and the output projection are done
            freed = 4 * narrow * wide + hidden * (2 * 4 + (2 if narrow == 4 else 3) * narrow)
            made = matrix * (3 * d_ff * d_model + d_model**2) + _attention_bytes(shape, precision, attention, device)
            moments.append(entry + made - freed)
    return moments


def _attention_bytes(shape: Shape, precision: str, attention: str, device: str) -> int:
    """Return the bytes of temporaries in the backward pass of one attention.

    Variants in `FORMULA` hold the gradients of weights and scores, others those of queries, keys, values and output.
    `tiled` adds the scaled queries, a tile's part of their gradient, and for each score of a tile two fp32 numbers and
    a narrow one."""
    narrow = width(precision)
    if attention in FORMULA:
        return 2 * shape.scores * (narrow if device == "cpu" else 4)
    hidden = shape.tokens * shape.d_model * narrow
    tile = shape.num_heads * shape.tokens * min(TILE, shape.context_length)
    return 4 * hidden + (attention == "tiled") * (2 * hidden + (8 + narrow % 4) * tile)


def attention_kept_bytes(variant: str, batch_size: int, seq_len: int, d_head: int, causal: bool) -> dict[str, int]:
    """Return the bytes, by part, that attention alone keeps in fp32 for its backward pass.

    These are inputs, output, the output's gradient, which exists from the start, and what the variant keeps for the
    backward pass: weights and mask, or one logarithm for each query."""
    each, scores = 4 * batch_size * seq_len * d_head, 4 * batch_size * seq_len**2
    kept = {"Q, K and V": 3 * each, "output": each, "gradient of the output": each}
    if variant in FORMULA:
        return kept | {"weights": scores} | ({"mask": seq_len**2} if causal else {})
    return kept | {"logarithms of the sums": 4 * batch_size * seq_len}


def attention_peak_bytes(batch_size: int, seq_len: int, d_head: int, causal: bool) -> dict[str, int]:
    """Return the bytes, by part, at the peak of naive attention in fp32, for at least d_head tokens.

    The backward pass then has the gradients of weights and scores, and has not yet freed what it reads."""
    each, scores = 4 * batch_size * seq_len * d_head, 4 * batch_size * seq_len**2
    kept = attention_kept_bytes("naive", batch_size, seq_len, d_head, causal)
    return kept | {"gradient of V": each, "gradient of the weights": scores, "gradient of the scores": scores}


def attention_saved_bytes(
    variant: str, num_heads: int, seq_len: int, d_head: int, causal: bool, precision: str
) -> int:  # fmt: skip
    """Return the bytes of the tensors that attention with native inputs saves for its backward pass.

    These are Q, K and V, and what the variant adds: the weights and the mask, T^2 each; or the output and a logarithm
    in fp32 for each query. The latter makes T (4 D + 1) numbers a head."""
    each = width(precision) * num_heads * seq_len * d_head
    if variant in FORMULA:
        return 3 * each + width(precision) * num_heads * seq_len**2 + causal * seq_len**2
    return 4 * each + 4 * num_heads * seq_len
