"""Find the case class of each experiment, and make grids of cases.

>>> [case.variant for case in grid("adam", variant=["foreach", "fused"], num_params=1, param_size=8)]  # doctest: +SKIP
['foreach', 'fused']
"""

import dataclasses
import functools
import importlib
import itertools
import random
from collections.abc import Mapping, Sequence

from lib import validate
from lib.catalog import CATALOG


@functools.cache
def case_class(experiment: str) -> type:
    """Return the case class of an experiment, such as AttentionModule.

    Its module has the experiment's name: `attention_module`. Raises ValueError for an unknown experiment."""
    validate.choice("experiment", experiment, CATALOG)
    name = "".join(word.capitalize() for word in experiment.split("_"))
    return getattr(importlib.import_module(f"lib.experiments.{experiment}"), name)


def all_axes(experiment: str, axes: Mapping[str, object]) -> dict[str, object]:
    """Return every axis of an experiment in order.

    An axis that `axes` lacks has the case class's default. Raises ValueError for an unknown axis."""
    defaults = {field.name: field.default for field in dataclasses.fields(case_class(experiment))}
    for name in axes:
        validate.choice("axis", name, defaults)
    return defaults | dict(axes)


def grid(experiment: str, **axes) -> list:
    """Return the cases of an experiment over the product of its axes.

    The last field of the case varies fastest. A list is swept, a scalar fixed. Raises ValueError for an unknown axis,
    for one without a value, and for an impossible case."""
    values = all_axes(experiment, axes)
    for name, value in values.items():
        if value == []:
            raise ValueError(f"{name}: got [], expected at least one value")
    points = itertools.product(*map(as_list, values.values()))
    return [case_class(experiment)(*point) for point in points]


def as_list(value: object) -> list:
    """Return the values of an axis, which may be one alone."""
    return value if isinstance(value, list) else [value]


def order(grid: Sequence, round: int) -> list:
    """Return the cases of a grid in the order in which a round measures them.

    Rounds 0 and 1 have the grid's own order. Later ones shuffle it, by a seed of the experiment and the round, so that
    what comes first differs between rounds."""
    ordered = list(grid)
    if round > 1:
        random.Random(f"{grid[0].experiment} {round}").shuffle(ordered)
    return ordered
