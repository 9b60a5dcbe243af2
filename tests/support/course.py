"""Bind the names of the course's `tests/adapters.py`, of 2025 and of 2026, to what is built here.

Copied over that file in a checkout of the assignment, it lets the course's own tests run on this repository:
`PYTHONPATH=<this repository> python -m pytest tests`. Triton's need a GPU.

One of 2026, `test_fsdp_correctness[fp32]`, asks for the bits of one backward pass over the whole batch. Two halves of a
batch add up in another order, so that plain gradients of the halves differ from it by a rounding, too.
"""

from torch import nn

from lib.flash import FlashAttentionTorch, FlashAttentionTriton
from lib.parallel import ddp
from lib.parallel.fsdp import FullySharded
from lib.parallel.sharded import ShardedOptimizer


def get_flashattention_autograd_function_pytorch() -> type:
    return FlashAttentionTorch


def get_flashattention_autograd_function_triton() -> type:
    return FlashAttentionTriton


def get_ddp_individual_parameters(module: nn.Module) -> nn.Module:
    return ddp.DistributedDataParallel(module, "overlap")


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float | None) -> nn.Module:
    # without a size there is one bucket, which cannot start before the backward pass ends
    if bucket_size_mb is None:
        return ddp.DistributedDataParallel(module, "flat")
    return ddp.DistributedDataParallel(module, "bucketed", bucket_size_mb)


def get_fsdp(module: nn.Module, compute_dtype=None) -> nn.Module:
    return FullySharded(module, compute_dtype)


def get_sharded_optimizer(params, optimizer_cls: type, **kwargs) -> ShardedOptimizer:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def ddp_on_after_backward(ddp_model: nn.Module, optimizer) -> None:
    ddp_model.finish_gradient_synchronization()


def fsdp_on_after_backward(fsdp_model: nn.Module, optimizer) -> None:
    fsdp_model.finish_gradient_synchronization()


def ddp_bucketed_on_train_batch_start(ddp_model: nn.Module, optimizer) -> None:
    """Do nothing: a forward pass begins a step."""


def fsdp_gather_full_params(fsdp_model: FullySharded) -> dict:
    return fsdp_model.gather_full_parameters()


# 2026 has one name for what 2025 has two
get_ddp = get_ddp_individual_parameters
ddp_individual_parameters_on_after_backward = ddp_bucketed_on_after_backward = ddp_on_after_backward
