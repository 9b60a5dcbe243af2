"""Show what the rounding of narrow types does to a long sum and to a norm."""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

TERM = 0.01  # as in the assignment
TERMS = 1000
EPS = 1e-5
ROWS = 64  # rows of a norm's input
WIDTH = 768
SCALES = tuple(10.0**power for power in range(-6, 7))
NORMS = ("layer_norm", "rms_norm")


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype as the report does."""
    short_names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    return short_names.get(dtype, str(dtype).removeprefix("torch."))


def partial_sums(sum_dtype: torch.dtype, term_dtype: torch.dtype, convert: bool, device: str) -> list[float]:
    """Return the device's sum after each of a thousand in-place additions of 0.01."""
    s = torch.tensor(0, dtype=sum_dtype, device=device)
    sums = []
    for _ in range(TERMS):
        x = torch.tensor(TERM, dtype=term_dtype, device=device)
        if convert:
            x = x.to(torch.float32)
        s += x
        sums.append(s.item())
    return sums


def accumulation(narrow: torch.dtype, device: str) -> dict[str, dict[str, list]]:
    """Return `loops`, a table of the assignment's loops.

    `sum_error` has two parts: `stored_error`, a thousand times the error of 0.01 in the term's dtype, and
    `added_error`, that of the additions. `stalls_after` counts the terms until the sum stalls, all of them if it never
    does."""
    wide = torch.float32
    name = dtype_name(narrow)
    # the dtypes of the sum and of the term; True if the term is converted to fp32 before the addition
    loops = {
        "fp32 += fp32": (wide, wide, False),
        f"{name} += {name}": (narrow, narrow, False),
        f"fp32 += {name}": (wide, narrow, False),
        f"fp32 += {name} as fp32": (wide, narrow, True),
    }
    rows = []
    for loop, (sum_dtype, term_dtype, convert) in loops.items():
        sums = partial_sums(sum_dtype, term_dtype, convert, device)
        last = sums[-1]
        stored_term = torch.tensor(TERM, dtype=term_dtype).item()
        rows.append({
            "loop": loop,
            "sum": last,
            "sum_error": last - TERM * TERMS,
            "stored_error": (stored_term - TERM) * TERMS,
            "added_error": last - stored_term * TERMS,
            "stalls_after": sums.index(last) + 1,
        })  # fmt: skip
    return {"loops": pd.DataFrame(rows).to_dict("list")}


def steps(norm: str, x: Tensor, cast: Callable = lambda name, tensor: tensor) -> dict[str, Tensor]:
    """Return every step of a norm, from `input` to `quotient`, rounded by `cast`.

    - Layer norm: (x - mean) / sqrt(variance + eps) (Ba et al. 2016).
    - RMSNorm: x / sqrt(mean of squares + eps) (Zhang and Sennrich 2019)."""
    results = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        results[name] = cast(name, tensor)
        return results[name]

    x = keep("input", x)
    moment = "mean of squares"
    if norm == "layer_norm":
        mean = keep("mean", x.mean(-1, keepdim=True))
        x = keep("difference", x - mean)
        # the mean square of x - mean
        moment = "variance"
    squares = keep("square", x.square())
    mean_square = keep(moment, squares.mean(-1, keepdim=True))
    with_eps = keep("sum with eps", mean_square + EPS)
    root = keep("root", torch.sqrt(with_eps))
    keep("quotient", x / root)
    return results


def sensitivity(norm: str, narrow: torch.dtype, device: str) -> dict[str, dict[str, list]]:
    """Return three tables of a norm's errors, relative to double precision.

    - `norm_errors`: the error, if finite, of the norm computed in the narrow dtype throughout. Inputs are normal, with
      the standard deviation `scale`.
    - `norm_limits`: the first `step` with a `failure`, if any.
    - `step_errors`: the error at scale one if only the result of one `step` is rounded to the narrow dtype."""
    norm_errors = pd.DataFrame(columns=["scale", "relative_error"])
    norm_limits = pd.DataFrame(columns=["scale", "step", "failure"])
    step_errors = pd.DataFrame(columns=["step", "relative_error"])
    # equal inputs on every machine
    normal = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for scale in SCALES:
        x = scale * normal
        exact = steps(norm, x)
        # by way of fp32, since not every device has double precision
        rounded = steps(norm, x.float().to(device), lambda name, tensor: tensor.to(narrow))
        if torch.isfinite(rounded["quotient"]).all():
            norm_errors.loc[len(norm_errors)] = scale, relative_error(rounded["quotient"], exact["quotient"])
        for step, result in rounded.items():
            reason = failure(result)
            if reason:
                norm_limits.loc[len(norm_limits)] = scale, step, reason
                break
    exact = steps(norm, normal)
    # each step rounded alone; the steps after it go on exactly from its rounded result
    for step in exact:

        def round_one(name: str, tensor: Tensor, step=step) -> Tensor:
            return tensor.to(narrow).double() if name == step else tensor

        rounded = steps(norm, normal, round_one)
        step_errors.loc[len(step_errors)] = step, relative_error(rounded["quotient"], exact["quotient"])
    tables = {"norm_errors": norm_errors, "norm_limits": norm_limits, "step_errors": step_errors}
    return {name: table.to_dict("list") for name, table in tables.items()}


def failure(rounded: Tensor) -> str:
    """Return `overflows` if a value is not finite, `underflows` if half are 0, or ""."""
    if not torch.isfinite(rounded).all():
        return "overflows"
    # no exact result is zero
    if 2 * (rounded == 0).sum() >= rounded.numel():
        return "underflows"
    return ""


def relative_error(rounded: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference, relative to that of the exact result."""
    return ((rounded.cpu().double() - exact).norm() / exact.norm()).item()
