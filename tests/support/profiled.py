"""A profiled step whose kernels and parts take known times."""

CASE = {"size": "tiny", "context_length": 64, "precision": "fp32", "compiled": False}
PHASES = ["forward", "forward", "backward", "optimizer"]


def metrics(round, product=800.0, optimizer=2000.0, profiled=1.0, leader="aten::mm"):
    """A step of which the forward pass takes a millisecond and the backward pass two, all of it products."""
    drift = 1 + round / 1000
    totals = [drift * us for us in (product, 1000 - product, 2000.0, optimizer)]
    names, kinds = [leader, "aten::_softmax", "aten::bmm", "aten::mul_"], [
        "matrix product", "reduction", "matrix product", "optimizer",
    ]  # fmt: skip
    table = {
        "phase": PHASES, "kernel": names, "class": kinds, "calls": [2, 1, 4, 9], "total_us": totals,
        **{name: [1.0] * 4 for name in ("mean_us", "median_us", "min_us", "max_us", "deviation_us")},
        "share_percent": [product / 10, 100 - product / 10, 100.0, 100.0],
    }  # fmt: skip
    parts = {
        "part": ["scores", "softmax", "values"], "phase": ["forward"] * 3, "calls": [1, 1, 1],
        "class": ["matrix product", "reduction", "matrix product"], "total_us": [200.0, 100.0 * drift, 300.0],
    }  # fmt: skip
    costs = {"part": parts["part"], "phase": parts["phase"], "flops": [500, 40, 500], "bytes": [100, 150, 100]}
    times = {"forward": 1.0, "backward": 2.0, "optimizer": optimizer / 1000}
    return {
        "kernels": table, "classes": {name: table[name] for name in ("phase", "class", "calls", "total_us")},
        "parts": parts, "part_costs": costs, "nsys_missing": "nsys is not installed", "forward_flops": 7,
        **{f"{phase}_ms": [drift * ms] * 6 for phase, ms in times.items()},
        **{f"profiled_{phase}_ms": [drift * profiled * ms] * 2 for phase, ms in times.items()},
    }  # fmt: skip
