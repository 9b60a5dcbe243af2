"""Test the measuring itself on what is known beforehand."""

import statistics
import time
import zlib
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch.utils.benchmark import Timer

from lib import timing
from lib.experiments.case import Case, Recording
from lib.instruments.device import on
from lib.timing import Iteration, Mark
from lib.validate import one_of

CHECKS = ("wait", "timer", "equal", "planted")
WAITS_MS = (0.01, 0.1, 1.0, 10.0)
CALLS = 20  # products in the program, about a millisecond on a CPU
PLANTED_CALLS = 22  # 10% more
TIMER_ROUNDS = 10  # times that each of two timers takes its median
TIMER_SAMPLES = 10


@dataclass(frozen=True)
class Calibration(Case):
    """Check the measuring once; `number` tells apart comparisons that are alike.

    - `wait` times waits of known length, which must take that long.
    - `timer` times a matrix product alternately by `lib.timing` and by torch.utils.benchmark, which must agree.
    - `equal` runs a program of 20 small products in pairs with itself. It must come out the same.
    - `planted` runs one of 22 products in pairs with that of 20. It must come out as a tenth more work.

    Raises ValueError for an unknown value."""

    experiment: ClassVar[str] = "calibration"
    check: str = one_of(CHECKS, "wait")
    number: int = field(default=1, metadata={"most": 1000})
    device: str = "auto"

    def unavailable(self) -> str | None:
        # a process measures all numbers, and of these checks one is enough
        if self.check in ("wait", "timer") and self.number > 1:
            return f"{self.check} is checked once a process"
        return super().unavailable()

    def measure(self, record: Recording, seconds: float) -> None:
        """Run the check: pairs as `paired_ms` and `baseline_ms`, waits as a table."""
        if self.check == "wait":
            record.metrics["waits"] = waits(seconds / len(WAITS_MS))
        elif self.check == "timer":
            record.metrics |= two_timers(self.device, seconds / TIMER_ROUNDS / 2)
        else:
            calls = PLANTED_CALLS if self.check == "planted" else CALLS
            program, plain = programs(self.device, [calls, CALLS])
            seed = zlib.crc32(f"{self.check} {self.number} {record.round}".encode())
            record.metrics |= timing.compare(program, plain, on(self.device).clock(), seconds, seed).metrics()


def waits(seconds: float) -> dict[str, list[float]]:
    """Time known waits, about `seconds` each: their `known_ms` and `measured_ms`."""
    table = {"known_ms": [], "measured_ms": []}
    for known_ms in WAITS_MS:

        def iteration(mark: Mark, known_ns: int = round(1e6 * known_ms)) -> None:
            # sleeping would give the processor away, for longer than asked
            end_ns = time.perf_counter_ns() + known_ns
            while time.perf_counter_ns() < end_ns:
                pass
            mark("wait")

        measured_ms = timing.measure(iteration, timing.HostClock(), seconds).metrics()["total_ms"]
        table["known_ms"] += [known_ms] * len(measured_ms)
        table["measured_ms"] += measured_ms
    return table


def two_timers(device: str, seconds: float) -> dict[str, list[float]]:
    """Time a matrix product alternately by two timers.

    `paired_ms` has our medians, of about `seconds` each, `baseline_ms` the other's, of ten samples each."""
    side = 512 if device == "cpu" else 4096
    matrix = torch.ones(side, side, device=device)
    out = torch.empty_like(matrix)
    scope = {"torch": torch, "matrix": matrix, "out": out}
    other = Timer("torch.mm(matrix, matrix, out=out)", globals=scope, num_threads=torch.get_num_threads())

    def iteration(mark: Mark) -> None:
        torch.mm(matrix, matrix, out=out)
        mark("run")

    medians = {"paired_ms": [], "baseline_ms": []}
    for number in range(TIMER_ROUNDS):
        order = list(medians)
        # each goes first in every second round
        if number % 2 == 0:
            order.reverse()
        for name in order:
            if name == "paired_ms":
                samples = timing.measure(iteration, on(device).clock(), seconds, least=TIMER_SAMPLES)
                median_ms = statistics.median(samples.metrics()["total_ms"])
            else:
                # a warm-up
                other.timeit(2)
                median_ms = 1e3 * statistics.median(other.timeit(1).median for _ in range(TIMER_SAMPLES))
            medians[name].append(median_ms)
    return medians


def programs(device: str, counts: list[int]) -> list[Iteration]:
    """Return programs of `counts` small matrix products each, in the same memory."""
    side = 160 if device == "cpu" else 1024
    matrix = torch.ones(side, side, device=device)
    # other memory could make equal programs differ
    out = torch.empty_like(matrix)

    def program(calls: int) -> Iteration:
        def iteration(mark: Mark) -> None:
            for _ in range(calls):
                torch.mm(matrix, matrix, out=out)
            mark("run")

        return iteration

    return [program(calls) for calls in counts]
