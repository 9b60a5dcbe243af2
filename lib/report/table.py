"""Make the plain table of an experiment: one row a case and machine.

Its columns are numbers and texts only. Every sentence, figure and table of a chapter reads from it. What has no data is
NaN, and no column is missing for it.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib import records as stored
from lib.catalog import CATALOG
from lib.records import COLUMNS, STATUSES
from lib.report import bounds, noise, pairs
from lib.stats import estimates, intervals

# what chapters show of records: these columns are there whatever was measured
MEASURED = (
    "total_ms", "forward_ms", "backward_ms", "optimizer_ms", "first_iteration_ms", "paired_ms", "baseline_ms",
    "synchronization_ms", "alone_ms", "profiled_forward_ms", "profiled_total_ms", "peak_mib", "forward_peak_mib",
    "backward_peak_mib", "optimizer_peak_mib", "formula_mib", "residual_mib", "scores_mib", "saved_mib",
    "forward_end_mib", "backward_end_mib", "module_mib", "initial_mib", "before_step_mib", "after_all_mib",
    "after_parameters_mib", "after_gradients_mib", "after_states_mib", "predicted_parameters_mib",
    "predicted_gradients_mib", "predicted_states_mib", "out_error", "logits_error", "gradient_error",
    "weight_gradient_error", "update_error",
)  # fmt: skip
FACTS = (
    "tokens", "parameters", "tensors", "elements", "flops", "forward_flops", "backward_flops", "projection_flops",
    "forward_bytes", "backward_bytes", "optimizer_bytes", "moved_bytes", "message_bytes", "calls", "graphs",
    "graph_breaks", "messages", "largest_message_mib",
)  # fmt: skip
# the ends of a quotient, and those of its divisor: a long time gives a low rate
OPPOSITE = {"": "", "_low": "_high", "_high": "_low"}
MARKS = ("noisy", "new_memory", "torch")  # what `_mark` adds to records
WITHIN = "within one process"
BETWEEN = "between processes"


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row a case and machine of the records of one experiment.

    The records are those that `records.load` returns.

    - The case's fields; `machine`, `hardware`, `rounds` (records used), `status` (the worst, in words; "" if any record
      is ok), `noisy` and `new_memory` (records, see `lib.report.noise`), `builds` (of PyTorch), `stale`. Of a case with
      fresh and stale records only the fresh ones are used.
    - `<metric>`, `<metric>_low`, `<metric>_high`. Times have the geometric mean of the processes' medians with its 95%
      interval (see `lib.stats.estimates`). Everything else has the median between the minimum and the maximum.
    - `samples` (the fewest of a process), `interval`: "between processes", or of records made by hand "within one
      process", or "".
    - Facts: one number or text a case.
    - Of interleaved pairs: `paired_rounds` (records with pairs), `pairs` (of samples), `lowest_pair` and `highest_pair`
      (ratios of single ones), `baseline`, `speedup` with its ends, `verdict`, `advice` (see `lib.stats.verdicts`); of
      each phase the last four with its name in front: `forward_speedup`. Without pairs the texts are "".
    - `bound_ms`, and `bound_percent` of `total_ms`, or else of `paired_ms`, with its ends (see `lib.report.bounds`).

    `attrs["machine"]` is the first machine, of which a chapter tells. The columns of `MEASURED` and `FACTS` are there,
    empty, also where no record has them."""
    names = fields(records)
    tables = [_of_machine(rows, names) for _, rows in records.groupby("machine", sort=False)]
    if not tables:
        tables = [_of_machine(records, names)]
    # copied into few blocks, else pandas warns of a fragmented frame where a chapter adds a column
    result = pd.concat(tables, ignore_index=True).copy()
    # records that were just measured name no machine: it is that of the first row
    result.attrs["machine"] = records.attrs.get("machine") or next(iter(result["machine"]), "")
    return result


def load(experiment: str, machine: str) -> pd.DataFrame:
    """Return another experiment's table on the same machine, empty without records."""
    return table(stored.load_any(experiment, machine))


