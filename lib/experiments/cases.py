"""Find the case class of each experiment in the catalogue, and make grids of cases.

>>> [case.variant for case in grid("adam", variant=["foreach", "fused"], num_params=1, param_size=8)]  # doctest: +SKIP
['foreach', 'fused']
"""

import importlib
import itertools
from dataclasses import fields

from lib.catalog import CATALOG


def _case_class(experiment: str) -> type:
    """Return the class of an experiment's module: AttentionModule for attention_module."""
    name = "".join(word.capitalize() for word in experiment.split("_"))
    return getattr(importlib.import_module(f"lib.experiments.{experiment}"), name)


EXPERIMENTS = {name: _case_class(name) for name in CATALOG}  # frozen dataclasses; their fields are the axes of a sweep


def grid(experiment: str, **axes) -> list:
    """Return the cases of an experiment over the product of its axes, in their order.

    A list is swept, a scalar is fixed. Raises ValueError for an impossible case, TypeError for a missing axis."""
    case = EXPERIMENTS[experiment]
    axes = {field.name: axes.pop(field.name) for field in fields(case) if field.name in axes} | axes
    values = [value if isinstance(value, list) else [value] for value in axes.values()]
    return [case(**dict(zip(axes, point, strict=True))) for point in itertools.product(*values)]
