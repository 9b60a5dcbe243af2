"""Find records that were measured while the machine was not quiet, or near the limit of its memory."""

import statistics

import pandas as pd

from lib.stats import steady_state

MANY_FAULTS = 10_000  # in a sample: 40 MiB in pages of 4 KiB, where kept pages leave none


def find_noisy(frame: pd.DataFrame) -> pd.Series:
    """Tell of each record if the noise probe beside it was slow or unsteady.

    Slow is relative to the first decile of the medians of a machine's records in `frame`: the smallest may be a moment
    at a higher clock."""
    probes = frame.get("noise_probe_ms", pd.Series(index=frame.index, dtype=object))
    medians = probes.map(statistics.median, na_action="ignore").astype(float)
    quietest = medians.groupby(frame["machine"]).transform("quantile", 0.1)
    is_noisy = []
    for samples, best in zip(probes, quietest, strict=True):
        is_noisy.append(isinstance(samples, list) and not steady_state.quiet(samples, best))
    return pd.Series(is_noisy, index=frame.index)


def find_new_memory(frame: pd.DataFrame) -> pd.Series:
    """Tell of each record if its samples had to ask the system for memory, which takes time.

    Kept pages spare a process that, but near the limit of memory they are given back."""
    faults = frame.get("minor_faults", pd.Series(index=frame.index, dtype=object))
    return faults.map(statistics.median, na_action="ignore").astype(float) > MANY_FAULTS


def tell(processes: pd.DataFrame) -> str:
    """Say beside how many rows of `report.list_processes` the machine was not quiet."""
    return f"noise beside {processes['noisy'].sum():,} of {len(processes):,} records"
