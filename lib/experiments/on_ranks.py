"""Measure a case in the ranks of a world, as `Case.measure` does in one process.

`setup` runs in every rank, and the clock of its work is a `ranks.Clock`. So all ranks take the same decisions, and a
time is that of the slowest.
"""

import gc
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import asdict

from lib.experiments.case import Case, Recording
from lib.instruments import memory_limit
from lib.instruments.device import on
from lib.parallel import ranks
from lib.parallel.ranks import DEVICES

BACKENDS = ("auto", *DEVICES)
ANSWER_S = 900.0  # for all ranks to measure one case
_worlds: dict[tuple[int, str], ranks.World] = {}  # the last one, which the next case may use again


class OnRanks(Case):
    """Run `world` ranks that exchange data by a `backend`; `auto` is the device's."""

    def __post_init__(self):
        super().__post_init__()
        if self.backend == "auto":
            object.__setattr__(self, "backend", ranks.BACKENDS.get(self.device, "gloo"))

    @property
    def place(self) -> str:
        """Return the device of a rank."""
        return DEVICES[self.backend]

    def unavailable(self) -> str | None:
        return ranks.missing(self.place, self.world) or on(self.place).lacks(getattr(self, "precision", "fp32"))

    def measure(self, record: Recording, seconds: float) -> None:
        """Measure the case in its ranks, and join what they return. Raises RankFailed."""
        key = (self.world, self.backend)
        if key not in _worlds:
            close()
            _worlds[key] = ranks.World(*key)
        arguments = {"experiment": type(self).experiment, "case": asdict(self)}
        arguments |= {"round": record.round, "seconds": seconds}
        try:
            record.metrics |= merged(_worlds[key].run(in_rank, ANSWER_S, **arguments))
        except BaseException:
            # the failed call, or an interrupt, has closed the world
            _worlds.clear()
            raise

    def measure_in_rank(self, record: Recording, seconds: float) -> None:
        """Measure the case in this rank: by default as `Case` does in one process."""
        super().measure(record, seconds)

    def clock(self) -> ranks.Clock:
        """Return the clock of all ranks."""
        return ranks.Clock(on(self.place).clock())


def close() -> None:
    """End the ranks that wait for another case."""
    while _worlds:
        _worlds.popitem()[1].close()


def in_rank(experiment: str, case: dict, round: int, seconds: float) -> dict:
    """Return a case's metrics in this rank; the ranks divide the free memory."""
    # which imports this module
    from lib.experiments import cases

    record = Recording(cases.case_class(experiment)(**case), round)
    gc.collect()
    # later collections need not search what is alive now
    gc.freeze()
    try:
        with memory_limit.limited(record.case.world, record.case.place):
            record.case.measure_in_rank(record, seconds)
        return record.metrics
    finally:
        record.free()
        on(record.case.place).release()


def merged(of_ranks: Iterable[Mapping]) -> dict:
    """Join the ranks' metrics: the largest number, a table's rows, the first text."""
    first, *others = of_ranks
    metrics = {}
    for name, value in first.items():
        values = [value, *(metrics_of_rank[name] for metrics_of_rank in others)]
        if isinstance(value, Mapping):
            metrics[name] = {column: list(itertools.chain(*(table[column] for table in values))) for column in value}
        elif isinstance(value, list):
            metrics[name] = [max(samples) for samples in zip(*values, strict=True)]
        elif isinstance(value, str):
            metrics[name] = value
        else:
            metrics[name] = max(values)
    return metrics
