"""Judge the records of `lib.experiments.calibration` against fixed limits."""

import argparse
import math
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd

from lib import cli, validate
from lib.records import results
from lib.report import tidy
from lib.stats import comparisons, digits, intervals, steady_state
from lib.stats.comparisons import FASTER, PAIRS, SLOWER, UNCLEAR, Measured
from lib.stats.intervals import ACROSS, ENOUGH_ROUNDS, INSIDE, Interval

FEWEST = 50  # comparisons of programs of which a share is judged
NO_FAULT = "no fault"  # whatever was found: one process alone cannot tell it from a difference
HOLDS = {True: "yes", False: "no", None: UNCLEAR, NO_FAULT: ""}
Finding = tuple[str, str, str, bool | str | None]  # what was tried and found, what must hold, and a key of HOLDS


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row per finding of the calibration; stale records are left out.

    `holds` is yes, no, or unclear where the data do not decide. `quiet` is the noise probe's verdict on the
    machine."""
    records = tidy.current(records)
    rows = []
    for check, judge in FINDINGS.items() if len(records) else ():
        rounds = [record for _, record in records[records["check"] == check].iterrows()]
        quiet = all(steady_state.quiet(record["noise_probe_ms"], record["quietest_ms"]) for record in rounds)
        for tried, found, must_hold, holds in judge(*rounds) if rounds else ():
            rows.append((tried, found, must_hold, HOLDS[holds], HOLDS[quiet]))
    return pd.DataFrame(rows, columns=["tried", "found", "must hold", "holds", "quiet"])


def _judge_spin(record: pd.Series) -> Iterator[Finding]:
    for known, median in zip(record["known_ms"], record["median_ms"], strict=True):
        wrong_us, allowed_us = 1e3 * (median - known), 2.5 + 2 * known
        tried, must_hold = f"a wait of {digits.exact(known)} ms", f"at most {allowed_us:.1f} µs"
        yield tried, f"{wrong_us:+.2f} µs".replace("-", "−"), must_hold, abs(wrong_us) <= allowed_us


def _within(found: Interval, most: float, least: float = -math.inf) -> bool | None:
    """Return True if an interval is within limits, False if beyond, None if undecided."""
    return {INSIDE: True, ACROSS: None}.get(found.against((least, most)), False)


def _judge_timer(record: pd.Series) -> Iterator[Finding]:
    found = comparisons.paired(record["ours_ms"], record["timer_ms"]).ratio
    tried = "a matrix product by torch.utils.benchmark: our median to its median"
    yield tried, digits.interval(found), "0.98 to 1.02", _within(found, 1.02, 1 / 1.02)


def _judge_overhead(record: pd.Series) -> Iterator[Finding]:
    found = comparisons.paired(record["marked_ms"], record["plain_ms"]).ratio
    tried = "a step of a millisecond with its marks to one without"
    yield tried, digits.interval(found), "at most 1.005", _within(found, 1.005)


def _judge_programs(*rounds: pd.Series) -> Iterator[Finding]:
    """Judge equal programs and planted differences as tables of their own, each over all processes."""
    equal, planted = (_verdicts(kind, rounds) for kind in ("equal", "planted"))
    called, found = sum(verdict in (FASTER, SLOWER) for verdict in equal), planted.count(SLOWER)
    enough = len(rounds) >= ENOUGH_ROUNDS and len(equal) >= FEWEST
    over = f"over {digits.count(len(rounds))} process{'es' * (len(rounds) > 1)}"
    most = "none" if len(equal) < 100 else "at most 1%"
    holds = (called <= 0.01 * len(equal), found >= 0.9 * len(planted)) if enough else (None, None)
    yield f"equal programs called different, {over}", f"{called} of {len(equal)}", most, holds[0]
    yield f"a tenth more work called slower, {over}", f"{found} of {len(planted)}", "at least 90%", holds[1]


def _verdicts(kind: str, rounds: tuple[pd.Series, ...]) -> list[str]:
    """Return the verdicts of a table of comparisons, each of which was made in all rounds."""
    names = [f"{kind}_{name}" for name in ("log", "pairs", "log_error", "ms")]
    processes = (
        [Measured((log,), PAIRS, int(n), noise, ms) for log, n, noise, ms in zip(*record[names], strict=True)]
        for record in rounds
    )
    table = [comparisons.joined(row) for row in zip(*processes, strict=True)]
    prior = comparisons.prior(table)
    return comparisons.verdicts([comparisons.moderated(row, prior) for row in table])


def _judge_placed(record: pd.Series) -> Iterator[Finding]:
    low, high = (f"{quantile:.3g}" for quantile in np.quantile(record["ratio"], (0.05, 0.95)))
    yield "the same program on other memory, nine of ten ratios", f"{low} to {high}", "", NO_FAULT


def _judge_repeated(record: pd.Series) -> Iterator[Finding]:
    for what, rates in (("a matrix product", record["product_gflops"]), ("a copy", record["copy_gbs"])):
        apart = max(rates) / min(rates) - 1
        tried = f"the ceiling of {what}, {digits.count(len(rates))} times"
        yield tried, f"{100 * apart:.1f}% apart", "at most 5% apart", apart <= 0.05


def _judge_start(record: pd.Series) -> Iterator[Finding]:
    yield _excess("the start of a kernel, beyond loading torch", record["kernel_ms"], record["torch_ms"], 1500)


def _judge_between(record: pd.Series) -> Iterator[Finding]:
    yield _excess(
        "from one case to the next, beyond the noise probes", record["case_ms"], record["noise_probes_ms"], 50
    )


def _excess(tried: str, longer: list[float], shorter: list[float], most_ms: float) -> Finding:
    """Judge the median difference of two things timed in alternation, by its interval."""
    apart = intervals.median([[a - b for a, b in zip(longer, shorter, strict=True)]])
    return tried, f"{digits.interval(apart)} ms", f"at most {most_ms:g} ms", _within(apart, most_ms)


FINDINGS = {
    "spin": _judge_spin,
    "timer": _judge_timer,
    "programs": _judge_programs,
    "placed": _judge_placed,
    "overhead": _judge_overhead,
    "repeated": _judge_repeated,
    "start": _judge_start,
    "between": _judge_between,
}


def parser() -> argparse.ArgumentParser:
    """Build the parser of this command line."""
    made = cli.parser(
        "lib.report.self_check",
        "Print what the calibration of a machine found, beside the limits that must hold.",
        ("", "--machine xeon-2c"),
        {1: "the machine has no records of calibration", 2: "bad input"},
    )
    made.add_argument("--machine", default="", help="machine to check; default: the machine measured last")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, 1 if there is nothing to judge, 2 for bad input."""
    given, machines = parser().parse_args(arguments), results.machines()
    try:
        validate.choice("machine", given.machine or next(iter(machines), ""), machines)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    found = table(results.load("calibration", given.machine or machines[0]))
    if found.empty:
        print("calibration: no records found; `make calibrate` measures them", file=sys.stderr)
        return 1
    print(found.to_string(index=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
