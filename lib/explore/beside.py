"""Show records measured by hand beside the reference machines' records of the same cases."""

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
    """Show these records and, below each case, the reference machines' records of it.

    Columns are medians of metrics, or those of `table(records)`. Rows match by the fields of the case except `device`,
    or by `keys`. Returns a sentence if none match, or if the records are of a sweep, which the report compares."""
    if set(records["round"]) - {results.BY_HAND}:
        return Markdown("The report shows the records of a sweep beside those of other machines.")
    fields = [name for name in records.fields if name != "device"]
    every = results.reference(records.experiment, but="")
    wanted = set(records[fields].itertuples(index=False, name=None))
    cases = every.reindex(columns=fields)  # older records may lack a field
    theirs = every[[case in wanted for case in cases.itertuples(index=False, name=None)]]
    own, others = (_rows(some, columns, table) for some in (records, theirs))
    if own.empty or others.empty:
        machines = ", ".join(every["machine"].unique()) or "no machine"
        return Markdown(f"No reference machine has records of these cases. Git keeps this experiment from {machines}.")
    names = keys.split() or fields
    rows = published.same_cases(own, [others.assign(source="records of " + others["machine"])], names)
    order = list(dict.fromkeys(rows["case"]))
    rows = rows.sort_values("case", key=lambda case: case.map(order.index), kind="stable", ignore_index=True)
    rows["source"] = rows["source"].replace("this report", HERE)
    return tables.show(rows, " ".join(["source", *names, columns]), "Beside the reference machines")


def _rows(records: pd.DataFrame, columns: str, table: Callable | None) -> pd.DataFrame:
    """Return the rows to show of records, each with its machine."""
    if table is None:
        return tidy.medians(records, *columns.split())
    found = [table(group).assign(machine=machine) for machine, group in records.groupby("machine", sort=False)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()
