"""The first training steps of a process, before anything is warm."""

from dataclasses import dataclass
from typing import ClassVar

from lib.experiments.step import Step


@dataclass(frozen=True)
class Warmup(Step):
    """A training step whose first iterations are recorded one by one, so that what any number of warm-ups would have
    changed can be read from the same series. Raises ValueError for a value that is unknown or impossible."""

    experiment: ClassVar[str] = "warmup"
