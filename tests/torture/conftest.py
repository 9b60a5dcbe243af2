"""Faults by the dozen, in `make torture` alone; each test counts what it injects and what is lost."""

import os
from contextlib import contextmanager

import pytest


def pytest_ignore_collect(collection_path, config):
    """Leave these tests to `make torture`."""
    return None if os.environ.get("TORTURE") else True


class Tally:
    """Faults of one kind: how many were injected, and why some were lost."""

    def __init__(self):
        self.injected = 0
        self.lost = []

    @contextmanager
    def fault(self):
        """Inject one fault; it is lost if an assertion of the block fails, and the test goes on."""
        self.injected += 1
        try:
            yield
        except AssertionError as error:
            self.lost.append(str(error))


@pytest.fixture
def tally(request):
    """Count faults; any that is lost fails the test at its end."""
    tally = Tally()
    yield tally
    request.node.user_properties.append(("faults", (request.node.name, tally.injected, len(tally.lost))))
    assert tally.injected
    assert not tally.lost, "\n".join([f"{len(tally.lost)} of {tally.injected} lost:", *dict.fromkeys(tally.lost)])


def pytest_terminal_summary(terminalreporter):
    rows = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, value in getattr(report, "user_properties", []):
                if key == "faults":
                    rows[value[0]] = value
    if rows:
        terminalreporter.section("faults: injected, lost")
        for name, injected, lost in sorted(rows.values()):
            terminalreporter.write_line(f"{injected:5d} {lost:5d}  {name}")
        injected = sum(row[1] for row in rows.values())
        lost = sum(row[2] for row in rows.values())
        terminalreporter.write_line(f"{injected:5d} {lost:5d}  together")
