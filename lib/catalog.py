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
    - `fields`: those of its case class, in their order, for what reads records without torch.
    - `baseline`: the fields in which variants differ, each with the baseline's value, such as `"compiled": False`, or a
      dict from a value to that of its own baseline, such as `"mode": {"no_grad": "forward"}`; a value that is missing
      there is its own. A case's baseline differs in one field: the first that does not have its baseline's value.
    - `looks`: the variants in their order, each with its colour and dash in figures.
    - `alone`: True if a case needs the whole machine, even one with several GPUs.
    """

    title: str
    fields: tuple[str, ...]
    baseline: Mapping[str, object] = field(default_factory=dict)
    looks: Mapping[str, str] = field(default_factory=dict)
    alone: bool = False


_STEP = (
    "size", "context_length", "batch_size", "precision", "compiled", "attention", "optimizer", "mode", "device",
)  # fmt: skip
CATALOG = {
    "step": Experiment(
        title="Training steps",
        fields=_STEP,
        baseline={
            "compiled": False, "attention": "naive", "optimizer": "single_tensor", "precision": "fp32",
            "mode": {"no_grad": "forward"},
        },
    ),
    "ladder": Experiment(
        title="Training steps with one switch more at a time",
        fields=("size", "context_length", "batch_size", "switches", "losses", "device"),
    ),
    "kernels": Experiment(title="Profiled steps", fields=_STEP),
    "memory": Experiment(
        title="Peaks of memory",
        fields=("checkpoint", *_STEP),
        baseline={"checkpoint": 0},
    ),
    "attention": Experiment(
        title="Attention",
        fields=(
            "variant", "seq_len", "d_head", "num_heads", "batch_size", "causal", "precision", "native", "cold",
            "device",
        ),
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
        title="Attention with its projections",
        fields=("d_model", "context_length", "batch_size", "num_heads", "precision", "compiled", "device"),
        baseline={"compiled": False, "precision": "fp32"}
    ),
    "adam": Experiment(
        title="Optimizer steps",
        fields=("variant", "shapes", "num_params", "param_size", "amsgrad", "cold", "device"),
        baseline={"variant": "single_tensor"},
        looks={
            "single_tensor": "ink", "foreach": "orange", "fused": "green",
            "compiled_single_tensor": "ink dashed", "compiled_foreach": "orange dashed",
        },
    ),
    "precision": Experiment(title="Mixed precision", fields=("subject", "precision", "device")),
    "warmup": Experiment(title="Steps of fresh processes", fields=(*_STEP, "first_steps")),
    "collectives": Experiment(
        title="Collective operations",
        fields=("operation", "megabytes", "world", "backend", "device"),
        alone=True,
    ),
    "parallel": Experiment(
        title="Training steps on several ranks",
        fields=(
            "size", "context_length", "batch_size", "precision", "variant", "bucket_mib", "world", "backend", "device",
        ),
        alone=True,
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
        fields=("size", "context_length", "batch_size", "precision", "program", "device"),
        baseline={"program": "ours"}, looks={"ours": "ink", "transformers": "orange"},
    ),
    "ceilings": Experiment(
        title="Limits of the machine",
        fields=("operation", "rows", "columns", "precision", "library", "device"),
        alone=True,
        baseline={"library": "torch"}, looks={"torch": "ink", "onednn": "blue"},
    ),
    "calibration": Experiment(title="The measurement itself", fields=("check", "number", "device")),
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
