"""Show if the machine was steady: equal products before and after a case."""

import torch

from lib import precision, timing
from lib.instruments.device import on

WARMUP = 3  # products, before `timing.measure` warms up: by one more, or on a GPU for `DEVICE_S`
PROBES = 10  # products that are timed, or as many as fill `DEVICE_S` on a GPU
DEVICE_S = 0.05


def probe(device: str) -> list[float]:
    """Time the noise probe, in milliseconds: at least 10 equal matrix products.

    They take longer while other work uses the machine."""
    # a millisecond or less, with all cores or multiprocessors at work
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
