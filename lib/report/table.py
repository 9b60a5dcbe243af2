"""Make the plain table of an experiment: one row a case and machine, columns of numbers and texts only.

Every sentence, figure and table of a chapter reads from it. What has no data is NaN, and no column is missing for it.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib import catalog, notebooks
from lib.records import COLUMNS
from lib.report import bounds, tidy
from lib.stats import comparisons, estimates, intervals, verdicts

STATUSES = {  # the worst last
    "ok": "", "oom": "out of memory", "timeout": "took too long", "crashed": "crashed", "failed": "failed",
}  # fmt: skip
# what chapters show of records: these columns are there whatever was measured
MEASURED = (
    "total_ms", "forward_ms", "backward_ms", "optimizer_ms", "first_iteration_ms", "paired_ms", "baseline_ms",
    "peak_mib", "saved_mib",
)  # fmt: skip
FACTS = (
    "tokens", "parameters", "elements", "forward_flops", "backward_flops", "forward_bytes", "backward_bytes",
    "optimizer_bytes", "moved_bytes",
)  # fmt: skip
# pairs of experiments whose baseline is no field of the catalogue
OTHER_BASELINES = {"ladder": "plain", "calibration": "itself"}
WITHIN = "within one process"
BETWEEN = "between processes"


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row a case and machine of records of one experiment, as `records.load` returns them.

    - The case's fields; `machine`, `hardware`, `rounds` (records used), `status` (the worst, in words; "" if any record
      is ok), `noisy` (records), `stale`. Of a case with fresh and stale records only the fresh ones are used.
    - `<metric>`, `<metric>_low`, `<metric>_high`. Times have the geometric mean of the processes' medians with its 95%
      interval (see `lib.stats.estimates`). Everything else has the median between the minimum and the maximum.
    - `samples` (the fewest of a process), `interval`: "between processes", or of records made by hand "within one
      process", or "".
    - Facts: one number or text a case.
    - Of interleaved pairs: `baseline`, `speedup` with its ends, `verdict`, `advice` (see `lib.stats.verdicts`). Those of
      a phase have its name in front: `forward_speedup`. Without pairs the texts are "".
    - `bound_ms`, and `bound_percent` of `total_ms`, or else of `paired_ms`, with its ends (see `lib.report.bounds`).

    A column of `MEASURED` or `FACTS` is there, empty, also where no record has it."""
    names = fields(records)
    tables = [_of_machine(rows, names) for _, rows in records.groupby("machine", sort=False)]
    if not tables:
        tables = [_of_machine(records, names)]
    result = pd.concat(tables, ignore_index=True)
    result.attrs = dict(records.attrs)
    return result


def fields(records: pd.DataFrame) -> list[str]:
    """List the fields of a case of these records."""
    if records.empty:
        # without records there are no metrics beside the fields
        return [name for name in records.columns if name not in COLUMNS]
    return [name for name in notebooks.fields(records["experiment"].iloc[0]) if name in records]


