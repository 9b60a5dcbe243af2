"""Choose rungs of the ladder, and compare each with the rung before it."""

import numpy as np
import pandas as pd

from lib.catalog import CATALOG
from lib.config import MODES
from lib.report import bounds
from lib.report.table import OPPOSITE, fields, table
from lib.stats import verdicts

ENDS = ["speedup", "speedup_low", "speedup_high"]
WIDE = 1.1  # an interval that reads as reaching this factor leaves a gain undecided


def cold_starts(records: pd.DataFrame) -> pd.DataFrame:
    """Return each case's fields, `machine`, and `first_ms`, its first iteration that compiled.

    It is the median of several processes, and `first_ms_low` and `first_ms_high` are the shortest and the longest. A
    process whose first iteration costs less than a fifth of the largest cost, beyond its later ones, has loaded what
    another one had compiled, and does not count."""
    names = [*fields(records), "machine"]
    later_ms = records.reindex(columns=["total_ms", "paired_ms"]).bfill(axis="columns")["total_ms"]
    firsts = records.reindex(columns=[*names, "status", "first_iteration_ms"])
    firsts["later_ms"] = later_ms.map(np.median, na_action="ignore")
    firsts = firsts[firsts["status"] == "ok"].explode("first_iteration_ms")
    costs_ms = firsts["first_iteration_ms"].astype(float) - firsts["later_ms"].astype(float).fillna(0.0)
    is_cold = costs_ms > costs_ms.groupby([firsts[name] for name in names]).transform("max") / 5
    cold = firsts[is_cold].astype({"first_iteration_ms": float}).groupby(names)["first_iteration_ms"]
    return cold.agg(first_ms="median", first_ms_low="min", first_ms_high="max").reset_index()


