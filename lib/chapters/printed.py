"""The tables of public write-ups in the shape of records, so that the same claim can be held against both; knows no
claim."""

import functools

import pandas as pd

from lib.chapters import kernels, warmup_claims
from lib.report import published
from lib.report.published import published_table

DIMENSIONS = ("size", "context_length", "seq_len", "d_head", "batch_size", "num_params", "param_size")
FIELDS = (*DIMENSIONS, "precision", "compiled", "variant", "mode", "hardware")


@functools.cache
def tables(write_up: str) -> dict[str, pd.DataFrame]:
    """What a write-up, by its number, printed of each experiment: frames as `results.load` gives them, every metric a
    list of one number, `printed` among their attributes; not to be changed, since they are kept. A step's `total_ms` is
    that of forward and backward where no more was printed."""
    steps = published.published_step()
    steps = steps.assign(total_ms=steps["total_ms"].fillna(steps["forward_backward_ms"]))
    memory = published_table("memory").rename(columns={"model": "size", "phase": "mode"})
    memory["precision"] = memory["precision"].map({"float32": "fp32", "mixed": "bf16"})
    found = {
        "step": steps.drop(columns=["d_model", "forward_flops"]),
        "attention": published.published_attention(),
        "adam": published.published_adam().drop(columns=["amsgrad", "cold"]),
        "memory": memory.assign(peak_mib=memory["peak_gib"] * 2**10).drop(columns="peak_gib"),
    }
    chosen = {name: table[table["source"] == f"write-up {write_up}"] for name, table in found.items()}
    frames = {name: _as_records(name, table) for name, table in chosen.items() if len(table)}
    own = {
        "warmup": warmup_claims.published(),
        "kernels": kernels.published_shares(),
    }  # as their chapters have them
    for name, table in own.items():
        table = table[table["source"] == f"write-up {write_up}"]
        table.attrs = {"fields": [], "experiment": name, "printed": True}
        frames |= {name: table} if len(table) else {}
    return frames


def _as_records(experiment: str, table: pd.DataFrame) -> pd.DataFrame:
    metrics = [name for name in table if name.endswith(("_ms", "_mib"))]
    lists = {name: table[name].map(lambda value: None if pd.isna(value) else [float(value)]) for name in metrics}
    frame = table.assign(**lists, status="ok", round=1).reset_index(drop=True)
    frame.attrs = {"fields": [name for name in FIELDS if name in table], "experiment": experiment, "printed": True}
    return frame
