"""List the experiments, one entry of plain data each.

An experiment also has a case class in `lib/experiments`, a notebook and lines in the sweeps.

>>> baseline("adam", {"variant": "fused", "num_params": 8})
{'variant': 'single_tensor', 'num_params': 8}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Experiment:
    """Describe one experiment.

    - `title`: the name of its cases in headings.
    - `baseline`: the fields in which variants differ, each with the baseline's value, such as `"compiled": False`, or a
      dict from a value to that of its own baseline, such as `"mode": {"no_grad": "forward"}`; a value that is missing
      there is its own. A case's baseline differs in one field: the first that does not have its baseline's value.
    - `looks`: the variants in their order, each with its colour and dash in figures.
    - `alone`: True if a case needs the whole machine, even one with several GPUs.
    """

    title: str
    baseline: Mapping[str, object] = field(default_factory=dict)
    looks: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


CATALOG = {
    "step": Experiment(
        title="Training steps",
        baseline={
            "compiled": False, "attention": "naive", "optimizer": "single_tensor", "precision": "fp32",
            "mode": {"no_grad": "forward"},
        },
    ),
    "ladder": Experiment(title="Training steps with one switch more at a time"),
    "kernels": Experiment(title="Profiled steps"),
    "memory": Experiment(title="Peaks of memory", baseline={"checkpoint": 0}),
    "attention": Experiment(
        title="Attention",
        baseline={
            "variant": {
                "tiled": "naive", "sdpa": "naive", "compiled": "naive",
                "sdpa_flash": "sdpa", "sdpa_efficient": "sdpa", "sdpa_cudnn": "sdpa",
                "flash_compiled": "sdpa", "triton": "sdpa",
            },
            "native": False, "precision": "fp32",
        },
        looks={
            "naive": "ink", "tiled": "orange", "sdpa": "green",
            "sdpa_flash": "green dashed", "sdpa_efficient": "green dotted", "sdpa_cudnn": "green dashdot",
            "compiled": "ink dashed", "flash_compiled": "orange dashed", "triton": "blue",
        },
    ),
    "attention_module": Experiment(
        title="Attention with its projections", baseline={"compiled": False, "precision": "fp32"}
    ),
    "adam": Experiment(
        title="Optimizer steps", baseline={"variant": "single_tensor"},
        looks={
            "single_tensor": "ink", "foreach": "orange", "fused": "green",
            "compiled_single_tensor": "ink dashed", "compiled_foreach": "orange dashed",
        },
    ),
    "precision": Experiment(title="Mixed precision"),
    "warmup": Experiment(title="Steps of fresh processes"),
    "collectives": Experiment(title="Collective operations", alone=True),
    "parallel": Experiment(
        title="Training steps on several ranks", alone=True,
        baseline={
            "variant": {
                "naive": "torch_ddp", "flat": "torch_ddp", "overlap": "torch_ddp", "bucketed": "torch_ddp",
                "sharded": "torch_zero", "fsdp": "torch_fsdp",
            },
            "bucket_mib": 0,
        },
        looks={
            "plain": "ink", "naive": "purple", "flat": "sky", "overlap": "orange", "bucketed": "blue",
            "sharded": "yellow", "fsdp": "green",
            "torch_ddp": "blue dashed", "torch_zero": "yellow dashed", "torch_fsdp": "green dashed",
        },
    ),
    "peers": Experiment(
        title="Training steps of other libraries",
        baseline={"program": "ours"}, looks={"ours": "ink", "transformers": "orange"},
    ),
    "ceilings": Experiment(
        title="Limits of the machine", alone=True,
        baseline={"library": "torch"}, looks={"torch": "ink", "onednn": "blue"},
    ),
    "calibration": Experiment(title="The measurement itself"),
}  # fmt: skip


def baseline(experiment: str, case: Mapping) -> dict | None:
    """Return the case that a case is paired with, or None if no field differs from its baseline.

    The first field that does takes the baseline's value."""
    for name, value in CATALOG[experiment].baseline.items():
        if isinstance(value, Mapping):
            value = value.get(case[name], case[name])
        if case[name] != value:
            return {**case, name: value}
    return None
