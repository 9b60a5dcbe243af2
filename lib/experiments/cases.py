"""The experiments: one frozen dataclass each, whose fields are the axes of its sweep."""

import itertools
from dataclasses import fields

from lib.experiments.adam import Adam
from lib.experiments.attention import Attention
from lib.experiments.attention_module import AttentionModule
from lib.experiments.ceilings import Ceilings
from lib.experiments.compile import Compile
from lib.experiments.kernels import Kernels
from lib.experiments.memory import Memory
from lib.experiments.precision import Precision
from lib.experiments.step import Step
from lib.experiments.warmup import Warmup

EXPERIMENTS = {
    case.experiment: case
    for case in (Ceilings, Step, Warmup, Kernels, Precision, Memory, Attention, AttentionModule, Compile, Adam)
}


def grid(experiment: str, **axes) -> list:
    """The cases of an experiment over the product of its axes, in their order; a list is swept, a scalar is
    fixed. Raises ValueError when a case is impossible, TypeError when an axis is missing."""
    case = EXPERIMENTS[experiment]
    axes = {field.name: axes.pop(field.name) for field in fields(case) if field.name in axes} | axes
    values = [value if isinstance(value, list) else [value] for value in axes.values()]
    return [case(**dict(zip(axes, point, strict=True))) for point in itertools.product(*values)]
