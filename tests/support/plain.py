"""One plain and tiny case of each family, to be changed field by field."""

from lib.experiments import cases

STEP = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip
ATTENTION = {
    "variant": "naive", "seq_len": 8, "d_head": 4, "batch_size": 1, "causal": True, "precision": "fp32",
    "cold": False, "device": "cpu",
}  # fmt: skip
ADAM = {
    "variant": "fused", "shapes": "equal", "num_params": 2, "param_size": 8, "amsgrad": True, "cold": False,
    "device": "cpu",
}  # fmt: skip
CEILINGS = {"operation": "copy", "rows": 8, "columns": 8, "precision": "fp32", "device": "cpu"}
PLAIN = {"step": STEP, "attention": ATTENTION, "adam": ADAM, "ceilings": CEILINGS}


def one(experiment, **changed):
    (case,) = cases.grid(experiment, **PLAIN[experiment] | changed)
    return case
