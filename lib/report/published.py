"""Sets this machine's medians beside public write-ups and other machines, for the same case only.

The published tables are those of `reports/reference/published/`, in the words of this project's cases; what they
derived by subtracting two runs is left out, since it is no measurement.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields

import pandas as pd

from lib.cost.flops import Shape, forward_flops
from lib.records import results
from lib.report import compare, tables, tidy
from lib.report.headings import heading
from lib.stats.intervals import Interval

PUBLISHED = results.REFERENCE / "published"
PRECISION = {"float32": "fp32", "bfloat16": "bf16"}


def published_table(table: str) -> pd.DataFrame:
    """Read a table of figures from public write-ups, which `reports/reference/published/README.md` describes."""
    return pd.read_csv(PUBLISHED / f"{table}.csv")


def datasheets() -> pd.DataFrame:
    """Read the peaks that makers state for the GPUs of the published figures, one row a GPU and precision.

    They are in TFLOP/s and GB/s, each with its convention and source."""
    return pd.read_csv(results.REFERENCE / "datasheets.csv")


def published_step() -> pd.DataFrame:
    """Published training steps, one row a case and source, in ms: `forward_ms, forward_backward_ms, total_ms`; with the
    `d_model` of the model and its `forward_flops` (its vocabulary of 10,000 is the assignment's). Where a source varied
    the warm-up the most is taken, an unstated one being its main table. Means whose standard deviation is more than
    half of them are left out. A precision called float32 may have run in TF32."""
    table = published_table("end_to_end")
    table = table[(table["how"] == "measured") & ~(table["std_ms"] > table["mean_ms"] / 2)].copy()
    table["precision"] = table["dtype"].map(PRECISION).where(~table["tf32"].eq(True), "tf32")
    dimensions = [field.name for field in fields(Shape) if field.name != "vocab_size"]
    shapes = (Shape(vocab_size=10_000, **row) for row in table[dimensions].astype(int).to_dict("records"))
    table["forward_flops"] = [forward_flops(shape) for shape in shapes]
    table["warmup_steps"] = table["warmup_steps"].fillna(math.inf)
    table = table.sort_values("warmup_steps").rename(columns={"model": "size"})
    keys = ["size", "d_model", "context_length", "batch_size", "precision", "compiled", "source", "hardware"]
    keys.append("forward_flops")
    wide = table.pivot_table(index=keys, columns="phase", values="mean_ms", aggfunc="last").reset_index()
    names = {"forward": "forward_ms", "forward_backward": "forward_backward_ms", "train_step": "total_ms"}
    return wide.rename(columns=names)


def published_attention() -> pd.DataFrame:
    """Published attention passes, one row a case and source, in ms: `forward_ms, backward_ms` and their sum `total_ms`;
    and `forward_end_mib`, the memory before the backward pass, where the source has it."""
    table = published_table("attention").rename(columns={"d_model": "d_head"})
    table["precision"] = table["variant"].map(lambda name: "tf32" if name.endswith("tf32") else "fp32")
    table["variant"] = table["variant"].map({"eager": "naive", "compiled": "compiled", "compiled_tf32": "compiled"})
    keys = ["variant", "seq_len", "d_head", "precision", "source", "hardware"]
    wide = table.pivot_table(index=keys, columns="phase", values="pass_ms")
    wide = wide.join(table.groupby(keys)["memory_after_forward_mib"].first()).reset_index()
    names = {"forward": "forward_ms", "backward": "backward_ms", "memory_after_forward_mib": "forward_end_mib"}
    wide = wide.rename(columns=names).assign(batch_size=8)
    return wide.assign(total_ms=wide["forward_ms"] + wide["backward_ms"])


def published_adam() -> pd.DataFrame:
    """Published optimizer steps, one row a case and source, in ms: `total_ms`. Both sources are said to
    have used amsgrad and to have flushed the caches, within the time of the step."""
    table = published_table("adam").rename(columns={"step_ms": "total_ms"})
    table["variant"] = table["variant"].str.removeprefix("_").str.removesuffix("_adam")
    return table.assign(hardware="a CPU, not stated", amsgrad=True, cold=True).drop(columns="table")


def to_references(machine: str) -> pd.DataFrame:
    """How each variant's time relates to that of its family's reference, in the largest fp32 case measured: the
    compiled step to the eager one, attention to naive, the optimizer to single_tensor. Columns `label`, `name`
    (which has the colour), `ratio`, `hardware`."""
    steps, attention, adam = (results.load(name, machine) for name in ("step", "attention", "adam"))
    step = tidy.largest(steps, "parameters", precision="fp32", compiled=True, mode="train_step")
    longest = tidy.largest(attention, "seq_len", precision="fp32", causal=True, cold=False, d_head=64)
    most = tidy.largest(adam, "elements", cold=False, shapes="equal", amsgrad=True)
    families = {
        "step": compare.ratios(steps, "compiled", False, step).replace({"name": {True: "compiled"}}),
        "attention": compare.ratios(attention, "variant", "naive", longest),
        "adam": compare.ratios(adam, "variant", "single_tensor", most),
    }
    labelled = [table.assign(label=family + ": " + table["name"].astype(str)) for family, table in families.items()]
    return pd.concat(labelled, ignore_index=True)


def same_cases(own: pd.DataFrame, others: list[pd.DataFrame], keys: list[str]) -> pd.DataFrame:
    """The rows of `own`, but for stale ones, and of `others` whose `keys` occur in both, case by case, this machine's
    row first; `case` names the case in a few words."""
    own = tidy.current(own)
    theirs = pd.concat([other.astype(object) for other in others], ignore_index=True)
    own = own.assign(source="this report")
    shared = set(own[keys].itertuples(index=False, name=None)) & set(theirs[keys].itertuples(index=False, name=None))
    rows = pd.concat([own, theirs], ignore_index=True)
    rows = rows[[key in shared for key in rows[keys].itertuples(index=False, name=None)]]
    rows["case"] = [case_text(dict(zip(keys, row, strict=True))) for row in rows[keys].itertuples(index=False)]
    for name in ("noisy", "why"):
        rows[name] = tidy.column(rows, name).fillna("")
    return rows.sort_values(keys, key=tidy.in_order, kind="stable", ignore_index=True)


def case_text(case: Mapping) -> str:
    """The fields of a case in a few words: a name where it is true, a number behind what it counts."""
    said = []
    for name, value in case.items():
        if str(value) in ("True", "False"):
            said += [name] * bool(value)
        else:
            said.append(value if isinstance(value, str) else f"{heading(name).partition(',')[0]} {value:,}")
    return ", ".join(said)


def other_machines(experiment: str, machine: str, *metrics: str, **where) -> pd.DataFrame:
    """Medians of the records kept in git of other machines, of the cases with these values of fields."""
    medians = tidy.medians(tidy.select(results.reference(experiment, but=machine), **where), *metrics)
    return medians.assign(source="records of " + medians["machine"])


def with_peak_percent(rows: pd.DataFrame, metric: str, flops: Callable[[pd.Series], float]) -> pd.DataFrame:
    """The rows with `peak_percent`: the FLOPs of a row a second, by its metric in milliseconds, in percent of the peak
    that the maker states for its hardware and precision, or, for records of this project, which name their `machine`,
    of the ceiling measured there. Missing where that is not known."""
    stated = datasheets().set_index(["hardware", "precision"])["tflops"] * 1e12
    machines = tidy.column(rows, "machine").dropna().unique()
    measured = {name: tidy.ceiling(results.load("ceilings", name), "matmul", "flops") for name in machines}

    def percent(row: pd.Series) -> Interval | None:
        own = measured.get(row.get("machine"))
        peak = stated.get((row["hardware"], row["precision"])) if own is None else own.get(row["precision"])
        found = tables.as_interval(row[metric])
        if peak is None or found is None:
            return None
        value, high, low = (1e5 * flops(row) / (peak * ms) for ms in (found.value, found.low, found.high))
        return Interval(float(value), float(low), float(high), found.n, found.rounds)

    return rows.assign(peak_percent=[percent(row) for _, row in rows.iterrows()])
