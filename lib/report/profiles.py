"""Sort the time of profiled steps by kinds of kernels, each beside its bound."""

import numpy as np
import pandas as pd

from lib.catalog import CATALOG
from lib.config import MODES
from lib.instruments import kernel_classes
from lib.report import bounds
from lib.report.sentences import extremes, ms, number
from lib.report.steps import tell_library
from lib.report.table import table, unfold

CASE = [*CATALOG["kernels"].fields, "machine"]
PRODUCTS, OTHERS, OPTIMIZER, OVERHEAD = "matrix products", "other kernels", "optimizer", "overhead"
WAITS = "overhead and gaps"  # no kernel computes
# of the classes of `lib.instruments.kernel_classes`; a fused kernel of attention counts as a product
KINDS = {"matrix product": PRODUCTS, "attention": PRODUCTS, "optimizer": OPTIMIZER, "overhead": OVERHEAD}
TOLD = (PRODUCTS, OPTIMIZER, OTHERS, WAITS)
# the rows from the bound to the step
BOUND, LIBRARY = "bound, by the best rates", "products: the library called is slower at best"
IN_STEP = "products: in these shapes, within the step"
TOTAL = "the step, timed without the profiler"
CASCADE = pd.Index([BOUND, LIBRARY, IN_STEP, OTHERS, OPTIMIZER, WAITS, TOTAL], name="part")
CURES = {
    PRODUCTS: "take a faster arithmetic, such as bf16",
    OTHERS: "fuse more of what moves data",
    OPTIMIZER: "take one fused kernel, AdamW(fused=True)",
    WAITS: "make fewer calls, by torch.compile, CUDA graphs or more tokens at a time",
}
# what a compiler puts around the names of the operations that it fuses
COMPILED = r"^(?:graph_\d+_)?(?:cpp|triton_\w+?)_fused_+|_\d+$"


def choose(records: pd.DataFrame) -> pd.DataFrame:
    """Return one profile a case, since kernels of one process do not add up to the phases of another.

    Of several it is that of the shortest step, which other programs disturbed least."""
    times = records.reindex(columns=["total_ms"])["total_ms"].map(np.median, na_action="ignore")
    ranked = records.assign(took_ms=times.astype(float)).sort_values(["stale", "took_ms"], kind="stable")
    return ranked.drop_duplicates(CASE).drop(columns="took_ms")


