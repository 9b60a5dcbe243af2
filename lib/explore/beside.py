"""Sets what was just measured by hand beside the records kept in git of the same cases; measures nothing."""

from collections.abc import Callable

import pandas as pd
from IPython.display import Markdown

from lib.records import results
from lib.report import published, tables, tidy
from lib.report.tables import Table

HERE = "here, by hand"


def beside(
    records: pd.DataFrame, columns: str, table: Callable[[pd.DataFrame], pd.DataFrame] | None = None, keys: str = ""
) -> Table | Markdown:
    """The columns of these records and, below each case, of the reference machines' records of it, whatever the device:
    the medians of metrics, or rows of `table(records)`, matched by the fields of the case or by other `keys`. A
    sentence where there are none, and for a sweep, whose records the report compares."""
    if set(records["round"]) - {results.BY_HAND}:
        return Markdown("The records of a sweep stand beside those of other machines in the report.")
    fields = [name for name in records.attrs["fields"] if name != "device"]
    every = results.reference(records.attrs["experiment"], but="")
    wanted = set(records[fields].itertuples(index=False, name=None))
    cases = every.reindex(columns=fields)  # older records may lack a field
    theirs = every[[case in wanted for case in cases.itertuples(index=False, name=None)]]
    own, others = (_rows(some, columns, table) for some in (records, theirs))
    if own.empty or others.empty:
        machines = ", ".join(every["machine"].unique()) or "no machine"
        return Markdown(f"No reference machine has records of these cases; git keeps this experiment of {machines}.")
    names = keys.split() or fields
    rows = published.same_cases(own, [others.assign(source="records of " + others["machine"])], names)
    known = list(dict.fromkeys(rows["case"]))
    rows = rows.sort_values("case", key=lambda case: case.map(known.index), kind="stable", ignore_index=True)
    rows["source"] = rows["source"].replace("this report", HERE)
    return tables.show(rows, " ".join(["source", *names, columns]), "Beside the reference machines")


def _rows(records: pd.DataFrame, columns: str, table: Callable | None) -> pd.DataFrame:
    """What is to be shown of records, each row with its machine."""
    if table is None:
        return tidy.medians(records, *columns.split())
    found = [table(group).assign(machine=machine) for machine, group in records.groupby("machine", sort=False)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