def _of_machine(records: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Make the table of one machine; its index is the number of the case."""
    records = records.assign(
        case=records.groupby(names, sort=False, dropna=False).ngroup(), noisy=tidy.noisy(records).astype(int)
    )
    used = _usable(records)
    is_by_hand = bool(len(used)) and (used["round"] == 0).all()
    result = _cases(records, used, names)
    columns = {}
    for name in used.columns.difference([*names, *COLUMNS, "case", "noisy"], sort=False):
        columns |= _columns(used, name, is_by_hand)
    for name in MEASURED:
        for column in (name, f"{name}_low", f"{name}_high"):
            columns.setdefault(column, pd.Series(dtype=float))
    for name in FACTS:
        columns.setdefault(name, pd.Series(dtype=float))
    result = result.join(pd.DataFrame(columns, index=result.index))
    result["samples"] = _samples(used).reindex(result.index, fill_value=0)
    result = result.join(_ratios(used, result[names], is_by_hand))
    has_ends = result[["total_ms_low", "paired_ms_low", "speedup_low"]].notna().any(axis="columns")
    result["interval"] = has_ends.map({True: WITHIN if is_by_hand else BETWEEN, False: ""}).astype(str)
    return result.join(_bounds(records, result))


def _usable(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that are ok, of each case the fresh ones if it has any."""
    measured = records[records["status"] == "ok"]
    has_only_stale = measured["stale"].astype(bool).groupby(measured["case"]).transform("all")
    return measured[~measured["stale"].astype(bool) | has_only_stale]


def _cases(records: pd.DataFrame, used: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the fields of each case, and what is known of its records as a whole."""
    cases = records.drop_duplicates("case").set_index("case")[[*names, "machine", "hardware"]]
    by_case = used.groupby("case")
    cases["rounds"] = by_case.size().reindex(cases.index, fill_value=0)
    severity = records["status"].map(list(STATUSES).index).groupby(records["case"]).max()
    worst = severity.map(dict(enumerate(STATUSES.values())))
    cases["status"] = worst.where(cases["rounds"] == 0, "")
    cases["noisy"] = by_case["noisy"].sum().reindex(cases.index, fill_value=0)
    # a case without any record that is ok is as stale as its failures
    is_stale = records["stale"].astype(bool).groupby(records["case"]).all()
    cases["stale"] = is_stale
    cases.loc[by_case.size().index, "stale"] = by_case["stale"].all()
    return cases


def _columns(used: pd.DataFrame, name: str, is_by_hand: bool) -> dict[str, pd.Series]:
    """Return what the table has of one metric; nothing of tables within records."""
    cells = used[name].dropna()
    case = used["case"].loc[cells.index]
    cells = cells[cells.map(_is_plain)]
    case = case.loc[cells.index]
    if cells.empty:
        return {}
    if isinstance(cells.iloc[0], str) or _is_fact(cells, case):
        return {name: cells.infer_objects().groupby(case).first()}
    # a number is the one sample of its process
    samples = cells.map(np.atleast_1d)
    medians = samples.map(np.median).astype(float)
    summary = estimates.middles(medians, case)
    if name.endswith("_ms"):
        has_logs = (medians > 0).groupby(case).transform("all")
        positive = estimates.geometric_means(medians[has_logs], case[has_logs])
        summary.loc[positive.index] = positive
    if is_by_hand:
        for number, of_case in samples.groupby(case):
            summary.loc[number, ["low", "high"]] = intervals.order_statistics(of_case.iloc[0])
    return {name: summary["value"], f"{name}_low": summary["low"], f"{name}_high": summary["high"]}


def _is_plain(cell: object) -> bool:
    """Tell if a cell of a record is a text, a number, or a list of samples."""
    if isinstance(cell, list):
        return len(cell) > 0 and isinstance(cell[0], int | float)
    return isinstance(cell, str | int | float | np.number)


def _is_fact(cells: pd.Series, case: pd.Series) -> bool:
    """Tell if a metric is one number, the same in every process of a case."""
    if cells.map(np.ndim).any():
        return False
    return cells.groupby(case).nunique().max() == 1


def _samples(used: pd.DataFrame) -> pd.Series:
    """Return the fewest samples of any process of each case, of its time alone or in pairs."""
    times = used.reindex(columns=["total_ms", "paired_ms"])
    counts = times.map(len, na_action="ignore").bfill(axis="columns")["total_ms"].dropna()
    return counts.astype(int).groupby(used["case"]).min()


def _ratios(used: pd.DataFrame, cases: pd.DataFrame, is_by_hand: bool) -> pd.DataFrame:
    """Return the ratio of the baseline's time to each case's, of the whole and of each phase, judged."""
    columns = {"baseline": pd.Series(dtype=str)}
    for phase in ["", *_phases(used)]:
        estimated = _estimated(used, phase, is_by_hand)
        is_stale = used.groupby("case")["stale"].all().astype(bool).reindex(estimated.index)
        # where all are stale, as records kept in git become, they count
        judgement = verdicts.judge(estimated, counts=~is_stale | is_stale.all())
        for name in judgement:
            columns[f"{phase}{name}"] = judgement[name]
    for number, values in cases.loc[columns["speedup"].index].iterrows():
        columns["baseline"].loc[number] = baseline(used["experiment"].iloc[0], values)
    result = pd.DataFrame(columns, index=cases.index)
    texts = result.filter(regex="baseline|verdict|advice").columns
    return result.fillna(dict.fromkeys(texts, ""))


def _bounds(records: pd.DataFrame, result: pd.DataFrame) -> pd.DataFrame:
    """Return each case's bound in ms, and as a share of the time that its row tells, with the ends of that time."""
    columns = pd.DataFrame({"bound_ms": np.nan}, index=result.index)
    for _, experiment, machine in records[["experiment", "machine"]].head(1).itertuples():
        columns["bound_ms"] = bounds.bound_ms(experiment, machine, result)
    # the time's upper end gives the share's lower one
    for end, time_end in {"": "", "_low": "_high", "_high": "_low"}.items():
        is_alone = result["total_ms"].notna()
        time_ms = result[f"total_ms{time_end}"].where(is_alone, result[f"paired_ms{time_end}"])
        columns[f"bound_percent{end}"] = 100 * columns["bound_ms"] / time_ms
    return columns


def _phases(used: pd.DataFrame) -> list[str]:
    """List the phases that ran in pairs, as a prefix of columns: `forward_`."""
    names = used.filter(regex="^paired_.+_ms$").columns
    return [name.removeprefix("paired_").removesuffix("ms") for name in names]


def _estimated(used: pd.DataFrame, phase: str, is_by_hand: bool) -> pd.DataFrame:
    """Estimate the logarithm of each case's ratio, for `verdicts.judge`."""
    pairs = used.reindex(columns=["case", f"paired_{phase}ms", f"baseline_{phase}ms"]).dropna()
    rows = []
    for case, variant_ms, baseline_ms in pairs.itertuples(index=False):
        measured = comparisons.of_pairs(variant_ms, baseline_ms)
        rows.append((case, *measured.logs, measured.noise, measured.n - 1))
    ratios = pd.DataFrame(rows, columns=["case", "log", "noise", "freedom"])
    ratios = ratios.astype({"case": int, "log": float, "noise": float, "freedom": float})
    if not is_by_hand:
        return estimates.of_processes(ratios["log"], ratios["case"], ratios["noise"])
    within = ratios.drop_duplicates("case").set_index("case")
    # a single pair says nothing of its noise
    within["error"] = within["noise"].where(within["freedom"] > 0)
    return within


def baseline(experiment: str, case: Mapping) -> str:
    """Name a case's baseline by the value in which it differs: naive, not compiled, checkpoint 0."""
    other = catalog.baseline(experiment, case)
    if other is None:
        return OTHER_BASELINES.get(experiment, "its baseline")
    for name, value in other.items():
        if value is False:
            text = f"not {name}"
        elif isinstance(value, str):
            text = value
        else:
            text = f"{name} {value}"
        if value != case[name]:
            return text
    return ""