def pair(records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the plain table of one machine's records that ran in pairs with the plain step.

    They have the columns of `cold_starts`, too, and:

    - `rung`: the switches, as a table names them. `on`: the same in words.
    - `first_step_s` with its ends, and `logits_error_percent`."""
    rows = table(records).query("verdict != ''")
    rows = rows.merge(cold_starts(records), "left", [*fields(records), "machine"]).sort_values("batch_size")
    # a copy, since pandas warns of new columns in a frame of which it has dropped some
    return rows.copy().assign(
        rung=rows["switches"].astype(str).str.replace("+", " + "),
        on=[name_switches(switches) for switches in rows["switches"]],
        first_step_s=rows["first_ms"] / 1e3,
        first_step_s_low=rows["first_ms_low"] / 1e3,
        first_step_s_high=rows["first_ms_high"] / 1e3,
        logits_error_percent=100 * rows["logits_error"].astype(float),
    )


def choose_batch(rungs: pd.DataFrame) -> pd.DataFrame:
    """Return the rungs of the largest model; of several batches, that of most rungs."""
    shape = ["size", "context_length", "batch_size", "losses", "device"]
    counted = rungs.assign(count=rungs.groupby(shape)["switches"].transform("count"))
    return rungs.merge(counted.sort_values(["parameters", "count"])[shape].tail(1))


def compare(rungs: pd.DataFrame) -> pd.DataFrame:
    """Return the rungs of one model and batch, in order, with what each brings.

    `rungs` are rows of the plain table that ran in pairs with the plain step. New columns:

    - `before`: the rung that has most of this rung's switches, or plain. Of several it is the one that lacks the latest
      switch. bf16 replaces bf16_products, so the rung before it may have bf16_products.
    - `switch`: the switches that the rung has and `before` lacks, joined by `+`.
    - `switch_speedup` with its ends, `switch_verdict`, `switch_advice`: the quotient of both ratios to the plain step.
      Their errors add up in logarithms. The verdict is `faster` or `slower` where the interval lies beside one, else
      `unclear`; the advice is that of `verdicts.judge`.
    - `switch_forward_speedup` and so on, of each part of a step: the same quotient, without ends."""
    order = list(CATALOG["ladder"].variants)
    # an older record may have a switch that is gone
    rungs = rungs[rungs["switches"].map(lambda switches: set(switches.split("+")) <= {*order}).astype(bool)]
    sets = {"plain": set()}
    for switches in rungs["switches"]:
        sets[switches] = set(switches.split("+"))
        if "bf16" in sets[switches]:
            sets[switches].add("bf16_products")
    places = {switches: sorted(map(order.index, names)) for switches, names in sets.items()}
    ranks = rungs["switches"].map(lambda switches: (len(places[switches]), places[switches]))
    rungs = rungs.iloc[ranks.argsort(kind="stable")]
    before = []
    new = []
    for switches in rungs["switches"]:
        below = [lower for lower in sets if sets[lower] < sets[switches]]
        # most switches first; of equally many, those that stand early lack the latest
        nearest = min(below, key=lambda lower: (-len(places[lower]), places[lower]))
        before.append(nearest)
        new.append("+".join(name for name in switches.split("+") if name not in sets[nearest]))
    ratios = np.log(rungs.set_index("switches")[ENDS].astype(float))
    ratios.loc["plain"] = 0.0
    own, own_low, own_high = ratios.loc[rungs["switches"]].to_numpy().T
    rival, rival_low, rival_high = ratios.loc[before].to_numpy().T
    gain = own - rival
    low = gain - np.hypot(own - own_low, rival_high - rival)
    high = gain + np.hypot(own_high - own, rival - rival_low)
    by_part = rungs.set_index("switches").reindex(columns=[f"{part}_speedup" for part in MODES["train_step"]])
    by_part = by_part.astype(float)
    by_part.loc["plain"] = 1.0
    part_gains = by_part.loc[rungs["switches"]].to_numpy() / by_part.loc[before].to_numpy()
    return rungs.assign(
        **dict(zip("switch_" + by_part.columns, part_gains.T, strict=True)),
        # texts also where there are none
        before=np.array(before, dtype=object),
        switch=np.array(new, dtype=object),
        switch_speedup=np.exp(gain),
        switch_speedup_low=np.exp(low),
        switch_speedup_high=np.exp(high),
        switch_verdict=np.select([low > 0, high < 0], ["faster", "slower"], "unclear"),
        switch_advice=np.select([low > 0, verdicts.is_probable(gain, low, high)], ["proven", "probable"], "none"),
    )


def add_rates(rungs: pd.DataFrame) -> pd.DataFrame:
    """Return `rungs` with `tokens_a_second` of their `paired_ms`, and its ends."""
    rates = rungs.copy()
    for end, time_end in OPPOSITE.items():
        rates[f"tokens_a_second{end}"] = 1e3 * rungs["tokens"].astype(float) / rungs[f"paired_ms{time_end}"]
    return rates


def add_common(ladder: pd.DataFrame) -> pd.DataFrame:
    """Return `ladder` with `step_ms` and its ends: the plain step's time over a rung's speedup in pairs.

    Rungs run in different rounds, so that only their ratios compare. Plain comes first and has no speedup."""
    common = ladder.copy()
    for end, speedup_end in OPPOSITE.items():
        scaled_ms = ladder["paired_ms"].head(1).sum() / ladder[f"speedup{speedup_end}"].astype(float)
        common[f"step_ms{end}"] = scaled_ms.fillna(ladder[f"paired_ms{end}"])
    return common


def add_cost(rows: pd.DataFrame, time: str, ratio: str) -> pd.DataFrame:
    """Return `rows` with what compiling costs and saves in ms, and after how many steps it pays.

    `compile_ms` and `saved_ms` have the ends of a first step and of the ratio; `saved_ms` follows from the ratio and
    the later `<time>_ms` unless it is there. `soonest` and `latest` are quotients of opposite ends."""
    later_ms = rows[f"{time}_ms"]
    saved_ms = {f"saved_ms{end}": later_ms * (rows[f"{ratio}{end}"] - 1) for end in ("", "_low", "_high")}
    costs = {f"compile_ms{end}": rows[f"first_ms{end}"] - later_ms for end in ("", "_low", "_high")}
    soonest = costs["compile_ms_low"] / saved_ms["saved_ms_high"]
    latest = costs["compile_ms_high"] / saved_ms["saved_ms_low"]
    # one first step has no ends
    is_one = rows["first_ms_low"] == rows["first_ms_high"]
    costs |= {f"compile_ms{end}": costs[f"compile_ms{end}"].mask(is_one) for end in ("_low", "_high")}
    added = rows.assign(**costs, **{name: values for name, values in saved_ms.items() if name not in rows})
    return added.assign(soonest=soonest, latest=latest)


def choose_fastest(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest rung of `compare` whose last switch brings something; if none does, the fastest.

    Of those the rungs that are proven against the plain step come first. `whole` and `default_allocator` are left out:
    `examples/train.py` does not have them."""
    copied = compared[~compared["switches"].astype(str).str.contains("whole|default_allocator")]
    gains = copied["switch_advice"].isin(["proven", "probable"])
    order = copied.assign(gains=gains, is_proven=copied["advice"] == "proven")
    return order.sort_values(["gains", "is_proven", "speedup"]).tail(1).drop(columns=["gains", "is_proven"])


def take_plain(rung: pd.DataFrame, machine: str) -> pd.DataFrame:
    """Return the plain step of a rung's pairs, with its own rate and bound."""
    changed = dict.fromkeys(rung.filter(regex="speedup|^first_|logits|peak_mib").columns, np.nan)
    ends_ms = {f"paired_ms{end}": rung[f"baseline_ms{end}"] for end in ["", "_low", "_high"]}
    plain = add_rates(rung.assign(switches="plain", rung="plain", **ends_ms, **changed))
    plain["bound_ms"] = bounds.bound_ms("ladder", machine, plain)
    for end, time_end in OPPOSITE.items():
        plain[f"bound_percent{end}"] = 100 * plain["bound_ms"] / plain[f"paired_ms{time_end}"]
    return plain


def describe(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `compare` as gains, in words.

    - `switch`, `over`: what is switched on, and the rung without it, which becomes the `baseline`.
    - `speedup` with its ends, `verdict` and `advice`: those of the switch.
    - `seen`: proven, probable, slower, no gain seen, or undecided where the interval reaches 10% or more.
    - `price`: see `price`."""
    names = []
    for switch, rival in zip(compared["switch"], compared["before"], strict=True):
        is_instead = "bf16" in switch.split("+") and "bf16_products" in rival
        names.append(name_switches(switch) + (" instead" if is_instead else ""))
    before = compared["before"].astype(str).str.replace("+", " + ")
    low, high = compared["switch_speedup_low"], compared["switch_speedup_high"]
    seen = compared["switch_advice"].mask(compared["switch_verdict"] == "slower", "slower")
    is_wide = (low.round(2) <= round(1 / WIDE, 2)) | (high.round(2) >= WIDE)
    gains = compared.assign(
        over=before,
        baseline=before,
        speedup=compared["switch_speedup"],
        speedup_low=low,
        speedup_high=high,
        verdict=compared["switch_verdict"],
        advice=compared["switch_advice"],
        seen=seen.mask(seen == "none", np.where(is_wide, "undecided", "no gain seen")),
    )
    return gains.assign(switch=names, price=[price(rung) for rung in compared.itertuples()])


def name_switches(switches: str) -> str:
    """Return switches that are joined by `+` in words, such as AdamW(fused=True) and bf16 autocast."""
    variants = CATALOG["ladder"].variants
    # an older record may have a switch that is gone
    words = [variants[switch].words if switch in variants else switch for switch in switches.split("+")]
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def choose_enough(batches: pd.DataFrame) -> pd.DataFrame:
    """Return the row of the smallest batch that no larger one is proven to beat in its rate.

    `batches` have `tokens_a_second` with its ends, as `add_rates` returns it."""
    for place in range(len(batches)):
        row = batches.sort_values("batch_size")[place : place + 1]
        larger = batches[batches["batch_size"] > row["batch_size"].max()]
        if not (larger["tokens_a_second_low"] > row["tokens_a_second_high"].max()).any():
            return row
    return batches


def price(rung: tuple) -> str:
    """Say what a row of `compare` costs: a slower part, digits of the logits, and a long first step.

    The text is empty if it costs none of these."""
    switches = rung.switch.split("+")
    prices = []
    if rung.switch == "masters" and rung.switch_optimizer_speedup < 1:
        prices.append(f"an optimizer's step that takes about {1 / rung.switch_optimizer_speedup:.1f} times as long")
    if {"bf16_products", "bf16"}.intersection(switches) and rung.logits_error > bounds.EXACT:
        prices.append(f"logits off by {100 * rung.logits_error:.2g}%")
    elif "bf16_products" in switches and rung.logits_error <= bounds.EXACT:
        prices.append("calls another fp32 library, here as accurate")
    if any(CATALOG["ladder"].variants[switch].compiles for switch in switches) and rung.first_ms > 0:
        first, low, high = (f"{end / 1000:.2g}" for end in (rung.first_ms, rung.first_ms_low, rung.first_ms_high))
        prices.append(f"a first step that compiles {first}{f' ({low} to {high})' * (low != high)} s")
    return ", ".join(prices)
