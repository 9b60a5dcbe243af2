"""Read what public write-ups printed, and what share of their peaks it is.

Each file of `reports/published` holds one kind of table; `sources.csv` says whose it is and, where known, its address.
`datasheets.csv` names its own sources. Numbers of other hardware are context: they neither confirm nor contradict ours.
"""

from dataclasses import replace

import pandas as pd

from lib.config import SIZES
from lib.cost import flops
from lib.paths import PUBLISHED
from lib.report import bounds

PASSES = {"forward": 1, "backward": 2, "forward_backward": 3, "train_step": 3}  # FLOPs, in forward passes
# the variant of ours that moves as many bytes
OURS = {"eager": "naive", "compiled": "compiled", "compiled_tf32": "compiled", "flash": "triton"}


def load(name: str) -> pd.DataFrame:
    """Return one of the tables, such as `adam`."""
    return pd.read_csv(PUBLISHED / f"{name}.csv")


def addresses() -> dict[str, str]:
    """Return the repositories of the write-ups that have one, by the number that stands for a write-up."""
    known = load("sources").query("source.str.startswith('write-up') and address.notna()")
    return dict(zip(known["source"], known["address"].str.removeprefix("https://github.com/"), strict=True))


def list_steps() -> pd.DataFrame:
    """Return the printed steps and their phases, with their shares of the peak.

    - The columns of `end_to_end.csv` and `data_parallel.csv`; `size`, `total_ms`, `precision`, `world` (GPUs).
    - `called`: what the source calls an arithmetic that must be another one, or else an empty text.
    - Optimizers multiply no matrices: they have `moved_bytes` in place of `flops`.
    - The columns of `add_utilisation`, NaN without a datasheet."""
    steps = load("end_to_end").rename(columns={"mean_ms": "total_ms"}).assign(world=1)
    steps["precision"] = steps["dtype"].replace({"float32": "fp32", "bfloat16": "bf16"})
    steps["precision"] = steps["precision"].mask(steps["tf32"].eq(True), "tf32")
    # what this write-up calls fp32 goes beyond the peak of fp32 (doubts.csv)
    is_tf32 = (steps["source"] == "write-up 003") & (steps["hardware"] == "RTX PRO 6000 WK")
    is_tf32 &= steps["precision"] == "fp32"
    steps["called"] = steps["precision"].where(is_tf32, "")
    steps["precision"] = steps["precision"].mask(is_tf32, "tf32")
    ranks = load("data_parallel").assign(phase="train_step", compiled=False, how="measured", called="")
    steps = pd.concat([steps, ranks], ignore_index=True).rename(columns={"model": "size"})
    shapes = []
    for step in steps.itertuples():
        config = replace(SIZES[step.size], context_length=step.context_length)
        shapes.append(flops.shape_of(config, step.batch_size))
    steps["flops"] = steps["phase"].map(PASSES) * [flops.forward_flops(shape) for shape in shapes]
    adam_bytes = pd.Series([flops.adam_bytes(shape.parameters, amsgrad=False) for shape in shapes])
    steps["moved_bytes"] = adam_bytes.where(steps["phase"] == "optimizer")
    return add_utilisation(steps, load("datasheets")).replace({"source": addresses()})


def list_attention() -> pd.DataFrame:
    """Return the printed attention, forward and backward together.

    It has the columns of `add_utilisation`. FLOPs are those of the scores that a query may see, and of those that flash
    attention computes again. The least bytes are those of our variant in `OURS`."""
    passes = load("attention").rename(columns={"d_model": "d_head", "pass_ms": "total_ms"})
    scores = ["batch_size", "seq_len", "d_head", "causal"]
    forward = [flops.attention_flops(*row) for row in passes[scores].itertuples(index=False)]
    is_recomputed = (passes["variant"] == "flash") & (passes["phase"] != "forward")
    passes["flops"] = (passes["phase"].map(PASSES) + 0.5 * is_recomputed) * forward
    moved_bytes = []
    for row in passes.itertuples():
        shape = row.batch_size, row.seq_len, row.d_head, row.causal
        by_phase = flops.attention_moved_bytes(OURS[row.variant], *shape, row.precision, native=True)
        moved_bytes.append(by_phase.get(row.phase) or sum(by_phase.values()))
    passes["moved_bytes"] = moved_bytes
    case = ["source", "hardware", "variant", "precision", *scores]
    cases = passes.groupby(case, as_index=False, sort=False)[["flops", "moved_bytes", "total_ms"]].sum()
    return add_utilisation(cases.assign(world=1), load("datasheets")).replace({"source": addresses()})