def by_kind(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row a case, phase and kind of kernels, of the profiles of the first machine.

    The columns are those of the plain table, and:

    - `kind`: matrix products, optimizer, overhead (operators that move no data), or other kernels.
    - `calls`, `kernels_ms`, and `share_percent` of `total_ms`.
    - `bound_ms`: the FLOPs of products, or the bytes of what moves data, at the best rates. NaN for overhead.
    - `beyond_ms`: `kernels_ms` less the kind's part of the step's bound, which has the larger bound of each phase."""
    single = choose(records)
    profiles = table(single)
    machine = profiles.attrs["machine"]
    profiles = profiles[(profiles["machine"] == machine) & (profiles["profiled_total_ms"] > 0)]
    classes = _list_times(single, "classes", ["phase", "class", "calls", "total_us"])
    classes["kind"] = classes["class"].map(KINDS).fillna(OTHERS)
    parts = classes.groupby([*CASE, "phase", "kind"], sort=False, as_index=False)[["calls", "kernels_ms"]].sum()
    # a copy, since pandas warns of new columns in a frame of many blocks
    parts = parts.merge(profiles.drop(columns=["calls", "bound_ms"])).copy()
    parts["share_percent"] = 100 * parts["kernels_ms"] / parts["total_ms"]
    products, memory = bounds.best_rates(bounds.load_ceilings(machine))
    flops_per_ms = products.reindex(pd.MultiIndex.from_frame(parts[["device", "precision"]])).to_numpy() / 1e3
    bytes_per_ms = memory.reindex(parts["device"]).to_numpy() / 1e3
    parts["bound_ms"] = float("nan")
    for phase in MODES["train_step"]:
        flops_ms = parts.get(f"{phase}_flops", float("nan")) / flops_per_ms
        bytes_ms = parts[f"{phase}_bytes"] / bytes_per_ms
        is_product = (parts["phase"] == phase) & (parts["kind"] == PRODUCTS)
        is_moving = (parts["phase"] == phase) & parts["kind"].isin([OTHERS, OPTIMIZER])
        parts["bound_ms"] = parts["bound_ms"].mask(is_product, flops_ms).mask(is_moving, bytes_ms)
    binding_ms = parts.groupby([*CASE, "phase"])["bound_ms"].transform("max")
    beyond_ms = parts["kernels_ms"] - parts["bound_ms"].where(parts["bound_ms"] == binding_ms, 0.0)
    # without a bound nothing is known to be lost
    return parts.assign(beyond_ms=beyond_ms.where(binding_ms.notna()))


def _list_times(records: pd.DataFrame, name: str, columns: list[str]) -> pd.DataFrame:
    """Unfold a table of profiles, one a case, and add `kernels_ms`.

    On a CPU, whose operators can take longer under the profiler, a row has its share of the phase as it is timed
    without one, in the same process. On a GPU a kernel takes as long."""
    phases = []
    for phase in MODES["train_step"]:
        times = records.reindex(columns=[f"profiled_{phase}_ms", f"{phase}_ms"])
        profiled_ms, timed_ms = times.map(np.median, na_action="ignore").astype(float).T.to_numpy()
        phases.append(records[CASE].assign(phase=phase, slowed=profiled_ms / timed_ms))
    rows = unfold(records, name, columns).merge(pd.concat(phases), "left")
    slowed = rows["slowed"].where(rows["device"] == "cpu").fillna(1.0)
    return rows.assign(kernels_ms=rows["total_us"].astype(float) / 1e3 / slowed)


def sum_up(parts: pd.DataFrame) -> pd.DataFrame:
    """Return one row a case of `by_kind`, with the columns of the plain table.

    - `calls`, `kernels_ms`, `filled_percent`: the share of the iteration that kernels and overhead fill.
    - `products_in_forward_percent`, `products_percent`: the share of products, of the forward pass and of the whole.
    - `launches_ms`: the calls, each as long as one that computes next to nothing.
    - `model`: small at 4 × 128 tokens in fp32. `how`: compiled, naive attention, fused. `step`: train step of both."""
    is_product = parts["kind"] == PRODUCTS
    counted = parts.assign(
        filled_percent=parts["share_percent"],
        products_percent=parts["share_percent"].where(is_product, 0.0),
    )
    names = ["calls", "kernels_ms", "filled_percent", "products_percent"]
    sums = counted.groupby(CASE, sort=False)[names].sum()
    products_ms = parts["kernels_ms"].where(is_product & (parts["phase"] == "forward"), 0.0)
    in_forward = (100 * products_ms / parts["forward_ms"]).rename("products_in_forward_percent")
    sums = sums.join(parts[CASE].join(in_forward).groupby(CASE)["products_in_forward_percent"].sum())
    facts = parts.drop(columns=["phase", "kind", "calls", "kernels_ms", "share_percent", "bound_ms", "beyond_ms"])
    cases = facts.drop_duplicates(CASE).merge(sums.reset_index())
    launch_us = bounds.call_us(next(iter(cases["machine"]), ""))
    batches = cases["batch_size"].astype(str) + " × " + cases["context_length"].astype(str)
    model = cases["size"] + " at " + batches + " tokens in " + cases["precision"]
    compiled = cases["compiled"].map({True: "compiled, ", False: ""})
    how = compiled + cases["attention"] + " attention, " + cases["optimizer"]
    return cases.assign(
        launches_ms=cases["calls"] * cases["device"].map(launch_us) / 1e3,
        model=model,
        how=how,
        step=cases["mode"].str.replace("_", " ") + " of " + model + " (" + how + ")",
    )


def split(parts: pd.DataFrame) -> str:
    """Say where the time of one profiled step goes: matrix products 83% (1.3× the bound), …"""
    sums = parts.groupby("kind")[["share_percent", "kernels_ms", "bound_ms"]].sum()
    texts = []
    for kind, share_percent, kernels_ms, bound_ms in sums.sort_values("kernels_ms", ascending=False).itertuples():
        over = f" ({kernels_ms / bound_ms:.1f}× the bound)" if bound_ms > 0 else ""
        texts.append(f"{kind} {share_percent:.0f}%{over}")
    # times of older profiles may add up to more than the step
    gaps_percent = max(0.0, 100 - sums["share_percent"].sum())
    return ", ".join([*texts, f"gaps {gaps_percent:.0f}%"])


def shares(parts: pd.DataFrame) -> pd.Series:
    """Return the percentage of one profiled step that each kind takes, the most first; see `lose`."""
    return _sum_kinds(parts, "share_percent", 100 - parts["share_percent"].sum())


def list_shares(records: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return `shares` of every process's profile of some steps, each with `_percent` after its kind.

    There is a row for each process and step, with its CASE."""
    rows = []
    for _, of_round in records.groupby("round"):
        for case, parts in by_kind(of_round).merge(steps[CASE]).groupby(CASE):
            rows.append(dict(zip(CASE, case, strict=True)) | shares(parts).add_suffix("_percent").to_dict())
    return pd.DataFrame(rows, columns=[*CASE, *[f"{kind}_percent" for kind in TOLD]])


def tell_range(every: pd.DataFrame) -> str:
    """Say between which shares the processes of one step of `list_shares` lie; nothing if there is one."""
    if len(every) < 2:
        return ""
    ranges = []
    for kind in TOLD:
        ranges.append(f"{kind} {extremes(every[f'{kind}_percent'], '.0f')}%")
    return f" It is the shortest of {len(every)} such steps (in all of them {', '.join(ranges)})."


def lose(parts: pd.DataFrame) -> pd.Series:
    """Return the ms that one profiled step takes beyond its bound, by kind, the most first.

    `parts` are its rows of `by_kind`. Overhead and gaps between kernels are one kind. Without a bound, it is empty."""
    if not parts["bound_ms"].sum() > 0:
        return pd.Series(dtype=float)
    return _sum_kinds(parts, "beyond_ms", parts["total_ms"].max() - parts["kernels_ms"].sum())


def _sum_kinds(parts: pd.DataFrame, name: str, gaps: float) -> pd.Series:
    sums = parts.groupby(parts["kind"].replace(OVERHEAD, WAITS))[name].sum()
    if len(sums):
        # times of older profiles may add up to more than the step
        sums[WAITS] = sums.get(WAITS, 0.0) + max(gaps, 0.0)
    return sums.sort_values(ascending=False)


def cascade(parts: pd.DataFrame, step: pd.DataFrame) -> pd.DataFrame:
    """Return the parts that lead from the bound of one profiled step to its time.

    Columns: `ms` and `percent`, which add up to the last row. `parts` are its rows of `by_kind`, `step` its row of
    `sum_up`. The rows are those of CASCADE, empty where there is nothing. What products lose has two: by the library,
    whose best rate is below that of another one, and the rest. Without a bound all rows are empty."""
    lost_ms = lose(parts)
    if lost_ms.empty:
        return pd.DataFrame(index=CASCADE, columns=["ms", "percent"], dtype=float)
    (row,) = step.itertuples()
    products, _ = bounds.list_rates(bounds.load_ceilings(row.machine).merge(step[["device"]]))
    called = products.loc[products["arithmetic"] == row.precision, "rate"].max()
    best = products.loc[products["precision"] == row.precision, "rate"].max()
    library_ms = parts.loc[parts["kind"] == PRODUCTS, "bound_ms"].sum() * (best / called - 1)
    step_ms = max(row.total_ms, parts["kernels_ms"].sum())
    by_part = {**lost_ms, LIBRARY: library_ms, IN_STEP: lost_ms[PRODUCTS] - library_ms}
    by_part |= {BOUND: step_ms - lost_ms.sum(), TOTAL: step_ms}
    took_ms = pd.Series(by_part)
    took_ms = took_ms[took_ms.abs() > 1e-6].reindex(CASCADE)
    return pd.DataFrame({"ms": took_ms, "percent": 100 * took_ms / step_ms})


def cure(kind: str, precision: str) -> str:
    """Say what to do where a step in this precision loses its time by a kind of kernels."""
    if kind == PRODUCTS and precision == "bf16":
        return "take more sequences a step, whose products are larger"
    return CURES[kind]


def advise(subject: str, step: pd.DataFrame, parts: pd.DataFrame, records: pd.DataFrame) -> str:
    """Say what one profiled step takes beyond its bound, and what to do about its largest loss.

    `subject` names it, at the head of the sentence. `step` is its row of `sum_up`, `parts` are its rows of `by_kind`,
    and `records` its record. Without a bound there is nothing to say."""
    lost_ms = lose(parts)
    if lost_ms.empty:
        return ""
    (row,) = step.itertuples()
    kind = lost_ms.index[0]
    text = f"{subject} takes {ms(row, 'total')}, {lost_ms.sum():,.0f} ms beyond its bound: "
    text += f"{join(lost_ms)}. So {cure(kind, row.precision)}"
    if kind == PRODUCTS:
        return f"{text}.{tell_library(step)}"
    text += f" (at most {1 / (1 - lost_ms[kind] / row.total_ms):.2f}×)."
    named_ms = by_name(records).query("is_other").groupby("op")["kernels_ms"].sum()
    # a record names only the kernels that take the most
    if kind == OTHERS and len(named_ms):
        text += f" The longest of them is `{named_ms.idxmax()}` ({named_ms.max():.3g} ms)."
    return text


def join(lost_ms: pd.Series) -> str:
    """Join the kinds of `lose` for a sentence: matrix products 456, optimizer 181, ..."""
    return ", ".join(f"{kind} {number(lost_ms, kind)}" for kind in lost_ms.index)


def by_name(records: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of one profile by phase and name, those that take the most first.

    `op` is the name without what a compiler puts around it; `is_other` tells those of the kind other kernels."""
    names = _list_times(records, "kernels", ["phase", "kernel", "class", "calls", "total_us", "share_percent"])
    names = names.assign(kernel=names["kernel"].map(kernel_classes.short))
    named = names.groupby(["phase", "kernel", "class"])[["calls", "kernels_ms", "share_percent"]].sum().astype(float)
    named = named.reset_index().sort_values("kernels_ms", ascending=False)
    ops = named["kernel"].astype(str).str.replace(COMPILED, "", regex=True)
    return named.assign(op=ops, is_other=named["class"].map(KINDS).isna())


def in_attention(records: pd.DataFrame) -> pd.DataFrame:
    """Return one row a case, phase and part of attention: its time, products and softmax.

    `products_ms` is that of all parts of the phase, and `flops_percent` the part's share of their FLOPs."""
    records = choose(records)
    spent = _list_times(records, "parts", ["phase", "part", "class", "calls", "total_us"])
    spent = spent.rename(columns={"kernels_ms": "time_ms"})
    spent["attention_products_ms"] = spent["time_ms"].where(spent["class"] == "matrix product", 0.0)
    spent["softmax_ms"] = spent["time_ms"].where(spent["part"] == "softmax", 0.0)
    times = ["time_ms", "attention_products_ms", "softmax_ms"]
    spent = spent.groupby([*CASE, "phase", "part"])[times].sum().reset_index()
    # forward comes first
    spent = spent.sort_values("phase", ascending=False, kind="stable")
    costs = unfold(records, "part_costs", ["phase", "part", "flops", "bytes"])
    spent = spent.merge(costs[[*CASE, "phase", "part", "flops"]], "left")
    of_phase = spent.groupby([*CASE, "phase"])
    spent["flops_percent"] = 100 * spent["flops"] / of_phase["flops"].transform("sum")
    return spent.assign(products_ms=of_phase["attention_products_ms"].transform("sum"))
