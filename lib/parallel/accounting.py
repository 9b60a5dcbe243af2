"""Compute what training on several devices costs: messages, bytes, memory, batches.

A ring passes S / n bytes of a message of S bytes to the next of n ranks in every step. Gathering or reduce-scattering
takes n - 1 steps, and all-reducing both (Patarasuk and Yuan 2009). Bandwidths are those of NVIDIA's nccl-tests
(doc/PERFORMANCE.md): that of the algorithm is S over the time, that of the bus counts the bytes that a rank must send.
The batches are those of Austin et al. (2025), "How to Scale Your Model", part 5: M is the number of mesh axes, each
with its own links, that a kind of parallelism uses.

>>> bus_bytes("all_reduce", message_bytes=1e9, world=8)
1750000000.0
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lib.cost.flops import Shape, width

PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "broadcast": 1}  # of a message round the ring
SCHEMES = ("naive", "flat", "overlap", "bucketed", "sharded", "fsdp")
BUCKET_BYTES = 25 * 2**20  # of torch's own DistributedDataParallel


@dataclass(frozen=True)
class Network:
    """Hold the latency of a ring's step in seconds, and the bytes per second that a rank sends."""

    latency_s: float
    bandwidth: float

    def seconds(self, operation: str, message_bytes: float, world: int) -> float:
        """Return the time of a collective."""
        return self.overhead_s(operation, world) + bus_bytes(operation, message_bytes, world) / self.bandwidth

    def overhead_s(self, operation: str, world: int) -> float:
        """Return the part of a collective's time that its bytes do not change, the latency of all steps."""
        return PASSES[operation] * (world - 1) * self.latency_s


def network(operation: str, world: int, overhead_s: float, bandwidth: float) -> Network:
    """Return the network on which a collective has this overhead and algorithm bandwidth."""
    return Network(overhead_s / (PASSES[operation] * (world - 1)), bandwidth * bus_bytes(operation, 1, world))


def bus_bytes(operation: str, message_bytes: float, world: int) -> float:
    """Return the bytes that each rank sends in a ring.

    The message is what a rank starts or ends with in full."""
    return PASSES[operation] * (world - 1) / world * message_bytes


class Messages(NamedTuple):
    """Hold collectives of about equal size: operation, bytes of all, number, and the phase that can hide them."""

    operation: str
    bytes: float
    calls: int
    beside: str = ""

    def seconds(self, network: Network, world: int) -> float:
        """Return the time of all of them, one after the other."""
        if world == 1:
            return 0.0
        return self.calls * network.seconds(self.operation, self.bytes / self.calls, world)


def step_messages(
    scheme: str, shape: Shape, precision: str = "fp32", bucket_bytes: float = BUCKET_BYTES
) -> list[Messages]:
    """List the collectives of one step, each with the phase that they overlap.

    Data parallelism all-reduces fp32 gradients: one tensor each after the backward pass (naive), all of them at once
    (flat), or beside it by tensor (overlap) or bucket. A sharded optimizer adds a broadcast of each tensor that a rank
    has updated. FSDP gathers matrices before both passes, in the precision of products, and scatters their gradients;
    the embedding's backward pass needs no weights (Rajbhandari et al. 2020, section 7). Norms are all-reduced."""
    gradient_bytes = 4 * shape.parameters
    norms = 2 * shape.num_layers + 1
    matrices = 7 * shape.num_layers + 2  # four of attention and three of SwiGLU in a layer, the embedding and the head
    if scheme == "fsdp":
        embedding_bytes = width(precision) * shape.vocab_size * shape.d_model
        matrix_bytes = width(precision) * shape.matrix_parameters + embedding_bytes
        return [
            Messages("all_gather", matrix_bytes, matrices, "forward"),
            Messages("all_gather", matrix_bytes - embedding_bytes, matrices - 1, "backward"),
            Messages("reduce_scatter", matrix_bytes, matrices, "backward"),
            Messages("all_reduce", 4 * norms * shape.d_model, norms, "backward"),
        ]
    tensors = matrices + norms
    if scheme == "naive":
        return [Messages("all_reduce", gradient_bytes, tensors)]
    if scheme == "flat":
        return [Messages("all_reduce", gradient_bytes, 1)]
    if scheme == "overlap":
        return [Messages("all_reduce", gradient_bytes, tensors, "backward")]
    messages = [Messages("all_reduce", gradient_bytes, math.ceil(gradient_bytes / bucket_bytes), "backward")]
    if scheme == "sharded":
        messages.append(Messages("broadcast", gradient_bytes, tensors))
    return messages


def step_bytes(scheme: str, shape: Shape, world: int, precision: str = "fp32") -> float:
    """Return the bytes that a rank sends in a step."""
    messages = step_messages(scheme, shape, precision)
    return sum(bus_bytes(message.operation, message.bytes, world) for message in messages)


def exposed_s(messages: Sequence[Messages], network: Network, world: int, phases_s: Mapping[str, float]) -> float:
    """Return the time that the collectives of a step add to its phases, of these lengths.

    Beside a phase they are evenly spaced: each begins when its part of the phase is done and the one before has ended.
    So what is left at the end is the last, or all of them less the rest of the phase. With a phase as long as the bytes
    take, this is the assignment's s / (n w) + n o. A gather before its part of a phase is its mirror image."""
    exposed = 0.0
    for phase in dict.fromkeys(message.beside for message in messages):
        beside = [message for message in messages if message.beside == phase]
        whole_s = sum(message.seconds(network, world) for message in beside)
        if phase:
            parts = beside[0].calls
            hidden_s = phases_s[phase] * (parts - 1) / parts
            exposed += max(whole_s / parts, whole_s - hidden_s)
        else:
            exposed += whole_s
    return exposed


