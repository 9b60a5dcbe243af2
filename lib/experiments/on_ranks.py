"""Measure a case in the ranks of a world, as `measure` does in one process.

`setup` runs in every rank, and the clock of its work is a `ranks.Clock`. So all ranks take the same decisions, and a
time is that of the slowest.
"""

import gc
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from lib import timing
from lib.experiments import measure
from lib.experiments.case import Case
from lib.experiments.measure import Recording
from lib.instruments import environment, peak_memory
from lib.instruments.device import on
from lib.parallel import ranks
from lib.parallel.ranks import DEVICES

BACKENDS = "auto", *DEVICES
ANSWER_S = 900.0  # for all ranks to measure one case
_worlds: dict[tuple[int, str], ranks.World] = {}  # the last one, which the next case may use again


class OnRanks(Case):
    """A case of `world` ranks that exchange data by a `backend`; `auto` is that of the device.

    A subclass predicts the `rank_bytes` of one rank's tensors."""

    def __post_init__(self):
        super().__post_init__()
        if self.backend == "auto":
            object.__setattr__(self, "backend", ranks.BACKENDS.get(self.device, "gloo"))

    @property
    def place(self) -> str:
        """Return the device of a rank."""
        return DEVICES[self.backend]

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return ranks.missing(self.place, self.world) or on(self.place).lacks(getattr(self, "precision", "fp32"))

    def predicted_bytes(self) -> int:
        """Predict the peak: of one rank on its GPU, or of all in one memory."""
        of_rank = self.rank_bytes()
        return of_rank if self.backend == "nccl" else self.world * (of_rank + ranks.PROCESS_BYTES)

    def threads(self) -> dict[str, int]:
        """Return the threads of a rank, and 1 as `oversubscribed` where there are more ranks than cores."""
        if self.backend != "gloo":
            return {}
        return {"threads": ranks.threads(self.world), "oversubscribed": int(self.world > environment.cores())}

    def clock(self) -> ranks.Clock:
        """Return the clock of all ranks."""
        return ranks.Clock(on(self.place).clock())


def measured(record: Recording, plan: timing.Plan, most: int, seconds: float) -> dict:
    """Check, time and compare the case of a record in its ranks, and follow its memory.

    Returns the metrics of `measure.errors`, `times`, `peaks` and `pairs`, and the times of what the work has `beside`,
    of each the largest of any rank. Raises TooLarge if the predicted memory does not fit, and RankFailed."""
    case = record.case
    peak_memory.preflight(case.predicted_bytes(), case.place)
    key = case.world, case.backend
    if key not in _worlds:
        close()
        _worlds[key] = ranks.World(*key)
    about = {"experiment": type(case).experiment, "case": asdict(case), "round": record.round}
    settings = {"plan": asdict(plan), "most": most, "seconds": seconds}
    try:
        return merged(_worlds[key].run(f"{__name__}.in_rank", ANSWER_S, **about, **settings))
    except ranks.RankFailed:
        _worlds.clear()
        raise


def close() -> None:
    """End the ranks that wait for another case."""
    while _worlds:
        _worlds.popitem()[1].close()


def in_rank(experiment: str, case: dict, round: int, plan: dict, most: int, seconds: float) -> dict:
    """Measure a case in this rank, and return its metrics."""
    from lib.experiments import cases  # which imports this module

    record = Recording(cases.EXPERIMENTS[experiment](**case), round)
    plan = timing.Plan(**plan)
    gc.collect()
    gc.freeze()  # later collections need not search what is alive now
    try:
        work = record.build(record.case)
        metrics = work.facts | measure.errors(work) | measure.times(work, plan) | measure.peaks(work)
        for name, iteration in work.beside.items():
            metrics[f"{name}_ms"] = timing.measure(iteration, work.clock, replace(plan, target=0)).metrics()["total_ms"]
        return metrics | measure.pairs(record, most, seconds)
    finally:
        for work in record.built:
            vars(work).clear()
        gc.collect()
        on(record.case.place).release()


def merged(found: Iterable[Mapping]) -> dict:
    """Join the metrics of all ranks: of numbers the largest, of a table all rows, of a text the first."""
    first, *others = found
    return {name: _joined(value, [other[name] for other in others]) for name, value in first.items()}


def _joined(value, others: list):
    if isinstance(value, Mapping):
        return {name: sum((other[name] for other in others), start=column) for name, column in value.items()}
    if isinstance(value, list):
        return [max(each) for each in zip(value, *others, strict=True)]
    return value if isinstance(value, str) else max([value, *others])
