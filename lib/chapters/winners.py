"""Which value of one field takes the least time at each point of a grid, as a table and as a map; knows nothing of what
the field stands for.
"""

from collections import Counter

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from lib.records import baselines
from lib.report import compare, sentences, tables, tidy
from lib.report.headings import heading
from lib.report.plots import STYLE
from lib.report.sentences import NO_DATA, Statement
from lib.stats import digits
from lib.stats.intervals import Interval


def grid(records: pd.DataFrame, among: str, points: str, metric: str = "total_ms") -> pd.DataFrame:
    """One row a point, which is a value of each of the fields `points`: for each value of the field `among` a column
    with the `stats.Interval` of the metric; `best`, the value with the least and those not shown to take more;
    `relative`, the least time as a part of the reference's; and `hardware, codes, restless` as in
    `estimates.medians`."""
    names, rows = points.split(), []
    reference = baselines.differing(records.attrs["experiment"])[among]
    table = tidy.medians(records, metric)
    for point, cells in table[table[metric].notna()].groupby(names, sort=False) if len(table) else ():
        chosen = tidy.select(records, **dict(zip(names, point, strict=True)))
        order = compare.ranked(chosen, metric, among)
        against = compare.comparison(chosen, metric, {among: order[0]}, {among: reference})
        disturbed = cells["restless"].astype(bool).sum()
        rows.append(
            dict(zip(names, point, strict=True))
            | dict(zip(cells[among], cells[metric], strict=True))
            | {"best": _least(chosen, metric, among, order), "hardware": cells["hardware"].iloc[0]}
            | {"relative": 1.0 if order[0] == reference else against.ratio.value if against else None}
            | {"codes": frozenset().union(*cells["codes"])}
            | {"restless": f"{disturbed} of {len(cells)} cells" if disturbed else ""}
        )
    values = sorted(set(table[among]), key=tidy.ORDER.index)
    frame = pd.DataFrame(rows, columns=[*names, *values, "best", "relative", "hardware", "codes", "restless"])
    found = tidy.ordered(frame.astype({name: table[name].dtype for name in names}), points)
    found.attrs["records"] = sentences.names(records, {})
    return found


def _least(records: pd.DataFrame, metric: str, among: str, order: list) -> list:
    """The first in the order, and those that it is not shown to be faster than, one of as many rivals."""
    rivals = [(name, compare.comparison(records, metric, {among: order[0]}, {among: name})) for name in order[1:]]
    return order[:1] + [name for name, found in rivals if not found or found.verdict(len(rivals)) != "faster"]


def table(wins: pd.DataFrame, points: str, caption: str) -> tables.Table:
    """The rows of `grid`, one column a value, the best of each row in bold."""
    values = [name for name in wins if name in tidy.ORDER]
    shown = wins.assign(
        **{name: [_bold(row[name], name in row["best"]) for _, row in wins.iterrows()] for name in values}
    )
    return tables.show(shown, f"{points} {' '.join(values)}", caption)


def _bold(cell, best: bool):
    return tables.Bold(**vars(cell)) if best and isinstance(cell, Interval) else cell


def heat_map(ax: Axes, wins: pd.DataFrame, y: str, x: str) -> Axes:
    """The rows of `grid` as a map over two of its fields: in each cell the best and its time relative to the reference,
    the darker the less; a cell whose best is not the only one says with how many others it shares its place."""
    cells = wins[wins["relative"].notna()]
    if cells.empty:
        return ax
    labels = [_label(*row) for row in zip(cells["best"], cells["relative"], strict=True)]
    cells = cells.assign(relative=cells["relative"].astype(float), label=labels)
    wide = {name: cells.pivot_table(index=y, columns=x, values=name, aggfunc="first") for name in ("relative", "label")}
    with mpl.rc_context(STYLE):
        sns.heatmap(
            wide["relative"], vmin=0, vmax=1, cmap="cividis", annot=wide["label"].fillna(""), fmt="", cbar=False,
            annot_kws={"fontsize": 9}, ax=ax,
        )  # fmt: skip
        ax.set(xlabel=heading(x), ylabel=heading(y))
        ax.set_xticklabels([f"{value:,}" for value in wide["relative"].columns], rotation=0)
        ax.set_yticklabels([f"{value:,}" for value in wide["relative"].index], rotation=0)
        ax.tick_params(length=0)
    return ax


def _label(best: list[str], relative: float) -> str:
    shared = f" and {len(best) - 1} more" if len(best) > 1 else ""
    return f"{best[0].replace('_', chr(10), 1)}{shared}\n{digits.number(relative)}"


def tally(wins: pd.DataFrame) -> Statement:
    """At how many of the points each value is the only best."""
    if wins.empty:
        return Statement("Which is fastest where was not measured here.", NO_DATA, "no records")
    alone = Counter(best[0] for best in wins["best"] if len(best) == 1)
    parts = [f"{name} takes the least time at {digits.count(count)}" for name, count in alone.most_common()]
    shared = len(wins) - alone.total()
    parts += [f"at {digits.count(shared)} the data do not show which of several does"] if shared else []
    text = f"Of {digits.count(len(wins))} points measured, {'; '.join(parts)}."
    return Statement(
        text,
        "measured",
        "At each point the least against each other, as one of so many comparisons.",
        wins.attrs["records"],
    )
