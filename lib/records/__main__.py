"""Lists, shows and exports records, `python -m lib.records`; changes none."""

import argparse
import ast
import itertools
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lib import cli, notebooks, validate
from lib.records import damaged, long_form, results
from lib.records.record import STATUSES, one_line
from lib.stats import digits, intervals

DESCRIPTION = """List, show and export the records of this machine's sweeps and those kept in git.

list    without a filter one line an experiment and machine; with one, one line a record, by its name
show    one record: its case, its environment, and the median, interval and number of samples of each metric
export  records in long form, one row a sample, as CSV or Parquet

--where is a condition as DataFrame.query takes it, on the fields of a case and on round, status, machine, hardware,
code, started, seconds and stale: names, texts, numbers, comparisons, in, and, or, not.

What was measured by hand in JupyterLab, round 0, is in none of them."""
EXAMPLES = (
    "list",
    "list --experiment attention --where \"variant == 'sdpa' and seq_len > 256\" --machine epyc-2c",
    "list --where \"status in ['oom', 'too_large']\"",
    "show attention/sdpa-512-64-8-causal-fp32-cpu.r1",
    "export attention.parquet --experiment attention",
    "export everything.csv",
)
OF_A_RECORD = ("round", "status", "machine", "hardware", "code", "started", "seconds", "stale")
COMPARING = (  # what a condition is made of; no call, attribute or arithmetic, so that nothing is executed
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop),
    *(ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
EXITS = {1: "nothing found", 2: cli.BAD_INPUT}


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    made = cli.parser("lib.records", DESCRIPTION, EXAMPLES, EXITS)
    commands = made.add_subparsers(dest="command", required=True, metavar="{list,show,export}")
    listing = commands.add_parser("list", help="what records there are")
    showing = commands.add_parser("show", help="one record, to be read")
    exporting = commands.add_parser("export", help="records in long form, for other tools")
    showing.add_argument("name", help="the name of a record, as `list` with a filter gives it")
    exporting.add_argument(
        "file", help=f"where to write; its ending, {' or '.join(long_form.WRITERS)}, says in which form"
    )
    showing.add_argument("--machine", action="append", default=[], help="whose record; by default the first with it")
    for command in (listing, exporting):
        command.add_argument("--experiment", action="append", default=[], help="of this experiment; may be repeated")
        command.add_argument("--machine", action="append", default=[], help="of this machine; may be repeated")
        command.add_argument("--where", default="", metavar="QUERY", help="that fulfil a condition")
    return made


def experiments() -> list[str]:
    """The experiments with records, those without a notebook last."""
    found = {file.parent.name for machine in results.machines() for file in results.files(machine)}
    named = [name for name in notebooks.experiments() if name in found]
    return named + sorted(found - set(named))


def select(given: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Return the records that the filters admit, by experiment, without those that have none.

    Raises ValueError for a filter that names no such experiment, machine or field, or is no condition."""
    machines, names = results.machines(), experiments()
    for field, values, known in (("machine", given.machine, machines), ("experiment", given.experiment, names)):
        for value in values if known else ():
            validate.choice(field, value, known)
    kept = given.machine or machines
    frames = {name: results.of_machines(name, kept, whole=True) for name in given.experiment or names}
    frames = _where(frames, given.where) if given.where and frames else frames
    return {name: frame for name, frame in frames.items() if len(frame)}


def _where(frames: Mapping[str, pd.DataFrame], query: str) -> dict[str, pd.DataFrame]:
    """Return the records that fulfil a condition, of the experiments whose records have all that it names."""
    condition, asked = _condition(query)
    columns = {name: [*frame.attrs["fields"], *OF_A_RECORD] for name, frame in frames.items()}
    for field in asked:
        validate.choice("where", field, dict.fromkeys(itertools.chain.from_iterable(columns.values())))
    having = {name: frame for name, frame in frames.items() if asked <= set(columns[name])}
    return {name: _fulfilling(frame, condition, sorted(asked)) for name, frame in having.items()}


def _condition(query: str) -> tuple[str, set[str]]:
    """Write a condition anew, and list its names. Raises ValueError for one that could do more than compare."""
    try:
        tree = ast.parse(query.strip(), mode="eval")
        condition = ast.unparse(tree)  # in one line and without comments, which pandas would take apart differently
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f'where: {validate.shown(query)} is no condition, such as "seq_len > 256"') from None
    if strange := next((type(node).__name__ for node in ast.walk(tree) if not isinstance(node, COMPARING)), ""):
        raise ValueError(f"where: {validate.shown(query)} may compare fields with values, without {strange}")
    return condition, {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _fulfilling(frame: pd.DataFrame, condition: str, asked: list[str]) -> pd.DataFrame:
    """Return the records for which a condition is true. Raises ValueError where it is neither true nor false."""
    try:
        kept = frame[asked].eval(condition, engine="python")  # as DataFrame.query does
    except Exception as error:  # of many kinds, for values that cannot be compared so
        raise ValueError(f"where: {one_line(str(error) or type(error).__name__)}") from None
    if not isinstance(kept, pd.Series) or kept.dtype != bool:
        raise ValueError(f"where: {validate.shown(condition)} is neither true nor false of a record")
    chosen = frame[kept]
    chosen.attrs = frame.attrs
    return chosen


def overview(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row an experiment and machine: its cases, its records, and how many of these ended how, or are stale."""
    rows = []
    for experiment, frame in frames.items():
        for machine, group in frame.groupby("machine", sort=False):
            cases = len(group.drop_duplicates(frame.attrs["fields"]))
            row = {"experiment": experiment, "machine": machine, "cases": cases, "records": len(group)}
            rows.append(row | group["status"].value_counts().to_dict() | {"stale": (group["stale"] != "").sum()})
    table = pd.DataFrame(rows).fillna(0)
    counts = [name for name in (*STATUSES, "stale") if name in table and table[name].any()]
    return table[["experiment", "machine", "cases", "records", *counts]].astype(dict.fromkeys(counts, int))


def listing(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row a record: its name, machine, status, the number and median of its times, and why it is stale, if any
    is."""
    rows = []
    for experiment, frame in frames.items():
        for _, record in frame.iterrows():
            called = results.called(experiment, record[frame.attrs["fields"]], record["round"])
            times = record.get("total_ms")
            median = intervals.median([times]) if isinstance(times, list) else None
            rows.append(
                {
                    "record": called, "machine": record["machine"], "status": record["status"],
                    "n": len(times) if median else "", "median, ms": digits.number(median.value) if median else "",
                    "stale": record["stale"],
                }
            )  # fmt: skip
    table = pd.DataFrame(rows)
    return table if table["stale"].any() else table.drop(columns="stale")


def find(record: str, machines: list[str]) -> Path:
    """The file of a record. Raises ValueError, with the nearest name, where no machine has one of this name."""
    files = {
        f"{file.parent.name}/{file.stem}": file for machine in reversed(machines) for file in results.files(machine)
    }
    if record not in files:
        raise ValueError(f"record: there is no {record!r}; the nearest is {validate.nearest(record, files)!r}")
    return files[record]


def shown(record: Mapping) -> str:
    """A record as text to be read."""
    called = results.called(record["experiment"], record["case"], record["round"])
    lines = [f"{called}: {record['status']}, measured {record['started']}", "", "case"]
    lines += [f"  {field}: {value}" for field, value in record["case"].items()]
    lines += ["", "environment", *(f"  {field}: {value}" for field, value in record["environment"].items())]
    lines += ["", "metrics: median (95% interval within one process), number of samples"]
    lines += [f"  {metric}: {_summary(value)}" for metric, value in record["metrics"].items()]
    return "\n".join(lines)


def _summary(value) -> str:
    if isinstance(value, dict):
        return f"a table of {len(next(iter(value.values()), []))} rows: {', '.join(value)}"
    if isinstance(value, list) and value and not any(isinstance(entry, str) for entry in value):
        found = intervals.median([value])
        return f"{digits.interval(found) if len(value) > 1 else digits.number(found.value)}, n = {len(value)}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _show(given: argparse.Namespace) -> str:
    known = results.machines()
    for machine in given.machine:
        validate.choice("machine", machine, known or ["no machine"])
    machines = given.machine or known
    return shown(results.read(find(given.name, machines))) if any(map(results.files, machines)) else ""


def _list(given: argparse.Namespace) -> str:
    frames = select(given)
    filtered = given.experiment or given.machine or given.where
    table = (listing if filtered else overview)(frames).to_string(index=False) if frames else ""
    return "\n".join(filter(None, [table, damaged.counted(damaged.losses())]))


def _export(given: argparse.Namespace) -> str:
    file = Path(given.file)
    validate.choice("file", file.suffix, long_form.WRITERS)
    frames = select(given)
    if not frames:
        return ""
    table = long_form.long(frames)
    long_form.write(table, file)
    return f"{file}: {len(table):,} rows of {sum(map(len, frames.values())):,} records"


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 where nothing is found, 2 for bad input."""
    given = parser().parse_args(arguments)
    try:
        text = {"list": _list, "show": _show, "export": _export}[given.command](given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not text:
        print("there are no such records; `python -m lib.records list` tells which there are", file=sys.stderr)
        return 1
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `| head` has what it wanted; Python would complain again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
