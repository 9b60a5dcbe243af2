"""Read what public write-ups of the assignment printed.

Each file of `reports/published` holds one kind of table; `sources.csv` says whose it is and, where known, its address.
`datasheets.csv` names its own sources. Numbers of other hardware are context: they neither confirm nor contradict ours.
"""

from collections.abc import Sequence

import pandas as pd

from lib.paths import PUBLISHED


def load(name: str) -> pd.DataFrame:
    """Return one of the tables, such as `adam`."""
    return pd.read_csv(PUBLISHED / f"{name}.csv")


def beside(own: pd.DataFrame, theirs: pd.DataFrame, on: Sequence[str], metric: str) -> pd.DataFrame:
    """Return the cases that both tables have, ours beside theirs.

    Columns: `on`, `here`, and one for each source and hardware. It is empty if they share no case."""
    ours = own[[*on, metric]].dropna(subset=[metric]).rename(columns={metric: "here"})
    hardware = theirs["hardware"] if "hardware" in theirs else pd.Series("hardware not stated", theirs.index)
    theirs = theirs.assign(whose=theirs["source"] + ", " + hardware.fillna("hardware not stated"))
    # a source tells a case once, so that the first is the only one
    wide = theirs.pivot_table(index=list(on), columns="whose", values=metric, aggfunc="first").reset_index()
    return ours.merge(wide, on=list(on)).rename_axis(columns=None)
