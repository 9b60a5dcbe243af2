"""Compute what several devices need: memory, and batches that products bind.

Products bind where they take at least as long as the transfers beside them. The batches are those of Austin et al.
(2025), "How to Scale Your Model", part 5. In the formulas:

- C is FLOPs a second, and W a link's bytes a second;
- B is tokens, D d_model, and F d_ff;
- n is ranks, X those of FSDP, and Y those of tensor parallelism;
- M is the number of mesh axes that a kind of parallelism uses, each with its own links.

>>> data_parallel_tokens(flops=1e15, bandwidth=4e11)
2500.0
"""

import math

from lib.cost.flops import Shape


def state_bytes(scheme: str, shape: Shape, world: int) -> dict[str, float]:
    """Return the bytes of a rank's parameters, gradients and moments after a step.

    All are in fp32. With the scheme `replicas` a rank holds all of them. With `sharded` it holds its part of the
    moments, and all of the others (ZeRO stage 1). With `fsdp` it holds the norms, and its part of everything else
    (stage 3). See Rajbhandari et al. 2020, section 5."""
    number_bytes = {"parameters": 4, "gradients": 4, "states": 8}
    held = {name: float(size * shape.parameters) for name, size in number_bytes.items()}
    if scheme == "sharded":
        held["states"] /= world
    if scheme == "fsdp":
        divided = shape.parameters - shape.norm_parameters
        for name, size in number_bytes.items():
            held[name] = size * (shape.norm_parameters + divided / world)
    return held


def data_parallel_tokens(flops: float, bandwidth: float, axes: int = 1) -> float:
    """Return the tokens per device above which products bind data parallelism.

    That is C / (M W). It holds for many ranks in bf16. Products take 8 B D F / (n C) backward, and the all-reduce of
    the gradients of both matrices 8 D F / (M W). FSDP has the same bound: backward it sends as much, and forward it has
    half the products and half the bytes."""
    return flops / (axes * bandwidth)


def tensor_ranks(d_ff: int, flops: float, bandwidth: float, axes: int = 1) -> float:
    """Return the ranks up to which products bind tensor parallelism: F M W / C.

    In bf16, products take 4 B D F / (n C), and gathering the input and scattering the output 4 B D / (M W)."""
    return d_ff * axes * bandwidth / flops


def mixed_tokens(
    d_ff: int, flops: float, bandwidth: float, tensor_world: int, axes: tuple[int, int] = (1, 1), overlap: bool = True
) -> float:
    """Return the tokens per device above which products bind a mixed mesh.

    The mesh combines FSDP over X with tensor parallelism over Y; `axes` are M_X and M_Y. FSDP gathers a Y-th of the
    weights, so it needs C / (Y M_X W) tokens. Y is below `tensor_ranks`, so activations travel in less time than
    products take. With `overlap` they travel at the same time as weights, and only the weights' time counts. Without
    it, the two times add up."""
    for_weights = data_parallel_tokens(flops, bandwidth, axes[0]) / tensor_world
    if overlap:
        return for_weights
    # the part of the products' time in which activations travel
    share = tensor_world / tensor_ranks(d_ff, flops, bandwidth, axes[1])
    return for_weights / (1 - share)


def most_mixed_ranks(
    tokens: float, d_ff: int, flops: float, bandwidth: float, overlap: bool = True
) -> tuple[float, float]:
    """Return the mesh of the most devices that products still bind.

    It has X ranks of FSDP and Y of tensor parallelism.

    For B tokens in all and a gated feed-forward block, whose three matrices have 6 B D F / (X Y C) of products.
    - FSDP gathers 6 D F / Y bytes, of which X - 1 parts of X travel: (X - 1) / a of the products' time, a = B W / C.
    - Tensor parallelism moves 4 B D / X bytes, Y - 1 parts of Y: (Y - 1) / b of it, b = 3 F W / (2 C).
    - With `overlap` neither may exceed one: X = 1 + a, Y = 1 + b.
    - Without, their sum may not, and the product X Y is largest where both take half: X = (a + b + a b) / (2 b) and
      Y = (a + b + a b) / (2 a)."""
    a = tokens * bandwidth / flops
    b = 3 * d_ff * bandwidth / (2 * flops)
    if overlap:
        return 1 + a, 1 + b
    return (a + b + a * b) / (2 * b), (a + b + a * b) / (2 * a)


class XXL:
    """Hold the feed-forward blocks of CS336 2025, assignment 2, section 2.4."""

    d_model = 16384
    d_ff = 53248
    blocks = 126
    parameters = 2 * blocks * d_model * d_ff  # two matrices a block
    state_bytes = 16 * parameters  # all states: fp32 master weights, gradients and AdamW's moments
    token_bytes = 2 * blocks * (d_model + d_ff)  # what a token keeps: the inputs of both products in bf16

    @classmethod
    def least_world(cls, tokens: float, device_bytes: float) -> float:
        """Return the fewest devices that hold the states and `tokens` each.

        It is infinite if no number does. A device holds states / n + half + half / n, where half is one half of the
        activations of `tokens`, as the assignment counts them."""
        half_bytes = cls.token_bytes * tokens / 2
        if half_bytes >= device_bytes:
            return math.inf
        # states / n + half / n + half is at most the memory of a device
        return math.ceil((cls.state_bytes + half_bytes) / (device_bytes - half_bytes))


TPU_V5P = {"flops": 4.6e14, "bandwidth": 2 * 9e10}  # the assignment's, from Austin et al. (2025)
MESH, MESH_AXES = (16, 4), (2, 1)  # the assignment's X and Y, M_X and M_Y
H100_BYTES, TPU_BYTES = 80 * 2**30, 95 * 2**30
