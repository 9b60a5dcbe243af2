"""Summarise which records exist, where they were measured and how noisy it was."""

import itertools
import math
import statistics
from collections.abc import Mapping

import pandas as pd
from ruamel.yaml import YAML

from lib import notebooks
from lib.catalog import CATALOG
from lib.records import staleness
from lib.report import compare, tidy
from lib.stats import comparisons


def coverage(experiments: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count the cases of each experiment, one row per experiment.

    Compares the cases here with the whole grid, that of the sweep `gpu`, and counts rounds and how cases ended."""
    rows = []
    for name, records in experiments.items():
        table, grid = tidy.medians(records), whole_grid(name)
        tried = {_case_key(case) for case in table[records.attrs["fields"]].to_dict("records")}
        row = {"experiment": name, "cases of the whole grid": len(grid), "of them here": len(grid & tried)}
        row |= {"cases here": len(table), "rounds at most": int(records["round"].max()) if len(records) else 0}
        ends = table["status"].map(lambda status: tidy.STATUS[status] or "measured")
        rows.append(row | ends.value_counts().to_dict())
    frame = pd.DataFrame(rows)
    counted = frame.columns[5:]
    frame[counted] = frame[counted].fillna(0).astype(int)
    return frame


def whole_grid(experiment: str) -> set[tuple]:
    """Return the cases of an experiment in the sweep `gpu`, ignoring the device."""
    content = YAML(typ="safe", pure=True).load(notebooks.SWEEPS / "gpu.yaml").get(experiment, [])
    names, cases = notebooks.fields(experiment), set()
    for block in content if isinstance(content, list) else [content]:
        axes = notebooks.parameters(experiment) | block
        values = (axes[name] if isinstance(axes[name], list) else [axes[name]] for name in names)
        cases |= {_case_key(dict(zip(names, point, strict=True))) for point in itertools.product(*values)}
    return cases


def _case_key(case: Mapping) -> tuple:
    return tuple(str(value) for name, value in case.items() if name != "device")


def environments(experiments: list[pd.DataFrame]) -> pd.DataFrame:
    """List the recorded environments in the columns `what` and `value`.

    Differing values are all listed, except those that differ between any two records."""
    every = [record for records in experiments for record in records.to_dict("records")]
    found: dict[str, dict] = {}
    for record in every:
        for name, value in record["environment"].items():
            found.setdefault(name, {})[str(value)] = value
    loads, busy, steps = (
        sorted(float(value) for value in found.pop(name, {})) for name in ("load", "others_percent", "clock_stepped_s")
    )
    for name in ("run", "machine"):
        found.pop(name, None)
    rows = {name.replace("_mib", ", MiB").replace("_", " "): _format_values(values) for name, values in found.items()}
    for what, values in (("load over a minute", loads), ("used by others meanwhile, % of all cores", busy)):
        rows |= {what: f"{values[0]:g} to {values[-1]:g}"} if values else {}
    rows |= {"steps of the wall clock, s": ", ".join(f"{step:+,g}" for step in steps)} if steps else {}
    rows["measuring code"] = ", ".join(sorted({record["code"] for record in every}))
    rows |= {"stale": stale} if (stale := staleness.left_out(*experiments)) else {}
    rows["measured on"] = ", ".join(sorted({record["started"][:10] for record in every}))
    return pd.DataFrame(rows.items(), columns=["what", "value"])


def _format_values(values: Mapping[str, object]) -> str:
    kinds = {type(value) for value in values.values()}
    if kinds == {dict}:
        return ", ".join(sorted({f"{key}={v}" for value in values.values() for key, v in value.items()})) or "none set"
    if kinds == {list}:
        return "; ".join(sorted({text for value in values.values() for text in value})) or "nothing"
    return ", ".join({"True": "yes", "False": "no"}.get(text, text) for text in values)


def disturbances(experiments: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count noisy records and series that change, one row per experiment.

    `median spread` is the interquartile range of a case's samples relative to their median. A record is noisy if the
    noise probe was slow or unsteady, or if other processes used much of the machine. A series changes if its samples
    drift, jump or slow down late."""
    rows = []
    for name, records in experiments.items():
        timed = records[tidy.column(records, "total_ms").map(lambda times: isinstance(times, list))]
        if timed.empty:
            continue
        found = [tidy.disturbances(record) for _, record in timed.iterrows()]
        rows.append(
            {
                "experiment": name, "records": len(timed),
                "median spread, %": statistics.median(map(_spread_percent, timed["total_ms"])),
                "20 samples or more": sum(len(times) >= 20 for times in timed["total_ms"]),
                "noisy machine": sum(tidy.NOISY in text for text in found),
                "series that change": sum(text not in ("", tidy.NOISY) for text in found),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def _spread_percent(times: list[float]) -> float:
    low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return 100 * (high - low) / middle


def priors(machine: str) -> pd.DataFrame:
    """Return how much comparisons spread between processes, one row per prior.

    `spread, %` is the standard deviation of a process's ratio for a case of the median length."""
    names: dict[tuple, list[str]] = {}
    for name in (name for name, entry in CATALOG.items() if entry.baseline):
        for by in (comparisons.PAIRS, comparisons.MEDIANS):
            if prior := compare.prior(name, machine, by=by):
                names.setdefault((by, prior), []).append(name)
    rows = [
        {
            "experiment": ", ".join(each), "compared by": by, "comparisons": len(prior.tails),
            "spread, %": 100 * math.exp(prior.level / 2), "growth with time, power": prior.slope / 2,
            "degrees of freedom": prior.freedom,
        }
        for (by, prior), each in names.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)
