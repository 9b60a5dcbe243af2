"""Compute what training on several devices costs: messages, bytes, memory, batches.

A ring passes S / n bytes of a message of S bytes to the next of n ranks in every step. Gathering or reduce-scattering
takes n - 1 steps, and all-reducing both (Patarasuk and Yuan 2009). Bandwidths are those of NVIDIA's nccl-tests
(doc/PERFORMANCE.md): that of the algorithm is S over the time, that of the bus counts the bytes that a rank must send.
The batches are those of Austin et al. (2025), "How to Scale Your Model", part 5: M is the number of mesh axes, each
with its own links, that a kind of parallelism uses.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lib.cost import memory
from lib.cost.flops import Shape, width

PASSES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}  # of a whole message round the ring
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
    """Hold collectives of equal size: operation, bytes of all, number, and the phase that can hide them."""

    operation: str
    bytes: float
    calls: int
    beside: str = ""

    def seconds(self, of: Network, world: int) -> float:
        """Return the time of all of them, one after the other."""
        return self.calls * of.seconds(self.operation, self.bytes / self.calls, world) if world > 1 else 0.0


def tensors(shape: Shape) -> int:
    """Count a model's parameters as tensors: nine a layer, the embedding, the last norm and the head."""
    return 9 * shape.num_layers + 3


def step_messages(
    scheme: str, shape: Shape, precision: str = "fp32", bucket_bytes: float = BUCKET_BYTES
) -> list[Messages]:
    """List the collectives of one step, each with the phase that they overlap.

    Data parallelism all-reduces fp32 gradients: one tensor each after the backward pass (naive), all of them at once
    (flat), or beside it by tensor (overlap) or bucket. A sharded optimizer gathers the parameters that the ranks have
    updated. FSDP gathers embedding, layers, last norm and head before both passes, in the precision of products, and
    reduce-scatters their gradients; only the embedding's backward pass needs no weights (Rajbhandari et al. 2020,
    section 7)."""
    whole, each = 4 * shape.parameters, tensors(shape)
    if scheme == "fsdp":
        narrow, units = width(precision), shape.num_layers + 3
        read = shape.parameters - shape.vocab_size * shape.d_model
        return [
            Messages("all_gather", narrow * shape.parameters, units, "forward"),
            Messages("reduce_scatter", narrow * shape.parameters, units, "backward"),
            Messages("all_gather", narrow * read, units - 1, "backward"),
        ]
    buckets = {"naive": each, "flat": 1, "overlap": each}.get(scheme) or math.ceil(whole / bucket_bytes)
    reduced = Messages("all_reduce", whole, buckets, "" if scheme in ("naive", "flat") else "backward")
    return [reduced, Messages("all_gather", whole, 1)] if scheme == "sharded" else [reduced]


def step_bytes(scheme: str, shape: Shape, world: int, precision: str = "fp32") -> float:
    """Return the bytes that a rank sends in a step."""
    return sum(bus_bytes(m.operation, m.bytes, world) for m in step_messages(scheme, shape, precision))


def exposed_s(every: Sequence[Messages], of: Network, world: int, phases_s: Mapping[str, float]) -> float:
    """Return the time that the collectives of a step add to its phases, of these lengths.

    Beside a phase they are evenly spaced: each begins when its part of the phase is done and the one before has ended.
    So what is left at the end is the last, or all of them less the rest of the phase. With a phase as long as the bytes
    take, this is the assignment's s / (n w) + n o. A gather before its part of a phase is its mirror image."""
    exposed = 0.0
    for phase in dict.fromkeys(messages.beside for messages in every):
        beside = [messages for messages in every if messages.beside == phase]
        whole_s, parts = sum(messages.seconds(of, world) for messages in beside), beside[0].calls
        exposed += max(whole_s / parts, whole_s - phases_s[phase] * (parts - 1) / parts) if phase else whole_s
    return exposed


def optimal_bucket_bytes(gradient_bytes: float, bandwidth: float, call_s: float) -> float:
    """Return the bucket b that adds least to a backward pass as long as the bytes take: sqrt(s w o).

    The last bucket and the overhead of all calls are left, b / w + s o / b. Its derivative, 1 / w - s o / b^2, is zero
    there."""
    return math.sqrt(gradient_bytes * bandwidth * call_s)


def state_bytes(scheme: str, shape: Shape, world: int) -> dict[str, float]:
    """Return the bytes of parameters, gradients and AdamW's states that a rank holds between steps.

    Plain and data parallel ranks hold all of them, a sharded optimizer its part of the states (ZeRO stage 1), FSDP its
    part of everything (stage 3; Rajbhandari et al. 2020, section 5)."""
    whole = 4 * shape.parameters
    held = {"parameters": whole, "gradients": whole, "states": memory.state_bytes(shape) - 2 * whole}
    split = {"sharded": ("states",), "fsdp": tuple(held)}.get(scheme, ())
    return {part: size / world if part in split else float(size) for part, size in held.items()}


def memory_bytes(
    scheme: str, shape: Shape, world: int, precision: str, attention: str, optimizer: str, device: str
) -> dict[str, float]:
    """Return the bytes of a rank at the peak of a training step, by part; the shape's batch is the rank's.

    Activations are what `memory.peak_bytes` has beyond the states. Buckets stay from step to step, so the backward pass
    makes its gradients beside them: at most as many bytes again, as in torch's DDP without `gradient_as_bucket_view`.
    With FSDP activations are those kept for the backward pass, beside the gathered weights of a layer and of what is
    gathered next to it, another layer or the embedding."""
    held = state_bytes(scheme, shape, world)
    if scheme != "fsdp" or world == 1:
        peak = memory.peak_bytes(shape, precision, attention, optimizer, "train_step", device)
        buckets = 4 * shape.parameters if scheme in ("flat", "bucketed", "sharded") and world > 1 else 0
        parts = {"activations": peak - memory.state_bytes(shape), "buckets": buckets, "gathered": 0}
    else:
        layer = shape.layer_matrices + 2 * shape.d_model
        gathered = width(precision) * (layer + max(layer, shape.vocab_size * shape.d_model))
        kept = memory.activation_bytes(shape, precision, attention, device)
        parts = {"activations": kept, "buckets": 0, "gathered": gathered}
    return held | {part: float(size) for part, size in parts.items()}


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
    share = tensor_world / tensor_ranks(d_ff, flops, bandwidth, axes[1])
    weights = data_parallel_tokens(flops, bandwidth, axes[0]) / tensor_world
    if share >= 1:
        return weights if overlap and share == 1 else math.inf
    return weights if overlap else weights / (1 - share)


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
        kept = self.token_bytes * tokens
        return (self.state_bytes + kept / 2) / world + kept / 2

    def least_world(self, tokens: float, device_bytes: float) -> int | None:
        """Return the fewest devices of that memory that hold it; None where half the activations do not fit."""
        whole = self.token_bytes * tokens / 2
        return math.floor((self.state_bytes + whole) / (device_bytes - whole)) + 1 if whole < device_bytes else None


XXL = FeedForward(d_model=16384, d_ff=53248, blocks=126)  # CS336 2025, assignment 2, section 2.4
TPU_V5P: Mapping[str, float] = {"flops": 4.6e14, "bandwidth": 2 * 9e10}  # the assignment's, from Austin et al. (2025)
MESH, MESH_AXES = (16, 4), (2, 1)  # the assignment's X and Y, M_X and M_Y
H100_BYTES, TPU_BYTES = 80 * 2**30, 95 * 2**30
