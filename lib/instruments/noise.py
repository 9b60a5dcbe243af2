"""Show whether the machine was steady: equal products before and after a case, and steps of the wall clock."""

import time
from datetime import UTC, datetime

import torch

from lib import precision, timing
from lib.instruments.device import on

WARMUP = 3  # products, or as many as fill `DEVICE_S` on a GPU, whose clock rises meanwhile
PROBES = 10  # products that are timed, or as many as fill `DEVICE_S` on a GPU
DEVICE_S = 0.05
NOTICEABLE_S = 1.0  # of a step of the wall clock


def probe(device: str) -> list[float]:
    """Time the noise probe: 10 equal matrix products or more after 3 warm-ups, in milliseconds.

    They take longer while other work uses the machine."""
    # about 1 ms on a CPU's core, and on a GPU's multiprocessors
    rows = 256 if device == "cpu" else 2048
    matrix = torch.ones(rows, rows, device=device)
    product = torch.empty_like(matrix)
    clock = on(device).clock()
    clock.least_s = min(clock.least_s, DEVICE_S)

    def iteration(mark: timing.Mark) -> None:
        torch.mm(matrix, matrix, out=product)
        mark("run")

    with precision.strict():  # whatever the case's precision
        timing.exactly(iteration, clock, WARMUP)
        return timing.measure(iteration, clock, seconds=0.0, least=PROBES).metrics()["total_ms"]


class Period:
    """Measure the time from its creation to `end`, by a clock that nobody sets.

    `started` is when it began, by the wall clock. `end` fills `noticed` for the record's environment: `clock_stepped_s`
    are the seconds by which the wall clock was set meanwhile, or the machine slept, if it did."""

    def __init__(self):
        self.noticed: dict[str, float] = {}
        self.began = now()
        self.began_s = time.monotonic()
        self.started = self.began.isoformat(timespec="seconds")

    def end(self) -> float:
        """Return how many seconds it took."""
        seconds = time.monotonic() - self.began_s
        stepped_s = (now() - self.began).total_seconds() - seconds
        if abs(stepped_s) > NOTICEABLE_S:
            self.noticed["clock_stepped_s"] = round(stepped_s, 1)
        return seconds


def now() -> datetime:
    """Read the wall clock."""
    return datetime.now(UTC)
