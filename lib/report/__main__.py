"""Renders, checks and exports the report, and publishes what it rests on: `python -m lib.report`."""

import argparse
import sys

import pandas as pd

from lib import cli, validate
from lib.catalog import CATALOG
from lib.notebooks import NotebookFailed
from lib.records import results
from lib.report import compare, publish
from lib.report.document import export, page, page_diff
from lib.stats import digits

VERBS = {
    "latex": "print a table of the report, by its number, as LaTeX for the package booktabs",
    "pdf": "write report.pdf too, by the system's Chromium",
    "markdown": "write report.md and figures/*.svg too, for a repository's page",
    "verdicts": "print each case beside its baseline, with the verdict",
    "publish": "let what sweeps measured here replace the records in reports/reference, experiment by experiment",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of this command line."""
    made = cli.parser(
        "lib.report",
        "Render the report from records, measuring nothing; where they have not changed, nothing is done.",
        ("", "--machine epyc-2c", "--check", "latex 7", "markdown --machine epyc-2c", "verdicts"),
        {
            1: "a chapter failed, the stored report does not follow, or there is no Chromium to print with",
            2: cli.BAD_INPUT,
        },
    )
    made.add_argument("--check", action="store_true", help="write nothing; fail unless the stored report follows")
    verbs = made.add_subparsers(dest="verb", metavar="VERB")
    for verb, what in VERBS.items():
        verbs.add_parser(verb, help=what, description=what)
    verbs.choices["latex"].add_argument("number", type=int, help="the number that the report gives the table")
    for one in (made, *(one for verb, one in verbs.choices.items() if verb != "publish")):
        absent = {} if one is made else {"default": argparse.SUPPRESS}  # an option may stand before the verb or after
        one.add_argument(
            "--machine", help="whose records; by default the latest measured here, else the first in git", **absent
        )
        one.add_argument(
            "--machines", nargs="*", help="those that stand side by side in their chapter", **{"default": []} | absent
        )
    return made


def chosen(given: argparse.Namespace, stored: list[str]) -> tuple[str, str]:
    """Return the machine that is meant and those beside it, by default those of a stored page, else the latest.

    Raises ValueError for one that has no records.
    """
    machines = results.machines()
    if not machines:
        raise ValueError("machine: there are no records; `make report` measures some")
    machine = [*stored, *machines][0] if given.machine is None else given.machine
    validate.choice("machine", machine, machines)
    for name in given.machines:
        validate.choice("machines", name, machines)
    return machine, " ".join(given.machines or stored[1:])


def verdicts(machine: str) -> str:
    """Return a row for each case of a machine that has a baseline, as the chapters judge it."""
    found = []
    for name in (name for name, experiment in CATALOG.items() if experiment.baseline):
        records = results.load(name, machine)
        for _, row in compare.against_baselines(records).iterrows():
            found.append(
                {
                    "experiment": name,
                    "case": results.name(row[records.attrs["fields"]]),
                    "baseline": row["baseline"],
                    "time relative to it": digits.interval(row["ratio"]),
                    "verdict": row["verdict"],
                    "by": row["by"],
                }
            )
    return pd.DataFrame(found).to_string(index=False) if found else f"{machine} has no case beside its baseline"


def _run(given: argparse.Namespace) -> int:
    """Do what a verb asks; return 1 where the stored report does not follow."""
    if given.verb == "publish":
        print(*publish.everything(), sep="\n")
        return 0
    target = page.page()
    if given.check and not target.exists():
        raise FileNotFoundError(f"{target}: there is no report to check; `make render` writes one")
    machine, beside = chosen(given, page_diff.machines(target.read_text()) if given.check else [])
    if given.verb == "verdicts":
        print(verdicts(machine))
        return 0
    if given.check and (found := page.difference(target, machine, beside)):
        print(f"{found}\n{target} does not follow from the records; without it, `make render` writes it anew")
        return 1
    current = given.check or page.up_to_date(target, page.inputs(machine, beside))
    if not current:
        page.render(machine, target, beside)
    if given.verb == "latex":
        print(export.latex(machine, target, given.number))
    elif given.verb == "pdf":
        print(export.pdf(target))
    elif given.verb == "markdown":
        print(export.as_markdown(machine, target))
    else:
        print(f"{target} follows from the records as they are" if current else target)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, 1 where something failed or does not follow, 2 for bad input."""
    given = parser().parse_args(arguments)
    try:
        return _run(given)
    except (ValueError, NotebookFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


if __name__ == "__main__":
    sys.exit(main())
