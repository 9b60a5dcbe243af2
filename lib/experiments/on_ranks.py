"""Measure a case in the ranks of a world, as `Case.measure` does in one process.

`setup` runs in every rank, and the clock of its work is a `ranks.Clock`. So all ranks take the same decisions, and a
time is that of the slowest.
"""

import gc
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from lib.experiments.case import Case, Recording
from lib.instruments import memory_limit
from lib.instruments.device import on
from lib.parallel import ranks
from lib.parallel.ranks import DEVICES

BACKEND_NAMES = ("auto", *DEVICES)
ANSWER_S = 900.0  # for all ranks to measure one case
_worlds: dict[tuple[int, str], ranks.World] = {}  # the last world alone, which the next case may use again


class OnRanks(Case):
    """Run `world` ranks that exchange data by a `backend`; `auto` is the device's."""

    def __post_init__(self):
        super().__post_init__()
        if self.backend == "auto":
            object.__setattr__(self, "backend", ranks.BACKENDS.get(self.device, "gloo"))

    @property
    def place(self) -> str:
        """Return the device of a rank, which the backend decides: with gloo the CPU."""
        return DEVICES[self.backend]

    def unavailable(self) -> str | None:
        return ranks.missing(self.place, self.world) or on(self.place).lacks(getattr(self, "precision", "fp32"))

    def measure(self, record: Recording, seconds: float) -> None:
        """Measure the case in its ranks, and join what they return. Raises RankFailed."""
        key = (self.world, self.backend)
        if key not in _worlds:
            close()
            _worlds[key] = ranks.World(*key)
        try:
            of_ranks = _worlds[key].run(in_rank, ANSWER_S, case=self, round=record.round, seconds=seconds)
        except BaseException:
            # the failed call, or an interrupt, has closed the world
            _worlds.clear()
            raise
        record.metrics |= merge(of_ranks)

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


def in_rank(case: OnRanks, round: int, seconds: float) -> dict:
    """Return a case's metrics in this rank; the ranks divide the free memory."""
    record = Recording(case, round)
    gc.collect()
    # later collections need not search what is alive now, nor does `count_bytes` count it
    gc.freeze()
    try:
        with memory_limit.limit(case.world, case.place):
            case.measure_in_rank(record, seconds)
        return record.metrics
    finally:
        record.free()
        on(case.place).release()


def merge(of_ranks: Sequence[Mapping]) -> dict:
    """Join the ranks' metrics: the first text, a table's rows, the largest numbers."""
    metrics = {}
    for name, of_first_rank in of_ranks[0].items():
        values = [of_rank[name] for of_rank in of_ranks]
        if isinstance(of_first_rank, str):
            metrics[name] = of_first_rank
        elif isinstance(of_first_rank, Mapping):
            metrics[name] = pd.concat(pd.DataFrame(table) for table in values).to_dict("list")
        else:
            metrics[name] = np.max(values, axis=0).tolist()
    return metrics
