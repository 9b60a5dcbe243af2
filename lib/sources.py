"""Digest what the page is rendered from.

A page from the same sources need not be rendered again: `python -m lib.sources` exits with 0 if nothing is new, with 1
otherwise. It stands outside of `lib.report`, which takes seconds to load. What counts is the content of files, not
their times: records that come from another box are older than the page.
"""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lib import notebooks, paths, records

# the page names the digest of its sources in its head, with attributes in the order in which nbconvert sorts them
NAMED = re.compile(r'<meta content="([0-9a-f]+)" name="sources"')
HEAD = 2000  # characters at the begin of the page, among which the digest stands


def digest(machines: Sequence[str]) -> str:
    """Digest what a page about machines is rendered from, in 64 hex digits.

    It covers their records, the notebooks, all of lib, the template, the public write-ups, and the versions of Python
    and of packages."""
    lines = [sys.version, *machines]
    for folder, pattern in _folders(machines):
        # a notebook's checkpoints are a folder
        for file in filter(Path.is_file, sorted(folder.glob(pattern))):
            content = hashlib.sha256(file.read_bytes()).hexdigest()
            lines.append(f"{file.relative_to(folder)} {content}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def page() -> Path:
    """Return the report's file, beside the records."""
    return paths.results().parent / "report.html"


def of_page(file: Path) -> str:
    """Return the digest that a page names, empty if it has failed or is missing."""
    if not file.exists():
        return ""
    with file.open(encoding="utf-8") as page:
        named = NAMED.search(page.read(HEAD))
    return named[1] if named else ""


def _folders(machines: Sequence[str]) -> Iterator[tuple[Path, str]]:
    """Yield folders, each with the pattern of the files that count."""
    # the case classes too: measuring code says which records are stale
    yield paths.ROOT, "lib/**/*.py"
    yield paths.ROOT, "examples/*.py"
    yield paths.ROOT, "constraints.txt"
    yield notebooks.NOTEBOOKS, "*.*"
    yield notebooks.SWEEPS, "*.yaml"
    yield paths.REPORTS / "template", "*.*"
    yield paths.PUBLISHED, "*.*"
    for machine in machines:
        if records.is_in_git(machine):
            yield records.REFERENCE / machine, "*.jsonl"
        else:
            yield paths.results() / machine, f"*/{records.NOT_BY_HAND}"


def main() -> int:
    """Return 0 if the page tells of the latest machine and nothing is new, else 1."""
    latest = records.machines()[:1]
    if not latest or of_page(page()) != digest(latest):
        return 1
    print(f"nothing is new since this page was rendered: {page()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
