"""Compare cases of records with their baselines or with each other, and give the verdicts.

The spread between processes is moderated by that of all comparisons of the experiment on the machine (see
`stats.comparisons`), or of all its experiments where one has few."""

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pandas as pd

from lib.catalog import CATALOG
from lib.records import baselines, results
from lib.records.frame import Frame
from lib.report import tidy
from lib.stats import comparisons, digits
from lib.stats.comparisons import ENOUGH_COMPARISONS, FASTER, MEDIANS, PAIRS, SLOWER, Comparison, Measured, Prior
from lib.stats.intervals import Interval

THROUGH = f"{PAIRS} with one baseline"  # what a ratio rests on that two pairs make
OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}


def comparison(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> Comparison | None:
    """Compare two cases, each picked by the values of its fields.

    Times are compared by interleaved pairs if one case is the other's baseline, or if both share a baseline. All else
    is compared by the medians of the rounds, on the GPUs that both ran on. The baseline needs no records of its own if
    it ran in the pairs. Stale records are left out. None without data, or if different versions of the code measured
    the two."""
    records = tidy.current(records)
    return _compared(records, metric, *(tidy.dicts(tidy.select(records, **case)) for case in (of, to)), to)


def _compared(records: pd.DataFrame, metric: str, one: list[dict], other: list[dict], to: Mapping) -> Comparison | None:
    """Compare the rounds of two cases among these records; the second case, `to`, may have none."""
    if not one or (other and {each["code"] for each in one} != {each["code"] for each in other}):
        return None
    found = _by_pairs(records, metric, one, other, to) if metric.endswith("_ms") else None
    found = found or comparisons.of_medians(*(tidy.by_round(each, metric) for each in _on_same_gpus(one, other)))
    return comparisons.moderated(found, _prior_of(records, metric, found.by)) if found else None


def _on_same_gpus(one: list[dict], other: list[dict]) -> Iterator[list[dict]]:
    """Yield both without the rounds of GPUs that the other did not run on.

    Two GPUs of one model differ by percents."""
    gpus = [[each["environment"].get("gpu", "") for each in rounds] for rounds in (one, other)]
    both = set.intersection(*map(set, gpus))
    for rounds, own in zip((one, other), gpus, strict=True):
        yield [each for each, gpu in zip(rounds, own, strict=True) if gpu in both]


def _by_pairs(
    records: pd.DataFrame, metric: str, one: list[dict], other: list[dict], to: Mapping
) -> Measured | None:  # fmt: skip
    """Compare two cases by the pairs of each round; None where these do not relate them."""
    experiment = records.experiment
    cases = ({name: rounds[0][name] for name in records.fields if rounds} for rounds in (one, other))
    first, second = (case or dict(to) for case in cases)
    for rounds, case, against, inverse in ((one, first, second, False), (other, second, first, True)):
        for prefix, baseline in (("", baselines.of), ("plain_", baselines.plain)):
            if baseline(experiment, case) == against:
                found = comparisons.joined(list(_ratio_to_baseline(rounds, metric, prefix).values()))
                return replace(found, logs=tuple(-log for log in found.logs)) if found and inverse else found
    base = baselines.of(experiment, first)
    if base is None or base != baselines.of(experiment, second):
        return None
    above, below = (_ratio_to_baseline(rounds, metric) for rounds in (one, other))
    return comparisons.joined([_quotient(above[r], below[r]) for r in sorted(above.keys() & below.keys())])


def _ratio_to_baseline(rounds: list[dict], metric: str, prefix: str = "") -> dict[int, Measured]:
    """Return a case's ratio to its baseline by round; with `plain_`, to the plain case."""
    unit = "ms" if metric == "total_ms" else metric
    own, base = (tidy.by_round(rounds, f"{prefix}{side}_{unit}") for side in ("paired", "baseline"))
    return {round: _pairs(tuple(own[round]), tuple(base[round])) for round in sorted(own)}


_pairs = functools.cache(comparisons.of_pairs)  # every table asks anew for the same pairs


def _quotient(above: Measured, below: Measured) -> Measured:
    """Return the ratio of two cases of one process by their ratios to the baseline that both have."""
    noise, n = math.hypot(above.noise, below.noise), min(above.n, below.n)
    return Measured((above.logs[0] - below.logs[0],), THROUGH, n, noise, max(above.ms, below.ms))


def _prior_of(records: pd.DataFrame, metric: str, by: str) -> Prior | None:
    """Return the prior for a time in these records; None for other metrics or several machines.

    Through a baseline, a ratio has twice the variance of one pair's."""
    machines = set(records["machine"])
    if not metric.endswith("_ms") or len(machines) != 1:
        return None
    machine = machines.pop()
    version = Frame.origin(records, "version") or results.version(machine)
    found = prior(records.experiment, machine, metric, PAIRS if by == THROUGH else by, version)
    return replace(found, level=found.level + math.log(2)) if found and by == THROUGH else found


@functools.lru_cache(maxsize=1_000)
def prior(experiment: str, machine: str, metric: str, by: str, version: int) -> Prior | None:
    """Return what the comparisons of an experiment on a machine have in common.

    It is kept for one `version` of its files. An experiment with fewer than 20 comparisons takes the prior of all
    experiments. None if there are too few."""
    rows = _spreads(experiment, machine, metric, by, version)
    if len(rows) < ENOUGH_COMPARISONS:
        rows = [row for name in CATALOG for row in _spreads(name, machine, metric, by, version)]
    return comparisons.prior(rows)


@functools.lru_cache(maxsize=1_000)
def _spreads(experiment: str, machine: str, metric: str, by: str, version: int) -> list[Measured]:
    """Return the comparisons of an experiment that have several processes.

    For pairs, each is a case's ratio to its baseline. For medians, it is one case, scaled by √2 to a ratio's spread."""
    rows = []
    for rounds in _cases(experiment, machine, version):
        if by == PAIRS:
            found = comparisons.joined(list(_ratio_to_baseline(rounds, metric).values()))
        else:
            medians = [statistics.median(times) for times in tidy.by_round(rounds, metric).values()]
            logs = tuple(math.sqrt(2) * math.log(ms) for ms in medians)
            found = Measured(logs, MEDIANS, len(logs), 0.0, statistics.median(medians)) if medians else None
        if found and len(found.logs) > 1:
            rows.append(found)
    return rows


@functools.lru_cache(maxsize=100)
def _cases(experiment: str, machine: str, _version: int) -> list[list[dict]]:
    """Return the records of each case of an experiment, without stale ones."""
    return list(tidy.rounds(tidy.current(results.load(experiment, machine))).values())


def against_baselines(records: pd.DataFrame, metric: str = "total_ms") -> pd.DataFrame:
    """Compare each case with its baseline, one per row.

    Columns: the fields of the case; `baseline`, its value in the field that differs; `of`, the metric; its `ratio`;
    `by`, what it rests on; the table's `verdict`; and `hardware, codes, noisy` as in `tidy.medians`."""
    experiment = records.experiment
    return _against(records, tidy.medians(records), metric, lambda case: baselines.of(experiment, case))


def beside_baselines(table: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Add `baseline`, `of`, `ratio` and `verdict` of `against_baselines` to rows of medians.

    The ratio is None for a baseline itself, and the verdict then missing."""
    fields, columns = records.fields, ["baseline", "of", "ratio", "verdict"]
    wider = table.merge(against_baselines(records)[[*fields, *columns]], on=fields, how="left")
    wider["ratio"] = [found if isinstance(found, Interval) else None for found in wider["ratio"]]
    wider = Frame(wider).with_origin(table, what="Median or ratio")
    return wider.assign(verdict=wider["verdict"].astype(object).fillna(digits.MISSING))


def against_plain(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each case that has several switches on with the plain one, one per row."""
    experiment = records.experiment
    return _against(
        records, tidy.medians(records, "total_ms"), "total_ms", lambda case: baselines.plain(experiment, case)
    )


def contrasts(records: pd.DataFrame, axis: str, reference) -> pd.DataFrame:
    """Compare each timed case with the same case whose `axis` has the value `reference`.

    Columns as in `against_baselines`, and the median of `total_ms`."""
    return _against(
        records, tidy.medians(records, "total_ms"), "total_ms",
        lambda case: case[axis] != reference and {**case, axis: reference},
    )  # fmt: skip


def _against(
    records: pd.DataFrame, measured: pd.DataFrame, metric: str, other: Callable[[dict], dict | None]
) -> pd.DataFrame:
    """Return the rows of `measured` whose case has an `other`, with the verdicts of comparing the two."""
    known, rows, found = tidy.current(records), [], []
    cases = tidy.rounds(known)
    for row in tidy.dicts(measured):
        case = {name: row[name] for name in records.fields}
        base = other(case)
        one, against = (cases.get(tuple(each.values()), []) for each in (case, base or {}))
        compared = base and _compared(known, metric, one, against, base)
        if compared:
            differing = {"baseline": baseline_text(records, case, base), "of": metric}
            rows.append(row | differing | {"ratio": compared.ratio, "by": compared.by})
            found.append(compared)
    columns = [*measured.columns.drop(["status", "why"]), "baseline", "of", "ratio", "by"]
    return Frame(rows, columns=columns).with_origin(measured).assign(verdict=comparisons.verdicts(found))


def baseline_text(records: pd.DataFrame, of: Mapping, to: Mapping) -> str:
    """Name a baseline by its values in the fields that differ: naive, or not compiled."""
    differing = (name for name in records.fields if name in of and of[name] != to.get(name, of[name]))
    return ", ".join(tidy.word(name, to[name]) or f"not {name}" for name in differing)


def judged(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> tuple[Comparison, str] | None:
    """Compare two cases; return the comparison, and its verdict as a table gives it.

    The table has all cases with their baselines, all with the plain one, or all pairs that differ in the same field.
    Without one, the two are judged alone."""
    compared = comparison(records, metric, of, to)
    if compared is None:
        return None
    experiment = records.experiment
    for case, base, turned in ((of, to, {}), (to, of, OPPOSITE)) if metric.endswith("_ms") else ():
        differing = [name for name in case if case[name] != base.get(name)]
        if baselines.of(experiment, case) == base:
            table = against_baselines(records, metric)
        elif metric == "total_ms" and baselines.plain(experiment, case) == base:
            table = against_plain(records)
        elif len(differing) == 1 and metric == "total_ms":
            table = contrasts(records, differing[0], base[differing[0]])
        else:
            continue
        row = tidy.select(table, **case)
        if len(row) == 1:
            verdict = row["verdict"].iloc[0]
            return compared, turned.get(verdict, verdict)
    return compared, comparisons.verdicts([compared])[0]


def ranked(records: pd.DataFrame) -> list[str]:
    """Order the variants by their times, the least first.

    Uses their ratios to the reference, or their medians if it was not measured."""
    table = tidy.medians(records, "total_ms")
    least = {name: found.value for name, found in zip(table["variant"], table["total_ms"], strict=True) if found}
    for name in least:
        base = baselines.of(records.experiment, {"variant": name})
        compared = base and base["variant"] in least and comparison(records, "total_ms", {"variant": name}, base)
        if compared:
            least[name] = compared.ratio.value * least[base["variant"]]
    return sorted(least, key=least.get)


def ratios(records: pd.DataFrame, axis: str, reference, case: Mapping) -> pd.DataFrame:
    """Return the ratio of each value of `axis` to its `reference` in an otherwise equal `case`.

    Columns: `name` (the value), `ratio`, `hardware`, `noisy`."""
    rest = {name: value for name, value in case.items() if name != axis}
    found = contrasts(tidy.select(records, **rest) if rest else records.iloc[:0], axis, reference)
    columns = {axis: "name", "ratio": "ratio", "hardware": "hardware", "noisy": "noisy"}
    return found[list(columns)].rename(columns=columns).sort_values("name", key=tidy.in_order)
