"""Switch the process to a precision: fp32, tf32, bf16_products, bf16 or fp16."""

import contextlib

import torch

from lib import validate

# the type of autocast, if any
AUTOCAST = {"fp32": None, "tf32": None, "bf16_products": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = tuple(AUTOCAST)
# the modes of fp32 products, each of one kind of device; the others are strict
PRODUCTS = {"tf32": ("cuda", "high"), "bf16_products": ("cpu", "medium")}
# the largest relative error by norms, against the reference, that counts as rounding. It is at least three times that
# of any case. `lib.experiments.step` has a larger one for fp16.
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16_products": 5e-2, "bf16": 5e-2, "fp16": 1e-2}


def activate(name: str, device: str) -> torch.autocast:
    """Set the precision of matrix products, and return autocast for the forward pass.

    The backward pass follows the dtypes of the forward pass.

    - `fp32` is strict: TF32 is off.
    - `tf32`, on CUDA, keeps values in fp32 and rounds the factors of matrix products to 10 bits of mantissa.
    - `bf16_products`, on a CPU, keeps values in fp32 too, and lets oneDNN round the factors to bf16. Processors with
      AMX do so; those without it may keep fp32. The error in a record tells which.
    - `bf16` and `fp16` are autocast, without loss scaling; parameters, norms and loss stay in fp32.

    Raises ValueError for an unknown name, and for tf32 or bf16_products on another kind of device;
    `lib.instruments.device` tells what a device lacks."""
    validate.choice("precision", name, NAMES)
    kind, mode = PRODUCTS.get(name, (device, "highest"))
    if device != kind:
        nearest = {"cuda": "tf32", "cpu": "bf16_products"}.get(device, "fp32")
        raise ValueError(f"precision: got {name} on {device}, expected {kind} (nearest: {nearest})")
    torch.set_float32_matmul_precision(mode)
    dtype = AUTOCAST[name]
    return torch.autocast(device, dtype=dtype, enabled=dtype is not None)


@contextlib.contextmanager
def strict():
    """Compute strict fp32 products inside, whatever `activate` has set.

    An active autocast goes on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