def list_adam(steps: pd.DataFrame, own: pd.DataFrame, peaks: pd.DataFrame) -> pd.DataFrame:
    """Return AdamW on the largest list of each source and variant, with `own` steps.

    Columns: those of the plain table, `list`, `rate_gbs`, and `memory_percent`, of `own` steps by `peaks`."""
    lists = load("adam").rename(columns={"step_ms": "total_ms"}).assign(shapes="equal")
    lists["moved_bytes"] = flops.adam_bytes(lists["num_params"] * lists["param_size"], amsgrad=True)
    lists["variant"] = lists["variant"].str.strip("_").str.removesuffix("_adam")
    optimizers = steps[steps["phase"] == "optimizer"]
    optimizers = optimizers.assign(variant="in a step of " + optimizers["size"], shapes=optimizers["size"])
    adam = pd.concat([lists, optimizers, own.assign(source="here")]).dropna(subset="total_ms")
    kinds = ["source", "variant"]
    adam = adam.sort_values([*kinds, "moved_bytes"]).drop_duplicates(kinds, keep="last").copy()
    equal = adam["num_params"].map("{:,.0f} × ".format) + adam["param_size"].map("{:,.0f}".format)
    adam["list"] = equal.where(adam["shapes"] == "equal", adam["shapes"])
    adam["rate_gbs"] = adam["moved_bytes"] / adam["total_ms"] / 1e6
    own_percent = 100 * adam["rate_gbs"] / peaks["memory_gb_per_s"].max()
    adam["memory_percent"] = adam["memory_percent"].fillna(own_percent.where(adam["source"] == "here"))
    return adam


def list_doubts(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers that cannot be.

    They are steps beyond the peak or below zero, and those of `doubts.csv`. Columns: source, what, printed, expected,
    reason."""
    doubtful = steps[(steps["utilisation_percent"] > 100) | (steps["total_ms"] <= 0)]
    what = [f"ms of {row.phase} of {row.size} in {row.precision} on {row.hardware}" for row in doubtful.itertuples()]
    shortest_ms = doubtful["flops"] / doubtful["tflops"] / 1e9
    reason = doubtful["how"] + ", and less than the peak allows"
    computed = doubtful[["source"]].assign(what=what, printed=doubtful["total_ms"], expected=shortest_ms, reason=reason)
    return pd.concat([computed, load("doubts")], ignore_index=True).replace({"source": addresses()})


def own_peaks(machine: str, hardware: str) -> pd.DataFrame:
    """Return a machine's `tflops` by `precision`, and `memory_gb_per_s`.

    They are those of its GPU's datasheet. Without one they are the best rates that were seen on it."""
    sheets = load("datasheets").dropna(subset="device")
    sheet = sheets[[hardware in names.split(" or ") for names in sheets["device"]]]
    if len(sheet):
        return sheet.drop(columns="hardware")
    products, memory = bounds.best_rates(bounds.load_ceilings(machine))
    tflops = products.groupby("precision").max() / 1e12
    return tflops.rename("tflops").reset_index().assign(memory_gb_per_s=memory.max() / 1e9)


def add_utilisation(rows: pd.DataFrame, peaks: pd.DataFrame) -> pd.DataFrame:
    """Return rows with their device's peaks, and the shares of them that they reach.

    - `utilisation_percent` of `tflops` from `flops`, and `memory_percent` of `memory_gb_per_s` from `moved_bytes`, both
      in `total_ms` on `world` devices.
    - Peaks are found by `precision`, and by `hardware` where they have it."""
    keys = [name for name in ("hardware", "precision") if name in peaks]
    rows = rows.merge(peaks[[*keys, "tflops", "memory_gb_per_s"]], how="left", on=keys)
    device_ms = rows["world"] * rows["total_ms"]
    rows["utilisation_percent"] = 100 * rows["flops"] / device_ms / 1e9 / rows["tflops"]
    rows["memory_percent"] = 100 * rows["moved_bytes"] / device_ms / 1e6 / rows["memory_gb_per_s"]
    return rows
