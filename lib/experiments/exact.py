"""Copy what a check compares to the CPU: in double precision, or a few rows."""

import torch
from torch import Tensor

CHECKED = 64  # rows of a large result that are compared


def double(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU in double precision, which not every device has."""
    return tensor.detach().cpu().to(torch.float64, copy=True)


def checked(matrix: Tensor) -> Tensor:
    """Copy at most CHECKED rows of a matrix, evenly spaced, to the CPU."""
    return matrix.detach()[:: -(-len(matrix) // CHECKED)].to("cpu", copy=True)
