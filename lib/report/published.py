"""Compare this machine's medians with public write-ups and other machines, by case.

The published tables are those of `reports/reference/published/`, in the words of this project's cases. Values
derived by subtracting two runs are left out, since they were not measured.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields

import pandas as pd

from lib.cost.flops import Shape, forward_flops
from lib.records import results
from lib.report import compare, roofline, tables, tidy
from lib.report.headings import heading
from lib.stats.intervals import Interval

PUBLISHED = results.REFERENCE / "published"
PRECISION = {"float32": "fp32", "bfloat16": "bf16"}


def published_table(table: str) -> pd.DataFrame:
    """Read a published table; see `reports/reference/published/README.md`."""
    return pd.read_csv(PUBLISHED / f"{table}.csv")


def datasheets() -> pd.DataFrame:
    """Read the peaks that makers state, one row per GPU and precision.

    They are in TFLOP/s and GB/s, each with its convention and source. `device` is the name, or two, that CUDA gives."""
    return pd.read_csv(results.REFERENCE / "datasheets.csv")


def published_step() -> pd.DataFrame:
    """Return published training steps in ms, one row per case and source.

    `forward_flops` assumes the assignment's vocabulary of 10,000. Of several numbers of warm-ups the most is taken;
    an unstated one counts as the most, since it is the source's main table. A mean is left out if its standard
    deviation exceeds half of it. Published float32 may have run in TF32."""
    table = published_table("end_to_end")
    table = table[(table["how"] == "measured") & ~(table["std_ms"] > table["mean_ms"] / 2)].copy()
    table["precision"] = table["dtype"].map(PRECISION).where(~table["tf32"].eq(True), "tf32")
    dimensions = [field.name for field in fields(Shape) if field.name in table]
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
    """Return published attention passes in ms, one row per case and source.

    `total_ms` is the sum of both passes; `forward_end_mib` is the memory before the backward pass, if stated."""
    table = published_table("attention").rename(columns={"d_model": "d_head"})
    table["precision"] = table["variant"].map(lambda name: "tf32" if name.endswith("tf32") else "fp32")
    table["variant"] = table["variant"].map({"eager": "naive", "compiled": "compiled", "compiled_tf32": "compiled"})
    keys = ["variant", "seq_len", "d_head", "precision", "source", "hardware"]
    wide = table.pivot_table(index=keys, columns="phase", values="pass_ms")
    wide = wide.join(table.groupby(keys)["memory_after_forward_mib"].first()).reset_index()
    names = {"forward": "forward_ms", "backward": "backward_ms", "memory_after_forward_mib": "forward_end_mib"}
    wide = wide.rename(columns=names).assign(batch_size=8)
    return wide.assign(total_ms=wide["forward_ms"] + wide["backward_ms"])


def published_flash() -> pd.DataFrame:
    """Return published times of causal FlashAttention, and of naive attention beside it, in ms.

    One row per case and source. Where the number of heads is not stated, it counts as one, which the assignment asks
    for. `total_ms` is that of forward and backward."""
    table = published_table("other_writeups")
    parts = table["experiment"].str.extract(r"^(flash|naive) attention (?:(\d+) heads )?d_head (\d+) causal$")
    table = table.assign(variant=parts[0], num_heads=parts[1].fillna("1"), d_head=parts[2])[parts[0].notna()]
    table = (
        table.rename(columns={"context_length": "seq_len"})
        .astype({"num_heads": int, "d_head": int})
        .assign(causal=True)
    )
    keys = ["num_heads", "seq_len", "d_head", "causal", "precision", "variant", "source", "hardware"]
    wide = table.pivot_table(index=keys, columns="metric", values="value", sort=False).reset_index()
    return wide.rename(columns={"forward_backward_ms": "total_ms"}).rename_axis(columns=None)


def published_adam() -> pd.DataFrame:
    """Return published optimizer steps in ms, one row per case and source.

    Both sources state that they used amsgrad and flushed the caches within the timed step."""
    table = published_table("adam").rename(columns={"step_ms": "total_ms"})
    table["variant"] = table["variant"].str.removeprefix("_").str.removesuffix("_adam")
    return table.assign(hardware="a CPU, not stated", amsgrad=True, cold=True).drop(columns="table")


def to_baselines(machine: str) -> pd.DataFrame:
    """Compare each variant with its family's reference, in the largest fp32 case measured.

    The references are the eager step, naive attention and single_tensor. The column `name` sets the colour."""
    steps, attention, adam = (results.load(name, machine) for name in ("step", "attention", "adam"))
    step = tidy.largest(steps, "parameters", precision="fp32", compiled=True, mode="train_step", attention="naive")
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
    """Return the rows of `own` and `others` whose `keys` occur in both, `own` first.

    Stale rows of `own` are left out; `case` names the case in a few words."""
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
    """Describe a case: true fields by name, texts as they are, numbers with a heading."""
    said = []
    for name, value in case.items():
        if str(value) in ("True", "False"):
            said += [name] * bool(value)
        else:
            said.append(value if isinstance(value, str) else f"{heading(name).partition(',')[0]} {value:,}")
    return ", ".join(said)


def other_machines(experiment: str, machine: str, *metrics: str, **where) -> pd.DataFrame:
    """Return medians of other machines' reference records with these values of fields."""
    medians = tidy.medians(tidy.select(results.reference(experiment, but=machine), **where), *metrics)
    return medians.assign(source="records of " + medians["machine"])


def with_mfu(rows: pd.DataFrame, flops: Callable[[pd.Series], float]) -> pd.DataFrame:
    """Add `mfu_percent` and `datasheet_mfu_percent`, the FLOPs in `total_ms` as shares of two peaks.

    The first peak is the ceiling measured on the row's `machine`; a row that has this share keeps it. The second is
    the maker's for its hardware. Both are for its precision. Missing where the peak is unknown."""
    stated = _stated_flops()
    machines = tidy.column(rows, "machine").dropna().unique()
    measured = {name: roofline.ceiling(results.load("ceilings", name), "matmul", "flops") for name in machines}

    def percent(row: pd.Series, peak: float | Interval | None) -> Interval | None:
        found, most = tables.as_interval(row["total_ms"]), tables.as_interval(peak)
        if found is None or most is None:
            return None
        return found.inverse.scaled(float(1e5 * flops(row) / most.value)).widened(most.log_error)

    own, makers = [], []
    for _, row in rows.iterrows():
        known = tables.as_interval(row.get("mfu_percent"))
        own.append(known or percent(row, measured.get(row.get("machine"), {}).get(row["precision"])))
        makers.append(percent(row, stated.get((row["hardware"].partition(",")[0], row["precision"]))))
    return rows.assign(mfu_percent=own, datasheet_mfu_percent=makers)


def _stated_flops() -> dict[tuple[str, str], float]:
    """Return makers' FLOP/s by hardware and precision.

    The hardware goes by its name in write-ups and by that of CUDA."""
    return {
        (name, row["precision"]): row["tflops"] * 1e12
        for _, row in datasheets().iterrows() for name in (row["hardware"], *row["device"].split(" or "))
    }  # fmt: skip
