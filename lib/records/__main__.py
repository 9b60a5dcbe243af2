"""List, show and export records with `python -m lib.records`, without changing any."""

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

list    counts the records of each experiment and machine; with a filter, lists each record by name
show    shows one record: its case, its environment, and each metric's median, interval and number of samples
export  writes records in long form, one row per sample, as CSV or Parquet

--where takes a condition as in DataFrame.query, on the fields of a case and on round, status, machine, hardware,
code, started, seconds and stale. It may use names, texts, numbers, comparisons, in, and, or, not.

Records measured by hand in JupyterLab (round 0) are left out."""
EXAMPLES = (
    "list",
    "list --experiment attention --where \"variant == 'sdpa' and seq_len > 256\" --machine xeon-2c",
    "list --where \"status in ['oom', 'too_large']\"",
    "show attention/sdpa-512-64-8-causal-fp32-cpu.r1",
    "export attention.parquet --experiment attention",
    "export everything.csv",
)
OF_A_RECORD = ("round", "status", "machine", "hardware", "code", "started", "seconds", "stale")
COMPARING = (  # the only nodes in a condition: without calls and attributes, nothing can be executed
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.cmpop),
    *(ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple),
)
EXITS = {1: "no record found", 2: cli.BAD_INPUT}


def parser() -> argparse.ArgumentParser:
    """Build the parser of this command line."""
    made = cli.parser("lib.records", DESCRIPTION, EXAMPLES, EXITS)
    commands = made.add_subparsers(dest="command", required=True, metavar="{list,show,export}")
    listing = commands.add_parser("list", help="list or count records")
    showing = commands.add_parser("show", help="show one record")
    exporting = commands.add_parser("export", help="export records in long form")
    showing.add_argument("name", help="name of a record, as `list` with a filter shows it")
    exporting.add_argument("file", help=f"file to write; its ending, {' or '.join(long_form.WRITERS)}, sets the format")
    showing.add_argument("--machine", action="append", default=[], help="its machine; default: the first that has it")
    for command in (listing, exporting):
        command.add_argument("--experiment", action="append", default=[], help="only this experiment; may be repeated")
        command.add_argument("--machine", action="append", default=[], help="only this machine; may be repeated")
        command.add_argument("--where", default="", metavar="QUERY", help="only records that meet this condition")
    return made


def experiments() -> list[str]:
    """List the experiments with records; those without a notebook come last."""
    found = {file.parent.name for machine in results.machines() for file in results.files(machine)}
    named = [name for name in notebooks.experiments() if name in found]
    return named + sorted(found - set(named))


def select(given: argparse.Namespace) -> dict[str, pd.DataFrame]:
    """Return the records that pass the filters, by experiment; experiments without any are left out.

    Raises ValueError for an unknown experiment, machine or field, and for an invalid condition."""
    machines, names = results.machines(), experiments()
    for field, values, valid in (("machine", given.machine, machines), ("experiment", given.experiment, names)):
        for value in values if valid else ():
            validate.choice(field, value, valid)
    kept = given.machine or machines
    frames = {name: results.of_machines(name, kept, whole=True) for name in given.experiment or names}
    frames = _filter(frames, given.where) if given.where and frames else frames
    return {name: frame for name, frame in frames.items() if len(frame)}


def _filter(frames: Mapping[str, pd.DataFrame], query: str) -> dict[str, pd.DataFrame]:
    """Return the records that meet a condition, of the experiments that have all its fields."""
    condition, asked = _parse_condition(query)
    columns = {name: [*frame.fields, *OF_A_RECORD] for name, frame in frames.items()}
    for field in asked:
        validate.choice("where", field, dict.fromkeys(itertools.chain.from_iterable(columns.values())))
    having = {name: frame for name, frame in frames.items() if asked <= set(columns[name])}
    return {name: _matching(frame, condition, sorted(asked)) for name, frame in having.items()}


def _parse_condition(query: str) -> tuple[str, set[str]]:
    """Normalize a condition and list its names. Raises ValueError unless it only compares."""
    try:
        tree = ast.parse(query.strip(), mode="eval")
        condition = ast.unparse(tree)  # one line without comments, which pandas would parse differently
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f'where: got {validate.shown(query)}, expected a condition such as "seq_len > 256"') from None
    if strange := next((type(node).__name__ for node in ast.walk(tree) if not isinstance(node, COMPARING)), ""):
        raise ValueError(f"where: got {validate.shown(query)}, expected only comparisons with values, no {strange}")
    return condition, {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _matching(frame: pd.DataFrame, condition: str, asked: list[str]) -> pd.DataFrame:
    """Return the records that meet a condition. Raises ValueError unless it is true or false for each."""
    try:
        kept = frame[asked].eval(condition, engine="python")  # as DataFrame.query does
    except Exception as error:  # of many kinds, when values cannot be compared
        raise ValueError(f"where: {one_line(str(error) or type(error).__name__)}") from None
    if not isinstance(kept, pd.Series) or kept.dtype != bool:
        raise ValueError(f"where: got {validate.shown(condition)}, expected a condition that is true or false")
    return frame[kept]


def overview(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Count cases, records, statuses and stale records of each experiment and machine."""
    rows = []
    for experiment, frame in frames.items():
        for machine, group in frame.groupby("machine", sort=False):
            cases = len(group.drop_duplicates(frame.fields))
            row = {"experiment": experiment, "machine": machine, "cases": cases, "records": len(group)}
            rows.append(row | group["status"].value_counts().to_dict() | {"stale": (group["stale"] != "").sum()})
    table = pd.DataFrame(rows).fillna(0)
    counts = [name for name in (*STATUSES, "stale") if name in table and table[name].any()]
    return table[["experiment", "machine", "cases", "records", *counts]].astype(dict.fromkeys(counts, int))


def listing(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tabulate records, one per row: name, machine, status, samples, median time and why any is stale."""
    rows = []
    for experiment, frame in frames.items():
        for _, record in frame.iterrows():
            called = results.called(experiment, record[frame.fields], record["round"])
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
    """Return the file of a record. Raises ValueError, with the nearest name, if it is missing."""
    files = {
        f"{file.parent.name}/{file.stem}": file for machine in reversed(machines) for file in results.files(machine)
    }
    if record not in files:
        raise ValueError(f"record: got {record!r}, expected a name (nearest: {validate.nearest(record, files)!r})")
    return files[record]


def as_text(record: Mapping) -> str:
    """Describe a record in plain text."""
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
    every = results.machines()
    for machine in given.machine:
        validate.choice("machine", machine, every or ["no machine"])
    machines = given.machine or every
    return as_text(results.read(find(given.name, machines))) if any(map(results.files, machines)) else ""


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
    """Run the command line; return 0, 1 if no record is found, or 2 for bad input."""
    given = parser().parse_args(arguments)
    try:
        text = {"list": _list, "show": _show, "export": _export}[given.command](given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not text:
        print("no record found; `python -m lib.records list` shows which records there are", file=sys.stderr)
        return 1
    try:
        print(text, flush=True)
    except BrokenPipeError:  # `| head` has read enough; without this, Python would complain again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


if __name__ == "__main__":
    sys.exit(main())
