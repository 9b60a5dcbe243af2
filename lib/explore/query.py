"""Draw, list and save what a query picks from the records, without widgets."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from lib import notebooks, validate
from lib.records import baselines, long_form, results
from lib.report import hypotheses, plots, tidy
from lib.report.headings import heading, is_quantity
from lib.stats.intervals import Interval

MACHINE = "machine"  # can be an axis, as the fields of a case can
PALETTE = (plots.INK, plots.BLUE, plots.ORANGE, plots.GREEN, plots.PURPLE, plots.SKY)
LEADING = ("total_ms", "first_total_ms", "peak_mib")  # the metrics of a whole iteration


@dataclass(frozen=True)
class Query:
    """Choose records, and draw `y` against `x` with a line for each value of `line`.

    `where` keeps cases whose fields have one of the given values. Raises ValueError for a name that is unknown or was
    never measured, with the nearest valid one."""

    experiment: str
    machines: tuple[str, ...]
    x: str
    y: str
    line: str
    where: Mapping[str, tuple] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        object.__setattr__(self, "machines", _as_tuple(self.machines))
        object.__setattr__(self, "where", {name: _as_tuple(values) for name, values in self.where.items()})
        validate.choice("experiment", self.experiment, notebooks.experiments())
        if not self.machines:
            raise ValueError("machines: got none, expected one with records; `make report` measures this machine")
        for name in self.machines:
            validate.choice("machines", name, results.machines() or ["no machine"])
        records = self.records()
        for name, axis in (("x", self.x), ("line", self.line)):
            validate.choice(name, axis, axes(self.experiment))
        if self.x == self.line:
            raise ValueError(f"line: got {self.line!r}, expected another field than the x axis")
        validate.choice("y", self.y, metrics(records) or ["no metric"])
        for name, values in self.where.items():
            validate.choice("where", name, notebooks.fields(self.experiment))
            for value in values:
                _check_value(f"where.{name}", value, options(records, name))

    def records(self) -> pd.DataFrame:
        """Return all records of the experiment on the machines, before `where` filters them."""
        return results.of_machines(self.experiment, list(self.machines))

    @property
    def slug(self) -> str:
        """Return a name for its file: the axes, and a digest of the whole query."""
        digest = hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9]+", "-", f"{self.experiment}-{self.y}-by-{self.x}-{self.line}-{digest}")


def _as_tuple(values) -> tuple:
    return tuple(values) if isinstance(values, list | tuple) else (values,)


def _check_value(name: str, value, allowed: list) -> None:
    """Raise ValueError unless the value is an allowed one of the same type: True is not 1."""
    if (type(value), value) not in [(type(other), other) for other in allowed]:
        listed = ", ".join(map(repr, allowed))
        nearest = validate.nearest(value, map(str, allowed)) if allowed else "none"
        raise ValueError(f"{name}: got {value!r}, expected one of {listed} (nearest: {nearest})")


def axes(experiment: str) -> list[str]:
    """List what can be `x` or `line`: the fields of a case, and the machine."""
    return [*notebooks.fields(experiment), MACHINE]


def metrics(records: pd.DataFrame) -> list[str]:
    """List what can be `y`: numeric metrics with a heading, whole iterations first."""
    other = {*long_form.OF_THE_RECORD, *records.fields}
    names = [name for name in records if is_quantity(name) and name not in other]
    names = [name for name in names if records[name].map(_is_number).any()]
    return [name for name in LEADING if name in names] + [name for name in names if name not in LEADING]


def _is_number(value) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return isinstance(first, int | float) and not isinstance(first, bool) and not math.isnan(first)


def options(records: pd.DataFrame, name: str) -> list:
    """List the values that a field has in the records, in the order of the report."""
    values = records[[name]].drop_duplicates().sort_values(name, key=tidy.in_order)[name]
    return values.tolist()


def experiments(machines: list[str]) -> list[str]:
    """List the experiments that these machines have metrics of."""
    return [name for name in notebooks.experiments() if metrics(results.of_machines(name, machines))]


def first(experiment: str, machines: tuple[str, ...] = (), **chosen: str) -> Query:
    """Return a query to begin with, of these machines or of the first with records.

    By default `x` is the numeric field with most values, `y` the metric measured most often, and `line` the machine if
    there are several, else the field with most values of those in which variants differ. Every other field has its most
    frequent value. Raises ValueError as `Query` does."""
    validate.choice("experiment", experiment, notebooks.experiments())
    machines = machines or tuple(results.machines()[:1])
    records = results.of_machines(experiment, list(machines))
    fields = records.fields
    counts = {name: len(options(records, name)) for name in fields}
    numbers = [name for name in fields if name != chosen.get("line") and pd.api.types.is_numeric_dtype(records[name])]
    numbers = [name for name in numbers if not pd.api.types.is_bool_dtype(records[name])]
    x = chosen.get("x") or max(numbers or fields, key=counts.get)
    variants = sorted(baselines.differing(experiment), key=lambda name: -counts.get(name, 0))
    varied = [name for name in (*variants, *fields) if counts.get(name, 0) > 1]
    several = [MACHINE] if len(machines) > 1 else []
    line = chosen.get("line") or next(name for name in (*several, *varied, *fields, MACHINE) if name != x)
    y = chosen.get("y") or max(metrics(records), key=lambda y: records[y].map(_is_number).sum(), default="total_ms")
    where, left = {}, (records[records[y].notna()] if y in records else records).drop_duplicates(fields)
    for name in fields:
        if name not in (x, line) and counts[name] > 1 and len(left):
            most = max(options(left, name), key=left[name].tolist().count)
            where[name], left = (most,), left[left[name] == most]
    return Query(experiment, machines, x, y, line, where)


def table(query: Query) -> pd.DataFrame:
    """Return the table of `tidy.medians`, with a row for each case and machine.

    The metric is an `Interval` or None; `label` distinguishes the lines, and `colour` is that of the line."""
    where = {name: list(values) for name, values in query.where.items()}
    medians = tidy.medians(tidy.select(query.records(), **where), query.y)
    medians[query.y] = [
        found if isinstance(found, Interval) else hypotheses.counted(found if _is_number(found) else None)
        for found in medians[query.y]
    ]
    rest = [name for name in axes(query.experiment) if name not in (query.x, query.line)]
    labelled = tidy.labelled(medians, [query.line, *rest], but=query.x)
    values = options(medians, query.line)
    usual = {value: plots.COLOURS[value] for value in values if plots.COLOURS.get(value) in PALETTE}
    free = [colour for colour in PALETTE if colour not in usual.values()] or PALETTE
    others = {value: free[i % len(free)] for i, value in enumerate(v for v in values if v not in usual)}
    return labelled.assign(colour=medians[query.line].map(usual | others))


def draw(query: Query) -> Axes:
    """Draw lines on log axes if x has several values and all are positive; else bars."""
    rows = table(query)
    drawn = rows[rows[query.y].notna()]
    if _on_log_axes(drawn, query):
        return plots.lines(*plots.axes(), drawn, query.x, query.y, "label")
    return bars(drawn, query)


def _on_log_axes(drawn: pd.DataFrame, query: Query) -> bool:
    x = drawn[query.x]
    if not pd.api.types.is_numeric_dtype(x) or pd.api.types.is_bool_dtype(x) or x.nunique() < 2:
        return False
    return bool((x > 0).all()) and all(found.value > 0 for found in drawn[query.y])


def bars(drawn: pd.DataFrame, query: Query) -> Axes:
    """Draw a bar for each row of `table`, with its interval and a distinct label."""
    rest = [name for name in axes(query.experiment) if name not in (query.x, query.line)]
    named = tidy.labelled(drawn, [query.line, query.x, *rest])
    (ax,) = plots.axes(height=1.2 + 0.28 * max(1, len(named)))
    found = list(named[query.y])
    ax.barh(range(len(named)), [i.value for i in found], color=list(named["colour"]), height=0.62)
    centres, ends = [i.value for i in found], plots.errors(found)
    ax.errorbar(centres, range(len(named)), xerr=ends, fmt="none", ecolor=plots.QUIET, capsize=2.5)
    ax.set_yticks(range(len(named)), named["label"])
    ax.set(xlabel=heading(query.y))
    ax.invert_yaxis()
    ax.set_axisbelow(True)
    ax.grid(axis="x")
    return ax


def figure(query: Query) -> plots.Figure:
    """Return the figure of a query with a caption, as the report shows it."""
    picked = [f"{heading(name)} {', '.join(map(str, values))}" for name, values in query.where.items()]
    what = f"{heading(query.y)}, by {heading(query.x)} and {heading(query.line)}, of {query.experiment}"
    caption = "; ".join([what, *picked]) + "."
    return plots.show(draw(query), caption, f"{heading(query.y)} of each case, as the table has it", table(query))


def listing(query: Query) -> pd.DataFrame:
    """Return the rows of `table` in numbers, for an interactive table.

    Each has the fields, the machine, the metric's median with the ends of its interval, the numbers of samples and
    rounds, and why a median is missing."""
    rows = table(query)
    found = rows[query.y]
    numbers = {
        heading(query.y): [i.value if i else None for i in found],
        "from": [i.low if i else None for i in found],
        "to": [i.high if i else None for i in found],
        "n": [i.n if i else 0 for i in found],
        "rounds": [i.rounds if i else 0 for i in found],
    }
    return rows[axes(query.experiment)].assign(**numbers, noisy=rows["noisy"], why=rows["why"])


def folder() -> Path:
    """Return the folder for figures of queries: `figures` beside the records."""
    return results.folder().parent / "figures"


def save(query: Query) -> Path:
    """Write the figure as a standalone SVG, with its rows as CSV; return the SVG's path."""
    file = folder() / f"explore-{query.slug}.svg"
    file.parent.mkdir(parents=True, exist_ok=True)
    plots.save(draw(query), file)
    listing(query).to_csv(file.with_suffix(".csv"), index=False)
    return file
