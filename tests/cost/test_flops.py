"""The arithmetic of costs agrees with what PyTorch counts, saves and allocates."""

import pytest
from torch.utils.flop_counter import FlopCounterMode

from lib import model
from lib.cost import flops as cost
from shapes import SHAPES, build

pytestmark = pytest.mark.usefixtures("one_thread", "former_precision")

# few and many layers and words, a single token, an odd length
EXACT = [
    SHAPES["wide"],
    SHAPES["deep"],
    cost.Shape(d_model=16, d_ff=40, num_layers=1, num_heads=2, vocab_size=7, batch_size=1, context_length=1),
    cost.Shape(d_model=48, d_ff=20, num_layers=5, num_heads=3, vocab_size=50, batch_size=3, context_length=33),
]


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("attend", ["naive", "sdpa"])
@pytest.mark.parametrize("shape", EXACT, ids=str)
def test_flops_of_both_passes_are_those_counted(shape, attend):
    # a CPU's own kernel of attention is none that the counter knows: it counts nothing there
    layers = shape.num_layers * cost.attention_flops(shape.batch_size, shape.context_length, shape.d_model)
    uncounted = layers if attend == "sdpa" else 0
    network, inputs, targets = build(shape, attend)
    losses = []
    assert flops(lambda: losses.append(model.loss(network(inputs), targets))) + uncounted == cost.forward_flops(shape)
    assert flops(lambda: losses[0].backward()) + 2 * uncounted == cost.backward_flops(shape)


def test_causal_flops_of_attention_are_those_of_the_pairs_that_a_query_may_see():
    seen = sum(key <= query for query in range(40) for key in range(40))
    assert cost.attention_flops(5, 40, 8, causal=True) == 5 * seen * 2 * (2 * 8)


def nbytes(*tensors):
    return sum(x.nbytes for x in tensors)


def traffic(shape):
    """Bytes of the tensors into and out of each part of a naive training step, by phase, found by hooks."""
    network, inputs, targets = build(shape)
    x, dx = {}, {}  # of each call of a module: its input and output, and their gradients
    for module in network.modules():
        module.register_forward_hook(lambda m, i, o: x.setdefault(m, []).append((i[0], o)))
    for module in (*network.layers.modules(), network.ln_final):
        module.register_full_backward_hook(lambda m, i, o: dx.setdefault(m, []).append((i[0], o[0])))
    logits = network(inputs)
    logits.retain_grad()
    loss = model.loss(logits, targets)
    loss.backward()
    scores = 4 * shape.num_layers * shape.batch_size * shape.num_heads * shape.context_length**2
    norms = [m for m in network.modules() if isinstance(m, model.RMSNorm)]
    rope, embedding = network.layers[0].attn.rope, network.token_embeddings
    tables, rows = nbytes(rope.cos_TP, rope.sin_TP), x[embedding][0][1]
    forward = {
        "embedding": nbytes(inputs, rows, rows),  # as many rows of the table as come out
        "norms": sum(nbytes(*x[m][0], m.weight) for m in norms),
        "rope": sum(nbytes(*call) + tables for call in x[rope]),
        "softmax": 2 * scores,  # scores and weights
        "gate": 0,
        "residuals": 0,
        "loss": nbytes(logits, targets, loss),
    }
    backward = {
        "embedding": nbytes(inputs, rows, embedding.weight.grad),
        "norms": sum(nbytes(x[m][0][0], *dx[m][0], m.weight, m.weight.grad) for m in norms),
        "rope": sum(nbytes(*call) + tables for call in dx[rope]),
        "softmax": 3 * scores,  # the weights, and both gradients
        "gate": 0,
        "residuals": 0,
        "loss": nbytes(logits, targets, loss, logits.grad),
    }
    for block in network.layers:
        ffn = block.ffn
        up, gate = x[ffn.w1][0][1], x[ffn.w3][0][1]
        forward["gate"] += nbytes(up, gate, x[ffn.w2][0][0])
        backward["gate"] += nbytes(up, gate, dx[ffn.w2][0][0], dx[ffn.w1][0][1], dx[ffn.w3][0][1])
        (start, end), middle = x[block][0], x[block.ln2][0][0]
        forward["residuals"] += nbytes(start, x[block.attn][0][1], middle, middle, x[ffn][0][1], end)
        (dstart, dend), dmiddle = dx[block][0], dx[block.attn][0][1]
        backward["residuals"] += nbytes(dend, dx[block.ln2][0][0], dmiddle, dmiddle, dx[block.ln1][0][0], dstart)
    return {part: (forward[part], backward[part]) for part in forward}


@pytest.mark.parametrize("shape", EXACT, ids=str)
def test_bytes_outside_products_are_those_of_the_tensors_into_and_out_of_each_part(shape):
    assert cost.bytes_outside_products(shape, "fp32", "naive") == traffic(shape)


def test_attention_in_tiles_moves_no_scores_and_narrow_products_halve_what_is_theirs():
    full = cost.bytes_outside_products(SHAPES["wide"], "fp32", "naive")
    narrow = cost.bytes_outside_products(SHAPES["wide"], "bf16", "naive")
    assert cost.bytes_outside_products(SHAPES["wide"], "fp32", "sdpa") == full | {"softmax": (0, 0)}
    for phase in (0, 1):
        for part in ("gate", "softmax"):
            assert 2 * narrow[part][phase] == full[part][phase]
        assert narrow["embedding"][phase] == full["embedding"][phase]
