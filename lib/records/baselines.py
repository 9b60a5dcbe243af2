"""Names the case that a case is compared with: the same in all but one field; knows no torch."""

from collections.abc import Mapping

BASELINES = {  # of each experiment, the fields in which variants differ and the value of the reference, in this order
    "step": {
        "compiled": False,
        "attention": "naive",
        "optimizer": "single_tensor",
        "precision": "fp32",
        "mode": {"no_grad": "forward"},  # where only some values have one, by value
    },
    "memory": {"checkpoint": 0, "precision": "fp32"},
    "attention": {"variant": "naive", "precision": "fp32"},
    "attention_module": {"compiled": False, "precision": "fp32"},
    "compile": {"compiled": False, "precision": "fp32"},
    "adam": {"variant": "single_tensor"},
}


def of(experiment: str, case: Mapping) -> dict | None:
    """The fields of the case's baseline: the first that differs from the reference is set to it; None where none
    does."""
    for name, value in BASELINES.get(experiment, {}).items():
        own = case.get(name)
        reference = value.get(own, own) if isinstance(value, dict) else value
        if name in case and own != reference:
            return {**case, name: reference}
    return None
