"""Describe the times of a process's first training steps, for the chapter `warmup`."""

from collections.abc import Sequence

import numpy as np

from lib.stats import steady_state

WARM_UPS = (0, 1, 2, 5)
SAMPLES = 10


def describe(times_ms: Sequence[float]) -> dict[str, float]:
    """Return the numbers of one process by name.

    `later_ms` is the median of the second half, `first_over_later` the first step over it, and `steady_step` the number
    of the step from which times are level, or NaN. `mean_N_ms`, `deviation_N_ms` and `deviation_N_percent` are of ten
    steps after N warm-ups; `zero_over_five` and `one_over_five` are ratios of such means."""
    later_ms = float(np.median(times_ms[len(times_ms) // 2 :]))
    steady = steady_state.steady(times_ms)
    numbers = {"later_ms": later_ms, "first_over_later": times_ms[0] / later_ms}
    numbers["steady_step"] = np.nan if steady is None else steady + 1
    for discard in WARM_UPS:
        ten_ms = times_ms[discard : discard + SAMPLES]
        numbers[f"mean_{discard}_ms"] = np.mean(ten_ms)
        numbers[f"deviation_{discard}_ms"] = np.std(ten_ms, ddof=1)
        numbers[f"deviation_{discard}_percent"] = 100 * np.std(ten_ms, ddof=1) / np.mean(ten_ms)
    numbers["zero_over_five"] = numbers["mean_0_ms"] / numbers["mean_5_ms"]
    numbers["one_over_five"] = numbers["mean_1_ms"] / numbers["mean_5_ms"]
    return numbers
