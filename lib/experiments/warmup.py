"""Record the first training steps of a process, before anything is warm."""

from dataclasses import dataclass
from typing import ClassVar

from lib.experiments.step import Step


@dataclass(frozen=True)
class Warmup(Step):
    """A training step whose first iterations are recorded one by one."""

    experiment: ClassVar[str] = "warmup"
