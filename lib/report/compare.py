"""Compares the cases of records, each with its baseline or with any other, and gives one verdict for each; knows
nothing of how it is told.
"""

import functools
import weakref
from collections.abc import Callable, Mapping

import pandas as pd

from lib.records import baselines
from lib.report import tidy
from lib.stats import comparisons, intervals
from lib.stats.comparisons import Comparison


def comparison(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> Comparison | None:
    """Two cases compared, each picked by the values of its fields: their times by the pairs that ran in turns where one
    is the baseline of the other or both have the same, all else by the medians of the rounds. A baseline that ran in
    these pairs alone needs no records of its own. Stale records are left out. None without data, and where different
    versions of the code measured the two."""
    records = tidy.current(records)
    one, other = tidy.select(records, **of), tidy.select(records, **to)
    if one.empty or (len(other) and set(one["code"]) != set(other["code"])):
        return None
    found = _by_pairs(one, other, metric, to) if metric.endswith("_ms") else None
    return found or comparisons.unpaired(tidy.samples(one, metric), tidy.samples(other, metric))


_paired = functools.cache(comparisons.paired)  # of the same pairs, for which every table asks anew


def _by_pairs(one: pd.DataFrame, other: pd.DataFrame, metric: str, to: Mapping) -> Comparison | None:
    """Two cases by their pairs in each round; None where these do not relate them."""
    fields = one.attrs["fields"]
    cases = [frame[fields].iloc[0].to_dict() if len(frame) else dict(to) for frame in (one, other)]
    bases = [baselines.of(one.attrs["experiment"], case) for case in cases]
    unit = "ms" if metric == "total_ms" else metric
    above, below = (
        {
            f"{side}_ms": {r: tuple(times) for r, times in tidy.samples(frame, f"{side}_{unit}").items()}
            for side in ("paired", "baseline")
        }
        for frame in (one, other)
    )
    if not any((*above.values(), *below.values())):
        return None
    if bases[0] == cases[1]:
        found = {r: _paired(above["paired_ms"][r], above["baseline_ms"][r]) for r in above["paired_ms"]}
    elif bases[1] == cases[0]:
        found = {r: _paired(below["baseline_ms"][r], below["paired_ms"][r]) for r in below["paired_ms"]}
    elif bases[0] and bases[0] == bases[1]:
        return _by_same_baseline(above, below)
    else:
        return None
    rounds = [found[r] for r in sorted(found)]
    if len(rounds) >= intervals.ENOUGH_ROUNDS:
        return comparisons.across(
            [one.ratio.value for one in rounds], sum(one.ratio.n for one in rounds), comparisons.PAIRS
        )
    sides = {one.ratio.value < 1 for one in rounds}
    return max(rounds, key=lambda one: one.p) if len(sides) == 1 else None


def _by_same_baseline(above: dict, below: dict) -> Comparison | None:
    """Two cases that ran in turns with the same third: by the quotients of their ratios to it, process by process."""
    common = sorted(above["paired_ms"].keys() & below["paired_ms"].keys())
    if len(common) < intervals.ENOUGH_ROUNDS:
        return None
    ratios = [[_paired(side["paired_ms"][r], side["baseline_ms"][r]).ratio for side in (above, below)] for r in common]
    n = sum(min(first.n, second.n) for first, second in ratios)
    return comparisons.across([first.value / second.value for first, second in ratios], n, comparisons.PAIRS)


def against_baselines(records: pd.DataFrame, metric: str = "total_ms") -> pd.DataFrame:
    """Each case against its baseline, one a row: the fields of the case, `baseline` (what it has instead), `ratio` of
    the metric, what it rests on (`by`), `verdict` (by Holm over all rows) and `visible_percent`, the smallest
    difference that would have been seen among so many; and `hardware, codes, noisy` as `medians` has them."""
    experiment = records.attrs["experiment"]
    return _against(records, tidy.medians(records), metric, lambda case: baselines.of(experiment, case))


def contrasts(records: pd.DataFrame, axis: str, reference) -> pd.DataFrame:
    """Each case with times beside the otherwise equal one whose `axis` has the value `reference`, one a row, as
    `against_baselines` has them, with the median of `total_ms`."""
    return _against(
        records, tidy.medians(records, "total_ms"), "total_ms",
        lambda case: case[axis] != reference and {**case, axis: reference},
    )  # fmt: skip


def _against(
    records: pd.DataFrame, measured: pd.DataFrame, metric: str, other: Callable[[dict], dict | None]
) -> pd.DataFrame:
    """The rows of `measured` whose case has an `other`, with what comparing the two shows."""
    fields, rows, found = records.attrs["fields"], [], []
    for _, row in measured.iterrows():
        case = row[fields].to_dict()
        base = other(case)
        compared = base and comparison(records, metric, case, base)
        if compared:
            (differs,) = (tidy.word(name, base[name]) or f"not {name}" for name in fields if base[name] != case[name])
            rows.append(row.to_dict() | {"baseline": differs, "ratio": compared.ratio, "by": compared.by})
            found.append(compared)
    frame = pd.DataFrame(rows, columns=[*measured.columns.drop(["status", "why"]), "baseline", "ratio", "by"])
    frame.attrs = measured.attrs
    visible = pd.Series([100 * compared.visible(len(found)) for compared in found], dtype=float)
    return frame.assign(verdict=comparisons.verdicts(found), visible_percent=visible)


_TABLES: dict[int, tuple[weakref.ref, dict[str, pd.DataFrame]]] = {}


def _remembered(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """`against_baselines` of these very records, made once for all the sentences about them."""
    known, tables = _TABLES.get(id(records), (lambda: None, {}))
    if known() is not records:
        tables = {}
        _TABLES[id(records)] = weakref.ref(records), tables
    if metric not in tables:
        tables[metric] = against_baselines(records, metric)
    return tables[metric]


def judged(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, rivals: int = 1
) -> tuple[Comparison, str, float] | None:
    """Two cases compared, with the verdict and the smallest visible difference: those of `against_baselines` where
    one is the baseline of the other, so that no sentence contradicts that table, else as one of so many `rivals`."""
    compared = comparison(records, metric, of, to)
    if compared is None:
        return None
    if metric.endswith("_ms"):
        table = _remembered(records, metric)
        for case, base, turned in ((of, to, {}), (to, of, {"faster": "slower", "slower": "faster"})):
            row = tidy.select(table, **case)
            if len(row) == 1 and baselines.of(records.attrs["experiment"], case) == base:
                said = row["verdict"].iloc[0]
                return compared, turned.get(said, said), row["visible_percent"].iloc[0] / 100
    return compared, compared.verdict(rivals), compared.visible(rivals)


def ranked(records: pd.DataFrame, metric: str, among: str) -> list:
    """The values of the field `among` from the least of the metric to the most, by their ratio to the reference of that
    field, or by their medians where it was not measured."""
    table = tidy.medians(records, metric)
    least = {name: found.value for name, found in zip(table[among], table[metric], strict=True) if found}
    for name in least:
        base = baselines.of(records.attrs["experiment"], {among: name})
        if base and base[among] in least and (compared := comparison(records, metric, {among: name}, base)):
            least[name] = compared.ratio.value * least[base[among]]
    return sorted(least, key=least.get)


def ratios(records: pd.DataFrame, axis: str, reference, case: Mapping) -> pd.DataFrame:
    """The ratio of the time of each value of the field `axis` to its `reference`, in an otherwise equal `case`:
    columns `name` (the value), `ratio`, `hardware`, `noisy`."""
    rest = {name: value for name, value in case.items() if name != axis}
    found = contrasts(tidy.select(records, **rest) if rest else records.iloc[:0], axis, reference)
    columns = {axis: "name", "ratio": "ratio", "hardware": "hardware", "noisy": "noisy"}
    return found[list(columns)].rename(columns=columns).sort_values("name", key=tidy.in_order)
