"""Saves records one after the other, for tests to kill, to starve of space or to refuse.

`python tests/support/storing.py MOST` prints the number of each that is on disk; 74 is its exit code where one cannot
be written, as that of a sweep.
"""

import itertools
import sys
from collections.abc import Callable

from lib.records import atomic, results

SAMPLES = 2_000  # of a record, which makes it large enough for a kill to come while it is written


def save(number: int) -> None:
    """Save the record of a number."""
    results.save(
        experiment="attention", case={"variant": "naive", "seq_len": number}, round=1, status="ok",
        metrics={"total_ms": [number + i / 7 for i in range(1, SAMPLES)]},
        environment={"hardware": "a test", "machine": "test-1c"}, code="0" * 16, started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
    )  # fmt: skip


def loop(first: int, most: int | None, saved: Callable[[int], None]) -> int:
    """Save one after the other, at most so many, and tell of each; returns the exit code."""
    try:
        for number in itertools.count(first) if most is None else range(first, first + most):
            save(number)
            saved(number)
    except atomic.CannotWrite as error:
        print(error, file=sys.stderr)
        return 74
    return 0


if __name__ == "__main__":
    sys.exit(loop(1, int(sys.argv[1]), lambda number: print(number, flush=True)))
