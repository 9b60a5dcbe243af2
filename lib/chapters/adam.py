"""Sets optimizer steps on different lists of parameters, and what was published of them, beside one another; measures
nothing.
"""

import math
from collections.abc import Callable

import pandas as pd

from lib.report import claims, tidy
from lib.report.claims import MORE, Found

EQUAL, COMPILED = "equal", ["compiled_single_tensor", "compiled_foreach"]


def with_bytes(records: pd.DataFrame) -> pd.DataFrame:
    """The records with two metrics more: `moved_mib`, what a step must move, and `per_element_ns`."""
    wider = tidy.derive(records, "moved_mib", lambda moved, ms: moved / 2**20, "moved_bytes", "total_ms")
    return tidy.derive(wider, "per_element_ns", lambda ms, count: 1e6 * ms / count, "total_ms", "elements")


def without_zeros(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the number and size of parameters missing where the list is a model's own."""
    own = ["num_params", "param_size"]
    return table.assign(**{name: table[name].astype("Int64").mask(table["shapes"] != EQUAL) for name in own})


def corners(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the fewest and the most parameters, of the least and the largest, and of a model's: as much of a
    large grid as a table can show."""
    equal = table["shapes"] == EQUAL
    for name in ("num_params", "param_size"):
        sizes = table.loc[table["shapes"] == EQUAL, name]
        equal &= table[name].isin([sizes.min(), sizes.max()])
    return table[equal | (table["shapes"] != EQUAL)]


def beside_nearest(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Medians of the steps on a model's parameters, and of those on the list of equal ones that is nearest in its
    `elements`, a column more, from caches and with amsgrad alike."""
    timed = tidy.select(records, status="ok")
    real, equal = timed[timed["shapes"] != EQUAL], timed[timed["shapes"] == EQUAL]
    kept = set(real.index)
    for (amsgrad, cold), group in real.groupby(["amsgrad", "cold"]):
        alike = equal[(equal["amsgrad"] == amsgrad) & (equal["cold"] == cold)]
        distance = (alike["elements"] / group["elements"].iloc[0]).map(lambda times: abs(math.log(times)))
        if len(alike):
            nearest = alike.loc[distance.idxmin(), ["num_params", "param_size"]]
            kept |= set(alike.index[(alike[["num_params", "param_size"]] == nearest).all(axis=1)])
    chosen = timed.loc[sorted(kept)]
    chosen.attrs = records.attrs
    table = tidy.medians(chosen, *metrics)
    keys = ["shapes", "num_params", "param_size"]
    counts = chosen.drop_duplicates(keys).set_index(keys)["elements"] if len(chosen) else {}
    elements = [int(counts[tuple(row)]) for row in table[keys].itertuples(index=False)]
    return tidy.ordered(without_zeros(table.assign(elements=elements)), "amsgrad cold variant shapes")


LISTS = {"shapes": "equal", "amsgrad": True, "cold": False}  # of parameters, and how the step on them runs
CASE = "for {num_params} × {param_size:,} elements"


def compiled_against(
    *rivals: str, within: tuple[float, float], **where
) -> Callable[[claims.Data], list[Found]]:  # fmt: skip
    """Make the finder of the compiled single-tensor step against others, on lists of parameters with these values."""

    def find(data: claims.Data) -> list[Found]:
        records, of = claims.rows(data, "adam"), {"variant": "compiled_single_tensor"}
        return [
            one
            for rival in rivals
            for one in claims.ratios(
                records, "total_ms", of, {"variant": rival}, within, f"times {rival} {CASE}", **where, **LISTS
            )
        ]

    return find


def many_parameters(data: claims.Data) -> list[Found]:
    """Find how the ratio of compiled to eager changes from at most 8 parameters to the most."""
    records, found = claims.rows(data, "adam", **LISTS), []
    rows = claims.cases(records, variant="compiled_single_tensor")
    for size in sorted({case["param_size"] for case in rows}):
        counts = sorted(case["num_params"] for case in rows if case["param_size"] == size)
        few = max((count for count in counts if count <= 8), default=None)
        if few is None or counts[-1] <= 16:
            continue
        many = next(case for case in rows if case["param_size"] == size)
        sides = [{**many, "num_params": count} for count in (counts[-1], few)]
        pairs = [(side, {**side, "variant": "single_tensor"}) for side in sides]
        found += claims.contrast(records, "total_ms", *pairs, MORE, f"times the ratio for {few}, {CASE}")
    return found