def list_processes(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that `table` counts, one row a process, with the median of each of its times.

    The other columns are those of the records, `noisy` and `new_memory` (see `lib.report.noise`), `speedup` (the
    Hodges-Lehmann estimate of the process's own pairs), and `torch` of its environment."""
    used = _usable(_mark(records), [*fields(records), "machine"]).reset_index(drop=True)
    paired = used.reindex(columns=["paired_ms", "baseline_ms"]).dropna()
    logs = [estimates.of_pairs(*times)[0] for times in paired.itertuples(index=False)]
    medians = {"speedup": pd.Series(np.exp(logs), paired.index, dtype=float)}
    for name in used.filter(regex="_ms$"):
        medians[name] = used[name].map(np.median, na_action="ignore").astype(float)
    return used.assign(**medians)


def unfold(records: pd.DataFrame, name: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of the tables that records hold, such as `loops`.

    The case's fields and `machine` come first. `columns` are those of such a table; where no record holds one, there
    are no rows. Of a case with fresh and stale records only the fresh ones are used."""
    names = [*fields(records), "machine"]
    records = records.reindex(columns=[*names, "status", "stale", name]).astype({"stale": bool})
    holders = _usable(records, names).dropna(subset=name).reset_index(drop=True)
    tables = pd.DataFrame(list(holders[name]), holders.index, columns)
    rows = holders[names].join(tables).explode(columns, ignore_index=True)
    # an empty table leaves a row of NaN
    return rows.dropna(subset=columns, how="all").reset_index(drop=True).infer_objects()


def fields(records: pd.DataFrame) -> list[str]:
    """List the fields of a case of these records."""
    if len(records):
        return [name for name in CATALOG[records["experiment"].iloc[0]].fields if name in records]
    # an empty frame does not name its experiment, whose fields are among its columns: the one with most of them
    entries = [entry.fields for entry in CATALOG.values() if set(entry.fields) <= set(records.columns)]
    return list(max(entries, key=len, default=()))


def _of_machine(records: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Make the table of one machine; its index is the number of the case."""
    records = _mark(records).assign(case=records.groupby(names, sort=False, dropna=False).ngroup())
    used = _usable(records, ["case"])
    # round 0 is for what someone measures in JupyterLab
    is_by_hand = (used["round"] == 0).all()
    cases = _describe(records, used, names)
    columns = {}
    for name in MEASURED:
        columns |= dict.fromkeys([name, f"{name}_low", f"{name}_high"], pd.Series(dtype=float))
    for name in used.columns.difference([*names, *COLUMNS, *MARKS, "case"], sort=False):
        columns |= _summarize(used, name, is_by_hand)
    for name in FACTS:
        columns.setdefault(name, pd.Series(dtype=float))
    result = cases.join(pd.DataFrame(columns, index=cases.index))
    result["samples"] = _count_samples(used).reindex(cases.index, fill_value=0)
    is_paired = used.reindex(columns=["paired_ms"])["paired_ms"].notna()
    result["paired_rounds"] = is_paired.groupby(used["case"]).sum().reindex(cases.index, fill_value=0)
    result = result.join(pairs.judge(used, cases[names], is_by_hand))
    has_ends = result[["total_ms_low", "paired_ms_low", "speedup_low"]].notna().any(axis="columns")
    result["interval"] = np.where(has_ends, WITHIN if is_by_hand else BETWEEN, "")
    return result.join(_bound(records, result))


def _mark(records: pd.DataFrame) -> pd.DataFrame:
    """Add what is asked of each record as a whole: noise, new memory and the build."""
    environment = records.reindex(columns=["environment"])["environment"].astype(object)
    return records.assign(
        noisy=noise.find_noisy(records).astype(int),
        new_memory=noise.find_new_memory(records).astype(int),
        stale=records["stale"].astype(bool),
        torch=environment.str.get("torch"),
    )


def _usable(records: pd.DataFrame, case: list[str]) -> pd.DataFrame:
    """Return the records that are ok, of each case the fresh ones if it has any."""
    measured = records[records["status"] == "ok"]
    has_only_stale = measured.groupby(case, dropna=False)["stale"].transform("all").astype(bool)
    return measured[~measured["stale"] | has_only_stale]


def _describe(records: pd.DataFrame, used: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the fields of each case, and what holds for its records as a whole."""
    cases = records.drop_duplicates("case").set_index("case")[[*names, "machine", "hardware"]]
    by_case = used.groupby("case")
    cases["rounds"] = by_case.size().reindex(cases.index, fill_value=0)
    severity = records["status"].map(list(STATUSES).index).groupby(records["case"]).max()
    worst = severity.map(dict(enumerate(STATUSES.values())))
    cases["status"] = worst.where(cases["rounds"] == 0, "")
    for name in ("noisy", "new_memory"):
        cases[name] = by_case[name].sum().reindex(cases.index, fill_value=0)
    cases["builds"] = by_case["torch"].nunique().reindex(cases.index, fill_value=0)
    # a case without any record that is ok is as stale as its failures
    is_stale = records.groupby("case")["stale"].all()
    cases["stale"] = by_case["stale"].all().reindex(cases.index).fillna(is_stale).astype(bool)
    return cases


def _summarize(used: pd.DataFrame, name: str, is_by_hand: bool) -> dict[str, pd.Series]:
    """Return the columns of one metric; none of a table within records."""
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


def _count_samples(used: pd.DataFrame) -> pd.Series:
    """Return the fewest samples of any process of each case, alone or in pairs."""
    times = used.reindex(columns=["total_ms", "paired_ms"])
    counts = times.map(len, na_action="ignore").bfill(axis="columns")["total_ms"].dropna()
    return counts.astype(int).groupby(used["case"]).min()


def _bound(records: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return each case's bound in ms, and its percentage of the row's time."""
    columns = pd.DataFrame({"bound_ms": np.nan}, index=table.index)
    if len(records):
        first = records.iloc[0]
        columns["bound_ms"] = bounds.bound_ms(first["experiment"], first["machine"], table)
    is_alone = table["total_ms"].notna()
    for end, time_end in OPPOSITE.items():
        time_ms = table[f"total_ms{time_end}"].where(is_alone, table[f"paired_ms{time_end}"])
        columns[f"bound_percent{end}"] = 100 * columns["bound_ms"] / time_ms
    return columns
