"""Find the case class of each experiment, and make grids of cases.

>>> [case.variant for case in grid("adam", variant=["foreach", "fused"], num_params=1, param_size=8)]  # doctest: +SKIP
['foreach', 'fused']
"""

import functools
import importlib
import itertools
from dataclasses import fields

from lib import notebooks, validate
from lib.catalog import CATALOG


@functools.cache
def case_class(experiment: str) -> type:
    """Return the class in an experiment's module: AttentionModule in attention_module.

    Raises ValueError for an unknown experiment."""
    validate.choice("experiment", experiment, CATALOG)
    name = "".join(word.capitalize() for word in experiment.split("_"))
    return getattr(importlib.import_module(f"lib.experiments.{experiment}"), name)


def grid(experiment: str, **axes) -> list:
    """Return the cases of an experiment over the product of its axes.

    The last field of the case varies fastest. A list is swept, a scalar fixed, and an axis that is not given has the
    notebook's default. Raises ValueError for an unknown axis and for an impossible case."""
    names = [field.name for field in fields(case_class(experiment))]
    for name in axes:
        validate.choice("axis", name, names)
    values = {name: notebooks.parameters(experiment).get(name) for name in names} | axes
    columns = [value if isinstance(value, list) else [value] for value in values.values()]
    return [case_class(experiment)(**dict(zip(values, point, strict=True))) for point in itertools.product(*columns)]
