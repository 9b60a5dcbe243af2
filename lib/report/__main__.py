"""Render, check, export and publish the report: `python -m lib.report`."""

import argparse
import sys

from lib import cli, validate
from lib.notebooks import NotebookFailed
from lib.records import results
from lib.report import publish, verdicts
from lib.report.document import export, page, page_diff

VERBS = {
    "latex": "print one table of the report, by its number, as LaTeX for the package booktabs",
    "pdf": "also write report.pdf, printed by Chromium",
    "markdown": "also write report.md and figures/*.svg, for a repository's page",
    "verdicts": "list the comparisons with baselines by verdict, and write unclear.yaml, a sweep of the unclear ones",
    "publish": "copy the records of sweeps to reports/reference, replacing those of the same experiments",
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of this command line."""
    made = cli.parser(
        "lib.report",
        "Render the report from existing records. If nothing has changed, do nothing.",
        ("", "--machine xeon-2c", "--check", "latex 7", "markdown --machine xeon-2c", "verdicts"),
        {
            1: "a chapter failed, the stored report does not match its records, or Chromium is missing",
            2: cli.BAD_INPUT,
        },
    )
    made.add_argument("--check", action="store_true", help="write nothing; fail unless the report matches its records")
    verbs = made.add_subparsers(dest="verb", metavar="VERB")
    for verb, what in VERBS.items():
        verbs.add_parser(verb, help=what, description=what)
    verbs.choices["latex"].add_argument("number", type=int, help="number of the table in the report")
    for one in (made, *(one for verb, one in verbs.choices.items() if verb != "publish")):
        absent = {} if one is made else {"default": argparse.SUPPRESS}  # an option may stand before the verb or after
        one.add_argument(
            "--machine", help="machine to report on; default: the latest measured here, else the first in git", **absent
        )
        one.add_argument(
            "--machines", nargs="*", help="machines to compare in the chapter on machines", **{"default": []} | absent
        )
    return made


def chosen(given: argparse.Namespace, stored: list[str]) -> tuple[str, str]:
    """Return the machine to report on, and those beside it, separated by spaces.

    Defaults are those of a stored page, or else the latest machine. Raises ValueError for one without records."""
    machines = results.machines()
    if not machines:
        raise ValueError("machine: no records found; `make report` measures some")
    machine = [*stored, *machines][0] if given.machine is None else given.machine
    validate.choice("machine", machine, machines)
    for name in given.machines:
        validate.choice("machines", name, machines)
    return machine, " ".join(given.machines or stored[1:])


def _run(given: argparse.Namespace) -> int:
    """Run a verb; return 1 if a chapter failed or the stored report does not match its records."""
    if given.verb == "publish":
        print(*publish.publish_all(), sep="\n")
        return 0
    target = page.page()
    if given.check and not target.exists():
        raise FileNotFoundError(f"{target}: no report to check; `make render` writes one")
    machine, beside = chosen(given, page_diff.machines(target.read_text()) if given.check else [])
    if given.verb == "verdicts":
        found = verdicts.tables(machine)
        print(verdicts.listing(found), verdicts.write_unclear(machine, found), sep="\n\n")
        return 0
    if given.check and (found := page.difference(target, machine, beside)):
        print(f"{found}\n{target} does not match its records; `make render` without CHECK updates it")
        return 1
    current = given.check or page.up_to_date(target, page.inputs(machine, beside))
    failed = {} if current else page.render(machine, target, beside)
    if given.verb == "latex":
        print(export.latex(machine, target, given.number))
    elif given.verb == "pdf":
        print(export.pdf(target))
    elif given.verb == "markdown":
        print(export.as_markdown(machine, target))
    else:
        print(f"{target} is up to date" if current else target)
    for file, reason in failed.items():
        print(f"{file}: {reason}", file=sys.stderr)
    return int(bool(failed))


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, 1 for a failure, or 2 for bad input."""
    given = parser().parse_args(arguments)
    try:
        return _run(given)
    except (ValueError, NotebookFailed, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1


if __name__ == "__main__":
    sys.exit(main())
