"""Makes one plain and tiny case of each experiment, to be changed field by field, and measures a case."""

from lib.catalog import CATALOG
from lib.experiments import cases
from lib.experiments.case import Recording

TINY = {
    "size": "tiny", "context_length": 8, "batch_size": 2, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "seq_len": 8, "d_head": 4,
    "num_params": 2, "param_size": 8, "rows": 8, "columns": 8, "device": "cpu", "checkpoint": 0,
}  # fmt: skip
OWN = {"adam": {"variant": "fused"}, "ceilings": {"operation": "copy"}, "attention": {"batch_size": 1}}


def one(experiment, **changed):
    """Return an experiment's default case, made tiny, with these fields changed."""
    tiny = {name: value for name, value in TINY.items() if name in CATALOG[experiment].fields}
    (case,) = cases.grid(experiment, **tiny | OWN.get(experiment, {}) | changed)
    return case


def measured(case, seconds=0, round=1):
    """Return what a case measures, without the probes and the limit of memory around it."""
    record = Recording(case, round)
    case.measure(record, seconds)
    return record.metrics
