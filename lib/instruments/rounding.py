"""Show what the rounding of narrow types does to a long sum and to a norm, step by step."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

TERM, TERMS = 0.01, 1000  # as in the assignment
EVERY = 10  # the trace keeps each tenth partial sum
EPS = 1e-5
ROWS, WIDTH = 64, 768
SCALES = tuple(10.0**power for power in range(-6, 7))
OFFSETS = (1.0, 10.0, 100.0, 1000.0)  # of the mean, in standard deviations
Keep = Callable[[str, Tensor], Tensor]


def loops(narrow: torch.dtype) -> dict[str, tuple[torch.dtype, torch.dtype, bool]]:
    """Return the four loops of the assignment by name.

    Each has the dtype of the sum, that of the term, and True if the term is converted to fp32 before the addition."""
    wide, name = torch.float32, dtype_name(narrow)
    return {
        "fp32 += fp32": (wide, wide, False),
        f"{name} += {name}": (narrow, narrow, False),
        f"fp32 += {name}": (wide, narrow, False),
        f"fp32 += {name} as fp32": (wide, narrow, True),
    }


def partial_sums(total: torch.dtype, term: torch.dtype, convert: bool, device: str) -> list[float]:
    """Return the device's sum after each of a thousand in-place additions of 0.01."""
    s, sums = torch.tensor(0, dtype=total, device=device), []
    for _ in range(TERMS):
        x = torch.tensor(TERM, dtype=term, device=device)
        s += x.to(torch.float32) if convert else x
        sums.append(s.item())
    return sums


def accumulation(narrow: torch.dtype, device: str) -> dict[str, dict[str, list]]:
    """Return two tables: `loops`, a row for each loop, and `trace`, one for each tenth term.

    `sum_error` has two parts: `stored_error`, a thousand times the error of 0.01 in the term's dtype, and
    `added_error`, lost by the additions. `spacing` is the distance of the sum to the next number of its dtype. A
    rounding can lose half of it, `half_percent` of the term. `stalls_after` counts the terms until the sum stalls."""
    table, trace = {}, {}
    for loop, (total, term, convert) in loops(narrow).items():
        sums = partial_sums(total, term, convert, device)
        stored = torch.tensor(TERM, dtype=term).item()
        row = {
            "loop": loop, "sum": sums[-1],
            "sum_error": sums[-1] - TERM * TERMS, "stored_error": (stored - TERM) * TERMS,
            "added_error": sums[-1] - stored * TERMS, "spacing": spacing(sums[-1], total),
            "half_percent": 50 * spacing(sums[-1], total) / TERM,
            "stalls_after": sums.index(sums[-1]) + 1,
        }  # fmt: skip
        _append(table, row)
        for count in range(EVERY, TERMS + 1, EVERY):
            half = 50 * spacing(sums[count - 1], total) / TERM
            _append(trace, {"loop": loop, "terms": count, "sum": sums[count - 1], "half_percent": half})
    return {"loops": table, "trace": trace}


def spacing(value: float, dtype: torch.dtype) -> float:
    """Return the distance from a positive value to the next larger one of the dtype."""
    return torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(value))


def layer_norm(x: Tensor, keep: Keep) -> Tensor:
    """Compute (x - mean) / sqrt(variance + eps) over the last dimension (Ba et al. 2016)."""
    mean = keep("mean", x.mean(-1, keepdim=True))
    return _scaled(keep("difference", x - mean), "variance", keep)


def rms_norm(x: Tensor, keep: Keep) -> Tensor:
    """Compute x / sqrt(mean of squares + eps) likewise (Zhang and Sennrich 2019)."""
    return _scaled(x, "mean of squares", keep)


def _scaled(x: Tensor, moment: str, keep: Keep) -> Tensor:
    mean = keep(moment, keep("square", x.square()).mean(-1, keepdim=True))
    root = keep("root", torch.sqrt(keep("sum with eps", mean + EPS)))
    return keep("quotient", x / root)


NORMS = {"layer_norm": layer_norm, "rms_norm": rms_norm}
KERNELS = {"layer_norm": torch.nn.functional.layer_norm, "rms_norm": torch.nn.functional.rms_norm}


def steps(norm: str, x: Tensor, cast: Keep) -> dict[str, Tensor]:
    """Return every step of a norm, rounded by `cast`, from `input` to the result, `quotient`."""
    kept = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        kept[name] = cast(name, tensor)
        return kept[name]

    NORMS[norm](keep("input", x), keep)
    return kept


def sensitivity(norm: str, narrow: torch.dtype, device: str) -> dict[str, dict[str, list]]:
    """Return four tables of a norm's errors, relative to the same norm in double precision.

    `norm_errors`: the error, if finite, of the norm computed in the narrow dtype throughout, by `scale` and `offset` of
    its normal inputs (the mean, in standard deviations). `norm_limits`: the first `step` with a `failure`, if any.
    `step_errors`: the error at scale one if only the result of one `step` is rounded to the narrow dtype.
    `kernel_errors`: as `norm_errors`, of PyTorch's own function on inputs in the narrow dtype."""
    errors = {"scale": [], "offset": [], "relative_error": []}
    limits = {"scale": [], "offset": [], "step": [], "what": []}
    kernel = {name: [] for name in errors}
    alone = {"step": [], "relative_error": []}
    normal = torch.randn(ROWS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for scale, offset in [(scale, 0.0) for scale in SCALES] + [(1.0, offset) for offset in OFFSETS]:
        x = scale * (normal + offset)
        exact = steps(norm, x, lambda name, tensor: tensor)
        # by way of fp32, since not every device has double precision
        got = steps(norm, x.float().to(device), lambda name, tensor: tensor.to(narrow))
        for table, result in ((errors, got["quotient"]), (kernel, KERNELS[norm](got["input"], [WIDTH], eps=EPS))):
            if torch.isfinite(result).all():
                error = relative_error(result, exact["quotient"])
                _append(table, {"scale": scale, "offset": offset, "relative_error": error})
        failures = ((step, failure(got[step], exact[step])) for step in got)
        for step, what in [(step, what) for step, what in failures if what][:1]:
            _append(limits, {"scale": scale, "offset": offset, "step": step, "what": what})
    right = steps(norm, normal, lambda name, tensor: tensor)
    for step in right:
        rounded = steps(norm, normal, lambda name, x, step=step: x.to(narrow).double() if name == step else x)
        _append(alone, {"step": step, "relative_error": relative_error(rounded["quotient"], right["quotient"])})
    return {"norm_errors": errors, "norm_limits": limits, "step_errors": alone, "kernel_errors": kernel}


def failure(got: Tensor, exact: Tensor) -> str:
    """Return `overflows` for a value that is not finite, `underflows` if half turned 0, or ""."""
    if not torch.isfinite(got).all():
        return "overflows"
    alive = exact != 0
    return "underflows" if (got.cpu()[alive] == 0).sum() >= max(1, alive.sum() / 2) else ""


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference, relative to that of the exact result."""
    return ((got.cpu().double() - exact).norm() / exact.norm()).item()


def dtype_name(dtype: torch.dtype) -> str:
    """Name a dtype as the report does."""
    return {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, str(dtype)[6:])


def _append(table: dict[str, list], row: dict) -> None:
    for name, value in row.items():
        table.setdefault(name, []).append(value)