def optimal_bucket_bytes(gradient_bytes: float, bandwidth: float, call_s: float) -> float:
    """Return the bucket b that adds least to a backward pass as long as the bytes take: sqrt(s w o).

    The last bucket and the overhead of all calls are left, b / w + s o / b. Its derivative, 1 / w - s o / b^2, is zero
    there."""
    return math.sqrt(gradient_bytes * bandwidth * call_s)


def state_bytes(scheme: str, shape: Shape, world: int) -> dict[str, float]:
    """Return the bytes of parameters, gradients and AdamW's moments that a rank holds after a step, in fp32.

    Plain and data parallel ranks hold all of them, a sharded optimizer its part of the moments (ZeRO stage 1), FSDP its
    part of everything (stage 3; Rajbhandari et al. 2020, section 5) but norms."""
    whole = {"parameters": 4 * shape.parameters, "gradients": 4 * shape.parameters, "states": 8 * shape.parameters}
    held = {name: float(size) for name, size in whole.items()}
    if scheme == "sharded":
        held["states"] /= world
    if scheme == "fsdp":
        norms = (2 * shape.num_layers + 1) * shape.d_model
        replicated = norms / shape.parameters
        for name, size in whole.items():
            held[name] = size * (replicated + (1 - replicated) / world)
    return held


def gathered_bytes(shape: Shape, precision: str = "fp32") -> float:
    """Return the bytes of gathered weights that FSDP holds at most: a layer, and another or the embedding."""
    layer = shape.layer_matrices + 2 * shape.d_model
    return float(width(precision) * (layer + max(layer, shape.vocab_size * shape.d_model)))


def data_parallel_tokens(
    flops: float, bandwidth: float, axes: int = 1, world: float = math.inf, precision: str = "bf16"
) -> float:
    """Return the tokens a device from which on data parallelism is bound by products.

    They are C / (M W) for many ranks in bf16. Products take 8 B D F / n C backward, and the all-reduce of the gradients
    of both matrices 8 D F / M W, less one step in n. FSDP has the same bound: half the products, half the bytes."""
    return width(precision) / 2 * flops / (axes * bandwidth) * (1 - 1 / world)


def tensor_ranks(d_ff: int, flops: float, bandwidth: float, axes: int = 1) -> float:
    """Return the ranks up to which tensor parallelism is bound by products, whatever the batch: F M W / C.

    Products take 4 B D F / n C, gathering the input and scattering the output 4 B D / M W, in bf16."""
    return d_ff * axes * bandwidth / flops


def mixed_tokens(
    d_ff: int, flops: float, bandwidth: float, tensor_world: int, axes: tuple[int, int] = (1, 1), overlap: bool = True
) -> float:
    """Return the tokens a device from which on FSDP with tensor parallelism is bound by products.

    Beside tensor parallelism over Y, FSDP over X gathers a Y-th of the weights, so it needs C / (Y M_X W). `axes` are
    M_X and M_Y. If activations travel at the same time as weights (`overlap`), nothing else counts while Y is at most
    `tensor_ranks`; if not, the two times add up. Infinite where no batch is enough."""
    for_weights = data_parallel_tokens(flops, bandwidth, axes[0]) / tensor_world
    # the part of the products' time in which activations travel
    share = tensor_world / tensor_ranks(d_ff, flops, bandwidth, axes[1])
    if overlap:
        return for_weights if share <= 1 else math.inf
    return for_weights / (1 - share) if share < 1 else math.inf


def best_mesh_tokens(d_ff: int, flops: float, bandwidth: float, axes: tuple[int, int] = (1, 1)) -> float:
    """Return the least tokens a device of any X and Y whose two times add up: 4 (C / W)^2 / (M_X M_Y F)."""
    return 4 * (flops / bandwidth) ** 2 / (axes[0] * axes[1] * d_ff)


@dataclass(frozen=True)
class FeedForward:
    """Hold a model of feed-forward blocks of two matrices each, as in the assignment's accounting."""

    d_model: int
    d_ff: int
    blocks: int

    @property
    def parameters(self) -> int:
        """Count the parameters of all blocks."""
        return 2 * self.blocks * self.d_model * self.d_ff

    @property
    def state_bytes(self) -> int:
        """Return the bytes of master weights, accumulated gradients and AdamW's moments, all in fp32."""
        return 16 * self.parameters

    @property
    def token_bytes(self) -> int:
        """Return the bytes that a token keeps for the backward pass: the inputs of both products in bf16."""
        return 2 * self.blocks * (self.d_model + self.d_ff)

    def sharded_bytes(self, tokens: float, world: int) -> float:
        """Return a device's bytes for its tokens, with the states and half of the activations sharded."""
        activation_bytes = self.token_bytes * tokens
        return (self.state_bytes + activation_bytes / 2) / world + activation_bytes / 2

    def least_world(self, tokens: float, device_bytes: float) -> int | None:
        """Return the fewest devices of that memory that hold it; None where half the activations do not fit."""
        half_bytes = self.token_bytes * tokens / 2
        if half_bytes >= device_bytes:
            return None
        return math.floor((self.state_bytes + half_bytes) / (device_bytes - half_bytes)) + 1


XXL = FeedForward(d_model=16384, d_ff=53248, blocks=126)  # CS336 2025, assignment 2, section 2.4
TPU_V5P: Mapping[str, float] = {"flops": 4.6e14, "bandwidth": 2 * 9e10}  # the assignment's, from Austin et al. (2025)
MESH, MESH_AXES = (16, 4), (2, 1)  # the assignment's X and Y, M_X and M_Y
H100_BYTES, TPU_BYTES = 80 * 2**30, 95 * 2**30
