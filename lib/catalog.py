"""List the experiments and their variants, one entry of plain data each.

An experiment also has a case class in `lib/experiments`, a notebook and lines in the sweeps.

>>> baseline("adam", {"variant": "fused", "num_params": 8})
{'variant': 'single_tensor', 'num_params': 8}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


# a record's `code` digests the repr of an entry: what changes no measurement has repr=False
@dataclass(frozen=True)
class Variant:
    """Describe one way to compute what an experiment measures.

    - `baseline`: the variant that it is paired with, "" for none.
    - `words`: its name in sentences.
    - `compiles`: True if it goes through torch.compile.
    - `holds_scores`: True if attention keeps all scores for its backward pass, and does not work in tiles.
    - `counts_on_device`: True if AdamW has its step counts as tensors beside the parameters, not as numbers.
    - `scheme`: what ranks share in `parallel.accounting`: `replicas` nothing, `sharded` the optimizer's states, `fsdp`
      all but norms.
    - `has_buckets`: True if the size of buckets of gradients matters to it.
    - `needs`: the switches of the ladder without which it does not work.
    """

    baseline: str = ""
    words: str = field(default="", repr=False)
    compiles: bool = False
    holds_scores: bool = False
    counts_on_device: bool = False
    scheme: str = "replicas"
    has_buckets: bool = False
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """Describe one experiment.

    - `title`: the name of its cases in headings.
    - `fields`: those of its case class, in their order, for what reads records without torch.
    - `variants`: by name, in the order of reports.
    - `axis`: the field of a case that names its variant.
    - `baseline`: the baseline's value of other fields, such as `"compiled": False`, or a dict from a value to that of
      its own baseline, such as `"mode": {"no_grad": "forward"}`; a value that is missing there is its own.
    - `alone`: True if a case needs the whole machine, even one with several GPUs.
    """

    title: str = field(repr=False)
    fields: tuple[str, ...] = field(repr=False)
    variants: Mapping[str, Variant] = field(default_factory=dict)
    axis: str = "variant"
    baseline: Mapping[str, object] = field(default_factory=dict)
    alone: bool = field(default=False, repr=False)


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
        # a case has several of these switches, or is `plain`
        axis="switches",
        variants={
            "default_allocator": Variant(words="the default allocator"),
            "fused": Variant(words="AdamW(fused=True)"),
            "sdpa": Variant(words="scaled_dot_product_attention"),
            "bf16_products": Variant(words='set_float32_matmul_precision("medium")'),
            "bf16": Variant(words="bf16 autocast"),
            "compiled": Variant(words="torch.compile of each layer and the loss", compiles=True),
            # its optimizer compiles the update
            "masters": Variant(words="bf16 weights with fp32 masters", compiles=True, needs=("fused", "bf16")),
            "whole": Variant(words="torch.compile of the whole model", compiles=True, needs=("compiled",)),
            "reduce_overhead": Variant(words="CUDA graphs", compiles=True, needs=("whole",)),
            "max_autotune": Variant(words="max-autotune", compiles=True, needs=("whole",)),
        },
        baseline={"switches": "plain"},
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
        variants={
            "naive": Variant(holds_scores=True),
            "tiled": Variant("naive"),
            "sdpa": Variant("naive"),
            "sdpa_flash": Variant("sdpa"),
            "sdpa_efficient": Variant("sdpa"),
            "sdpa_cudnn": Variant("sdpa"),
            "compiled": Variant("naive", compiles=True, holds_scores=True),
            "flash_compiled": Variant("sdpa", compiles=True),
            "triton": Variant("sdpa"),
        },
        baseline={"native": False, "precision": "fp32"},
    ),
    "attention_module": Experiment(
        title="Attention with its projections",
        fields=("d_model", "context_length", "batch_size", "num_heads", "precision", "compiled", "device"),
        baseline={"compiled": False, "precision": "fp32"},
    ),
    "adam": Experiment(
        title="Optimizer steps",
        fields=("variant", "shapes", "num_params", "param_size", "amsgrad", "cold", "device"),
        variants={
            "single_tensor": Variant(),
            "foreach": Variant("single_tensor"),
            "fused": Variant("single_tensor", counts_on_device=True),
            "compiled_single_tensor": Variant("single_tensor", compiles=True, counts_on_device=True),
            "compiled_foreach": Variant("single_tensor", compiles=True, counts_on_device=True),
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
        variants={
            "plain": Variant(),
            "naive": Variant("torch_ddp"),
            "flat": Variant("torch_ddp"),
            "overlap": Variant("torch_ddp"),
            "bucketed": Variant("torch_ddp", has_buckets=True),
            "sharded": Variant("torch_zero", scheme="sharded", has_buckets=True),
            "fsdp": Variant("torch_fsdp", scheme="fsdp"),
            "torch_ddp": Variant(has_buckets=True),
            "torch_zero": Variant(scheme="sharded", has_buckets=True),
            "torch_fsdp": Variant(scheme="fsdp"),
        },
        baseline={"bucket_mib": 0},
    ),
    "peers": Experiment(
        title="Training steps of other libraries",
        fields=("size", "context_length", "batch_size", "precision", "program", "device"),
        axis="program",
        variants={"ours": Variant(), "transformers": Variant("ours")},
    ),
    "ceilings": Experiment(
        title="Limits of the machine",
        fields=("operation", "rows", "columns", "precision", "device"),
        alone=True,
    ),
    "calibration": Experiment(title="The measurement itself", fields=("check", "number", "device")),
}  # fmt: skip


def baseline(experiment: str, case: Mapping) -> dict | None:
    """Return the case that a case is paired with, or None if it is its own baseline.

    Both differ in one field: the variant if that has a baseline, else the first that has not its baseline's value."""
    entry = CATALOG[experiment]
    # records in git may name a variant that is gone
    variant = entry.variants.get(case.get(entry.axis), Variant())
    if variant.baseline:
        return {**case, entry.axis: variant.baseline}
    for name, value in entry.baseline.items():
        if isinstance(value, Mapping):
            value = value.get(case[name], case[name])
        if case[name] != value:
            return {**case, name: value}
    return None
