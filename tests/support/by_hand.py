"""Make frames of records by hand, of the shape that `records.load` returns, and a case of `adam`."""

import pandas as pd

PLAIN = {
    "experiment": "adam", "machine": "test-1c", "hardware": "a test", "round": 1, "status": "ok", "code": "today",
    "stale": False,
}  # fmt: skip
ADAM = {
    "variant": "fused", "shapes": "equal", "num_params": 8, "param_size": 16, "amsgrad": True, "cold": False,
    "device": "cpu",
}  # fmt: skip


def frame(*rows: dict, **common) -> pd.DataFrame:
    """Make a frame, one row a record; what a row does not give is plain."""
    return pd.DataFrame([{**PLAIN, **common, **row} for row in rows])


def of_rounds(samples: list[list[float]], metric: str = "total_ms", **row) -> list[dict]:
    """Make a row for each round of a case, with its samples of a metric."""
    return [{**row, "round": number, metric: values} for number, values in enumerate(samples, start=1)]
