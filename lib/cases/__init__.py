"""The experiments: one frozen dataclass each, whose fields are the axes of its sweep."""

import itertools
from dataclasses import fields

from lib.cases.adam import Adam
from lib.cases.attention import Attention
from lib.cases.attention_module import AttentionModule
from lib.cases.ceilings import Ceilings
from lib.cases.compile import Compile
from lib.cases.kernels import Kernels
from lib.cases.memory import Memory
from lib.cases.precision import Precision
from lib.cases.step import Step
from lib.cases.warmup import Warmup

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
