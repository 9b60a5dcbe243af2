"""A case that fails, hangs, dies or takes all memory costs itself alone: the others are measured, and the exit code and a
row or a line say what happened."""

import pytest
from faults import count

ROWS = {"kill": "crashed", "os_exit": "crashed"}


def one_bad(behaviour, device="cpu", **options):
    """A sweep file of one kernel of five cases, of which one behaves so."""
    top = "".join(f"{name}: {value}\n" for name, value in options.items())
    return f"{top}cheap: {{number: [1, 2, 3, 4, 5], behaviour: {behaviour}, at: 3, pause_ms: 5, device: {device}}}"


def others_are_ok(sweep, row):
    expected = dict.fromkeys((1, 2, 4, 5), "ok") | ({3: row} if row else {})
    assert sweep.statuses() == expected


def lines(text):
    """What stands in standard error beside the bar."""
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip() and " gone" not in line]


@pytest.mark.faults(9, "a notebook that fails")
@pytest.mark.parametrize("behaviour", ["raise", "exit", "os_exit", "kill"])
def test_a_notebook_that_raises_leaves_or_loses_its_kernel_is_a_failure_in_one_line_and_the_others_are_measured(
    sweep_of, tally, behaviour
):
    for _ in range(count(1, 5)):
        with tally.injection():
            sweep = sweep_of(one_bad(behaviour) + "\n  - {number: [6, 7]}")
            done = sweep.run()
            assert done.code == 1, f"{behaviour}: exit {done.code}, {done.err[-500:]}"
            assert "Traceback" not in done.err
            assert len(lines(done.err)) == 1, done.err
            sweep.none_left(1)
