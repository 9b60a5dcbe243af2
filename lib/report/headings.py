"""Name columns and axes, the same throughout the report, with the unit at the end.

>>> heading("backward_ms"), heading("seq_len"), heading("single_tensor")
('backward, ms', 'tokens', 'single_tensor')
"""

from lib.catalog import CATALOG, MODES, PRECISIONS
from lib.config import SIZES

UNITS = {
    "ms": "ms", "us": "µs", "ns": "ns", "s": "s", "mib": "MiB", "gib": "GiB", "percent": "%", "ratio": "relative",
    "verdict": "verdict",
}  # fmt: skip
VALUES = {*SIZES, *PRECISIONS, *MODES, *(name for each in CATALOG.values() for name in each.variants)}
PHASES = ("forward", "backward", "optimizer")
HEADINGS = {  # exceptions, where the rule of `heading` would say less
    **{f"{phase}_peak_mib": f"peak {phase}, MiB" for phase in PHASES},
    "added_error": "by adding",
    "algorithm_gb_per_s": "algorithm bandwidth, GB/s",
    "alone_ms": "all-reduces alone, ms",
    "apart_percent": "apart at most, %",
    "backward_end_mib": "after backward, MiB",
    "bandwidth_percent": "of memory's ceiling, %",
    "baseline": "against",
    "batch_size": "batch",
    "built_mib": "allocated once built, MiB",
    "bus_gb_per_s": "bus bandwidth, GB/s",
    "busy_percent": "of it in these, %",
    "by": "compared by",
    "by_formula": "by formula, MiB",
    "call_us": "a call, µs",
    "causal_gflops": "causal GFLOP/s",
    "causal_percent": "causal FLOPs, % of the ceiling",
    "ceiling_percent": "of the ceiling, %",
    "ceilings_ms": "by the ceilings, ms",
    "checkpoint": "layers in a group",
    "cold": "cold caches",
    "compile_s": "compiling, s",
    "context_length": "context, tokens",
    "d_head": "head size",
    "d_model": "d_model",
    "datasheet_mfu_percent": "MFU, % of the datasheet",
    "deviation_ms": "standard deviation, ms",
    "deviation_percent": "deviation, % of the mean",
    "deviation_percent_median": "deviation, %, median",
    "else_percent": "all else, %",
    "first_ratio": "first to later",
    "first_total_ms": "a step, ms",
    "flops_percent": "of their FLOPs, %",
    "formula_mib": "by formula, MiB",
    "formula_ms": "messages by the model, ms",
    "forward_backward_ms": "forward and backward, ms",
    "forward_backward_ratio": "forward and backward, relative",
    "forward_end_mib": "kept, MiB",
    "function": "made by",
    "gain": "over plain, ×",
    "gflops": "GFLOP/s",
    "gigabytes": "GB/s",
    "gradient_error": "error of the gradients",
    "gradient_mib": "gradients, MiB",
    "half_percent": "half the spacing, % of a term",
    "hidden_percent": "of it hidden, %",
    "initial_mib": "before the step, MiB",
    "kept_mib": "added forward, MiB",
    "kernel": "kernel or operator",
    "kernels_ms": "kernels or operators, ms",
    "label": "way",
    "last_loss": "last loss, nats",
    "launch_bound": "launch-bound",
    "last_update_error": "error of the last update",
    "later_ms": "later steps, ms",
    "least_ms": "least possible, ms",
    "least_percent": "least possible, % of the time",
    "least_world": "fits from, ranks",
    "limit_of": "limit by",
    "limit_percent": "of the limit, %",
    "logits_error": "error of the logits",
    "max_us": "most, µs",
    "megabytes": "message, MB",
    "mfu_percent": "MFU, % of the ceiling measured",
    "min_us": "least, µs",
    "minor_faults": "minor page faults",
    "minor_faults_kept": "minor page faults, memory kept",
    "model_mib": "module, MiB",
    "no_grad_gib": "no_grad, GiB",
    "num_heads": "heads",
    "num_params": "parameters",
    "operators_percent": "of all operators, %",
    "offset": "mean of the inputs, deviations",
    "out_error": "error of the output",
    "pair": "variants",
    "param_size": "elements of each",
    "part_ms": "time, ms",
    "payback_steps": "paid back after, iterations",
    "peer_version": "version of transformers",
    "per_element_ns": "an element, ns",
    "plain_loss": "plain, nats",
    "predicted_peak_mib": "predicted, MiB",
    "predicted_ratio": "by bytes",
    "product_ms": "of it products, ms",
    "profiled_ratio": "profiled to timed",
    "projections_percent": "in projections, % of FLOPs",
    "published_percent": "published, % of its memory",
    "rank_gib": "a rank, GiB",
    "ratio": "relative time",
    "ratio_median": "relative mean, median",
    "relative": "to naive",
    "resident_peak_mib": "whole process, MiB",
    "scale": "scale of the inputs",
    "scope": "part of the step",
    "seq_len": "tokens",
    "squares": "matrices of scores",
    "std_ms": "deviation, ms",
    "steady_from": "steady from step",
    "stored_error": "by storing 0.01",
    "sum_error": "error",
    "teraflops": "TFLOP/s",
    "time_percent": "of their time, %",
    "rung_gain": "over the rung before, ×",
    "rung_verdict": "verdict on the rung",
    "tokens_per_s": "tokens/s",
    "total_ms": "whole, ms",
    "total_ms_kept": "whole, ms, memory kept",
    "total_ratio": "whole, relative",
    "total_verdict": "whole, verdict",
    "train_step_gib": "train_step, GiB",
    "update_error": "error of the update",
    "wall_ms": "by the wall clock, ms",
    "warmups": "warm-ups",
    "weight_gradient_error": "error of a weight's gradient",
    "what": "what happens",
    "world": "ranks",
}


def heading(name: str) -> str:
    """Return the heading of a column or axis: its entry in `HEADINGS`, or words and unit.

    The name of a variant, a size, a precision or a mode stays as it is."""
    body, _, unit = name.rpartition("_")
    if name in HEADINGS or name in VALUES:
        return HEADINGS.get(name, name)
    return (f"{body}, {UNITS[unit]}" if body and unit in UNITS else name).replace("_", " ")


def is_quantity(name: str) -> bool:
    """Return True if a name is that of a quantity: it has a unit or its own heading."""
    return name in HEADINGS or name.rpartition("_")[2] in UNITS
