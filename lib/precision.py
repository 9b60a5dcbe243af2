"""What each precision's name switches on; knows nothing of models."""

import contextlib

import torch

from lib import validate

AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = tuple(AUTOCAST)


def unavailable(name: str, device: str) -> str | None:
    """Why the device cannot compute in that precision, or None if it can."""
    validate.choice("precision", name, NAMES)
    if name == "tf32" and (device != "cuda" or torch.cuda.get_device_capability() < (8, 0)):
        return "tf32 needs a CUDA device of compute capability 8.0 or more"
    return None


def activate(name: str, device: str) -> torch.autocast:
    """Set the process's matrix products to the named precision, and return the autocast context for the
    forward pass (the backward pass follows the dtypes of the forward).

    `fp32` is strict: TF32 is off. `tf32` keeps values in single precision and rounds the factors of matrix
    products to 10 bits of mantissa. `bf16` and `fp16` are autocast, with parameters, norms and loss in single
    precision, and without loss scaling. Raises ValueError for an unknown name or one the device does not have."""
    if reason := unavailable(name, device):
        raise ValueError(f"precision: {reason}")
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    return torch.autocast(device, dtype=AUTOCAST[name], enabled=AUTOCAST[name] is not None)


@contextlib.contextmanager
def strict():
    """Matrix products in full single precision inside the block, whatever `activate` has set, for a reference."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
