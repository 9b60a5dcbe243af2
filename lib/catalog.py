"""List the experiments, with one entry of plain data for each.

An experiment also has a case class in `lib/experiments`, a notebook, a chapter and lines in the sweeps.

>>> CATALOG["adam"].baseline
{'variant': 'single_tensor'}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Experiment:
    """Describes one experiment.

    - `title`: the name of its cases in headings.
    - `metric`: compared between machines; its unit ends its name. Empty if the experiment has a table of its own.
    - `ceiling`: the machine's limit for its rate, `products` or `memory`; empty for none.
    - `compared`: the values of fields that cases must have to be compared between machines.
    - `baseline`: the fields in which variants differ, each with the reference's value, or a dict from a value to its
      reference. A case's baseline differs in one field: the first that does not have the reference's value.
    - `plain`: True if a case with several fields unlike the reference's is also compared with the reference.
    - `variants`: names in the order in which the chapter introduces them, each with its look in figures or "": the hue
      of its family, and a dash within it, dashed, dotted or dashdot.
    - `settings`: parameters that only its notebook has, each with its least value, or False for a yes-or-no one.
    - `alone`: True if a case needs the whole machine, even one with several GPUs.
    """

    title: str
    metric: str = "total_ms"
    ceiling: str = ""
    compared: Mapping[str, object] = field(default_factory=dict)
    baseline: Mapping[str, object] = field(default_factory=dict)
    plain: bool = False
    variants: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    alone: bool = False


# axes that several experiments share: their values in the report's order, and the hues of precisions
PRECISIONS = {"fp32": "ink", "tf32": "orange", "bf16": "blue", "fp16": "green"}
MODES = ("no_grad", "forward", "forward_backward", "train_step")

CATALOG = {
    "step": Experiment(
        title="Training steps",
        ceiling="products",
        compared={"mode": "train_step"},
        baseline={
            "compiled": False,
            "attention": "naive",
            "optimizer": "single_tensor",
            "precision": "fp32",
            "mode": {"no_grad": "forward"},
        },
        plain=True,
    ),
    "ladder": Experiment(  # the last rung first
        title="Training steps with one switch more at a time",
        ceiling="products",
        compared={"mode": "train_step"},
        baseline={
            "compile_mode": "default",
            "attention": "naive",
            "cast_once": False,
            "projections": False,
            "precision": "fp32",
            "compiled": False,
            "optimizer": "single_tensor",
        },
        plain=True,
        settings={"steps": 0, "search": False},
    ),
    "warmup": Experiment(title="Steps of fresh processes", metric="first_total_ms"),
    "kernels": Experiment(
        title="Profiled steps",
        ceiling="products",
        compared={"mode": "train_step"},
        settings={"recorded": 1, "trace": False},
    ),
    "precision": Experiment(
        title="Mixed precision",
        metric="",
        variants=dict.fromkeys(("accumulation", "toy", "transformer", "layer_norm", "rms_norm"), ""),
    ),
    "memory": Experiment(title="Peaks of memory", metric="peak_mib", baseline={"checkpoint": 0, "precision": "fp32"}),
    "attention": Experiment(
        title="Attention",
        ceiling="products",
        compared={"cold": False},
        baseline={"native": False, "variant": "naive", "precision": "fp32"},
        variants={
            "naive": "ink",
            "tiled": "orange",
            "sdpa": "green",
            "sdpa_flash": "green dashed",
            "sdpa_efficient": "green dotted",
            "sdpa_cudnn": "green dashdot",
            "flex": "purple",
            "compiled": "ink dashed",
            "flash_compiled": "orange dashed",
            "triton": "blue",
        },
    ),
    "flash": Experiment(  # its variants are those of attention
        title="Attention with native inputs",
        ceiling="products",
        baseline={"variant": "sdpa"},
    ),
    "attention_module": Experiment(
        title="Attention with its projections",
        ceiling="products",
        baseline={"compiled": False, "precision": "fp32"},
    ),
    "compile": Experiment(
        title="Compiled programs",
        ceiling="products",
        baseline={"compiled": False, "precision": "fp32"},
        variants={"attention": ""},
    ),
    "adam": Experiment(
        title="Optimizer steps",
        ceiling="memory",
        compared={"amsgrad": True, "cold": False},
        baseline={"variant": "single_tensor"},
        variants={
            "equal": "",
            "single_tensor": "ink",
            "foreach": "orange",
            "fused": "green",
            "compiled_single_tensor": "ink dashed",
            "compiled_foreach": "orange dashed",
        },
    ),
    "allocator": Experiment(
        title="Programs with freed memory kept and given back",
        baseline={"allocator": "keeps"},
        variants={"keeps": "ink", "default": "orange"},
    ),
    "peers": Experiment(
        title="Training steps of other libraries",
        ceiling="products",
        baseline={"program": "ours"},
        variants={"ours": "ink", "transformers": "orange"},
    ),
    "collectives": Experiment(title="Collective operations", alone=True),
    "ddp": Experiment(
        title="Data-parallel training steps",
        ceiling="products",
        baseline={"variant": "torch"},
        variants={
            "naive": "ink",
            "flat": "purple",
            "overlap": "orange",
            "bucketed": "blue",
            "torch": "green",
        },
        alone=True,
    ),
    "sharded": Experiment(
        title="Training steps with a sharded optimizer",
        baseline={"variant": "torch"},
        variants={"plain": "ink", "sharded": "blue", "torch": "green"},
        alone=True,
    ),
    "fsdp": Experiment(
        title="Fully sharded training steps",
        ceiling="products",
        baseline={"variant": "torch"},
        variants={"plain": "ink", "fsdp": "blue", "torch": "green"},
        alone=True,
    ),
    "ceilings": Experiment(title="Limits of the machine", metric="", alone=True),
}
