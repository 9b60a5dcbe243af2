"""Makes one plain and tiny case of each experiment, to be changed field by field, and measures it."""

from lib import notebooks
from lib.experiments import cases, measure
from lib.records import results
from lib.timing import Plan

TINY = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "seq_len": 8, "d_head": 4,
    "num_params": 2, "param_size": 8, "rows": 8, "columns": 8, "device": "cpu",
}  # fmt: skip
OWN = {"adam": {"variant": "fused"}, "ceilings": {"operation": "copy"}}
OWN |= {name: {"batch_size": 2} for name in ("ddp", "sharded", "fsdp")}  # a sequence for each rank


def one(experiment, **changed):
    """Return the case that the notebook's defaults begin with, made tiny, with these fields changed."""
    defaults = notebooks.parameters(experiment)
    first = {
        name: defaults[name][0] if isinstance(defaults[name], list) else defaults[name]
        for name in notebooks.fields(experiment)
    }
    tiny = {name: value for name, value in TINY.items() if name in first}
    (case,) = cases.grid(experiment, **first | tiny | OWN.get(experiment, {}) | changed)
    return case


def measured(case, round=1):
    """Measure a case as its notebook does, and return the record."""
    with measure.recording(case, round) as record:
        work = record.setup()
        record.metrics |= measure.errors(work)
        record.metrics |= measure.times(work, Plan(1, 6))
        record.metrics |= measure.peaks(work)
        record.metrics |= measure.pairs(record, 7, 1)
    return results.read(measure.record_path(case, round))
