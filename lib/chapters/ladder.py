"""Tell which switches of a training step to turn on: what each brings, and at what price."""

import re
from collections.abc import Mapping

import pandas as pd
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lib.catalog import CATALOG
from lib.chapters import allocator, compile, step
from lib.records.frame import Frame
from lib.report import compare, plots, sentences, tables, tidy
from lib.report.compare import OPPOSITE
from lib.report.quantities import Quantity
from lib.report.sentences import Statement
from lib.stats import digits
from lib.stats.comparisons import FASTER, SLOWER, UNCLEAR
from lib.stats.intervals import Interval

PLAIN = dict(reversed(CATALOG["ladder"].baseline.items()))  # in the order of the rungs
ACCELERATED = ("projections", "cast_once")
OPTIONS = {  # how to switch each on
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "bf16": "torch.autocast(device, torch.bfloat16)",
    "fp16": "torch.autocast(device, torch.float16)",
    "foreach": "AdamW(parameters, foreach=True)",
    "fused": "AdamW(parameters, fused=True)",
    "sdpa": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "sdpa_flash": "sdpa_kernel(SDPBackend.FLASH_ATTENTION)",
    "sdpa_efficient": "sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)",
    "sdpa_cudnn": "sdpa_kernel(SDPBackend.CUDNN_ATTENTION)",
    "flex": "flex_attention(q, k, v)",
    "compiled": "torch.compile(model)",
    "reduce-overhead": 'torch.compile(model, mode="reduce-overhead")',
    "max-autotune": 'torch.compile(model, mode="max-autotune")',
    "projections": 'lib.fast.accelerate(model, ["projections"])',
    "cast_once": 'lib.fast.accelerate(model, ["cast_once"])',
    "tiled": 'lib.attention.VARIANTS["tiled"]',
    "compiled_single_tensor": 'lib.adam.AdamW(parameters, "compiled_single_tensor")',
    "compiled_foreach": 'lib.adam.AdamW(parameters, "compiled_foreach")',
}
KEEPS = "freed memory kept"
ALLOCATOR = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=1099511627776 MALLOC_TOP_PAD_=67108864"  # in the environment
METRICS = (
    *("total_ms", "forward_ms", "backward_ms", "optimizer_ms", "least_ms", "least_percent", "forward_flops"),
    *("peak_mib", "resident_peak_mib", "logits_error", "gradient_error"),
    *("paired_ms", "baseline_ms", "plain_paired_ms", "plain_baseline_ms"),
)
AT = ["size", "context_length", "batch_size", "device"]  # alike on one ladder
SHADES = {FASTER: plots.GREEN, SLOWER: plots.VERMILION}


def switched(case: Mapping) -> list[str]:
    """Return the switches that a case has on, by name, in the order of the rungs."""
    return [tidy.word(name, case[name]) for name, plain in PLAIN.items() if case[name] != plain]


def table(rungs: pd.DataFrame, steps: pd.DataFrame, allocators: pd.DataFrame) -> pd.DataFrame:
    """Return the rungs at the largest case that has several, plain first.

    Also what keeping freed memory brings. Takes `step.prepared` records of `ladder` and of `step`, whose plain ones
    stand below all rungs, and those of `allocator`. Columns: the medians of `METRICS`; `on`, all switches;
    `switch`, the one that a rung adds; `label`; `baseline`, `ratio`, `verdict` and `gain`, how many times faster,
    over the plain step, and with `rung_` over the rung before; `compile_s`, and `payback_steps` of the rung that
    compiles. Empty where no switch was measured."""
    fields, off = rungs.fields, {name: plain for name, plain in PLAIN.items() if name in steps}
    bottom = tidy.medians(tidy.select(steps, **off), *METRICS, "limit_of").assign(**PLAIN)
    climb = tidy.medians(rungs, *METRICS, "limit_of")
    found = pd.concat([bottom, climb], ignore_index=True)
    found["on"] = pd.Series([tuple(switched(row)) for _, row in found.iterrows()], found.index, dtype=object)
    for prefix, compared in (("rung_", compare.against_baselines(rungs)), ("", compare.against_plain(rungs))):
        names = {name: prefix + name for name in ("baseline", "ratio", "verdict")}
        found = found.merge(compared[[*fields, *names]].rename(columns=names), on=fields, how="left")
    count = found["on"].map(len)
    for name in ("baseline", "ratio", "verdict"):  # with one switch, the rung before is the plain step
        found[name] = found[name].mask(count == 1, found[f"rung_{name}"])
    for gain, ratio in (("gain", "ratio"), ("rung_gain", "rung_ratio")):
        found[gain] = [i.inverse if isinstance(i, Interval) else None for i in found[ratio]]
    found["switch"] = [on[-1] if on else "plain" for on in found["on"]]
    found["label"] = [name if name == "plain" else f"+ {name}" for name in found["switch"]]
    found = found[found["total_ms"].notna() & (found["ratio"].notna() | (count == 0))]
    ladders = [one for _, one in found.groupby(AT) if () in set(one["on"]) and one["ratio"].notna().any()]
    if not ladders:
        return Frame(found.iloc[:0]).with_origin(climb)
    rows = max(ladders, key=lambda one: one["forward_flops"].max())
    rows = rows.sort_values("on", key=lambda on: on.map(len), kind="stable")
    paid = compile.paid(compile.with_compile_time(rungs))[[*fields, "compile_s", "payback_steps"]]
    rows = rows.merge(paid, on=fields, how="left")
    rows["payback_steps"] = rows["payback_steps"].where(rows["switch"] == "compiled", None)
    own = rows["codes"].iloc[-1]  # other experiments measured the plain step and what is kept, each by its own code
    rows["codes"] = [codes if on else own for on, codes in zip(rows["on"], rows["codes"], strict=True)]
    kept = _kept(allocators).assign(hardware=rows["hardware"].iloc[0])
    kept["codes"] = [own] * len(kept)
    return Frame(pd.concat([rows, kept], ignore_index=True)).with_origin(climb, what="Median or gain")


def _kept(allocators: pd.DataFrame) -> pd.DataFrame:
    """Return the row of keeping freed memory, from the steps of the experiment `allocator`."""
    rows = allocator.compared(allocators)
    rows = rows[rows["program"].str.endswith("_step")].tail(1)
    size = rows["program"].str.removesuffix("_step")
    gain, on = rows["ratio"], [(KEEPS,)] * len(rows)
    verdict = rows["verdict"].map(lambda word: OPPOSITE.get(word, word))
    names = ["machine", "quantity", "noisy"]
    return rows[names].assign(size=size, on=on, switch=KEEPS, label=KEEPS, gain=gain, verdict=verdict)


def climbed(found: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `table` that are steps of the ladder."""
    return found[found["switch"] != KEEPS].reset_index(drop=True)


def best_of(found: pd.DataFrame) -> pd.Series:
    """Return the rung with the largest gain, or the plain one where none is faster.

    A rung that is slower than the one before is left out."""
    steps = climbed(found)
    faster = steps[(steps["verdict"] == FASTER) & (steps["rung_verdict"] != SLOWER)]
    return steps.iloc[0] if faster.empty else faster.loc[faster["ratio"].map(lambda ratio: ratio.value).idxmin()]


def answer(rungs: pd.DataFrame, found: pd.DataFrame) -> Statement:
    """Say what to switch on, its gain and its price.

    Takes the records of `ladder` and the rows of `table`."""
    if found.empty:
        return sentences.missing("No step was measured with a switch on.")
    best = best_of(found)
    case = {name: best[name] for name in rungs.fields}
    of = f"a step of {best['size']} ({best['batch_size']:.0f} × {best['context_length']:.0f} tokens)"
    if not best["on"]:
        text = f"No switch makes {of} faster than the plain one: fp32, eager, naive attention, single_tensor AdamW."
        return Statement(text, "measured", "compared with the plain step", sentences.names(rungs, case))
    prefix = "plain_" * (len(best["on"]) > 1)  # with one switch, the rung before is the plain step
    own, plain, gain = (_number(best, name) for name in (f"{prefix}paired_ms", f"{prefix}baseline_ms", "gain"))
    processes = f"{digits.count(gain.value.rounds)} process{'es' * (gain.value.rounds > 1)}"
    numbers = [own, plain, gain]
    text = (
        f"Switch on {sentences.listed(list(best['on']))}: {of} then takes {own} ms instead of {plain}, {gain} faster "
        f"in interleaved pairs of {processes}"
    )
    if isinstance(best["least_ms"], Interval):
        share = best["least_ms"].scaled(100 / own.value.value).widened(own.value.log_error)
        numbers.append(Quantity(f"{best['quantity']}/least_percent_of_pairs", share, digits.value(share)))
        too_slow = step.TOO_SLOW * (share.known and share.low > 100)
        text += f"; the least possible time is {numbers[-1]}% of the {own} ms{too_slow}"
    text += "."
    climb = climbed(found)
    climb = climb[climb["switch"].isin(best["on"])]
    faster, unclear = (climb[climb["rung_verdict"] == verdict] for verdict in (FASTER, UNCLEAR))
    if len(faster) > 1:
        first = faster.loc[faster["rung_ratio"].map(lambda ratio: ratio.value).idxmin()]
        numbers.append(_number(first, "rung_gain"))
        text += f" The switch that brings the most is {first['switch']}: {numbers[-1]} over the rung before it."
    if len(unclear):
        switches = sentences.listed(list(unclear["switch"]))
        text += f" Whether {switches} bring{'s' * (len(unclear) == 1)} anything is unclear."
    price, paid = _price(found, best)
    evidence = (
        f"Gains are ratios of interleaved pairs with the plain step, n = {gain.value.n}, {processes}; ms are medians "
        f"in these pairs. The least possible is the time at the rates of {best['limit_of']} and of memory."
    )
    names = sentences.names(rungs, case)
    return Statement(text + price, best["verdict"], evidence, names, (*numbers, *paid))


def _price(found: pd.DataFrame, best: pd.Series) -> tuple[str, tuple[Quantity, ...]]:
    """Say what the switches cost: the time to compile, and how far the logits move."""
    said, numbers = [], []
    compiled = found[found["switch"] == "compiled"]
    if len(compiled) and "compiled" in best["on"] and isinstance(compiled.iloc[0]["compile_s"], Interval):
        row = compiled.iloc[0]
        numbers.append(_number(row, "compile_s"))
        said.append(f"Compiling takes {numbers[-1]} s")
        if isinstance(row["payback_steps"], Interval):
            numbers.append(_number(row, "payback_steps"))
            said[-1] += f", repaid after {numbers[-1]} steps"
    if isinstance(best["logits_error"], Interval) and best["precision"] != PLAIN["precision"]:
        percent = 100 * best["logits_error"].value
        said.append(f"the logits differ by {digits.number(percent, percent)}% from those in {PLAIN['precision']}")
    text = "; ".join(said)
    return f" {text[:1].upper()}{text[1:]}." if text else "", tuple(numbers)


def _number(row: pd.Series, metric: str) -> Quantity:
    """Return a number of a row of `table` as a sentence shows it; a gain is that of its ratio."""
    i = row[metric]
    if metric in ("gain", "rung_gain"):
        rung = "rung_" * (metric == "rung_gain")
        name = f"{row['quantity']}/total_ms/{row[f'{rung}baseline']}"
        return Quantity(name, i.inverse, sentences.times(i), row[f"{rung}verdict"])
    return Quantity(f"{row['quantity']}/{metric}", i, digits.value(i))


def use_line(found: pd.DataFrame) -> Statement:
    """Name the options that turn the best switches on, in one line to copy; takes the rows of `table`."""
    on = best_of(found)["on"] if len(found) else ()
    if not on:
        return sentences.missing("No switch made a step faster.")
    own = [name for name in on if name in ACCELERATED]
    keeps = bool(((found["switch"] == KEEPS) & (found["verdict"] == FASTER)).any())
    lines = [ALLOCATOR] * keeps + [f"lib.fast.accelerate(model, {own})".replace("'", '"')] * bool(own)
    by_lib = {"fused": "lib.fast.AdamW(parameters)"} if "cast_once" in on else {}
    lines += [(OPTIONS | by_lib)[name] for name in on if name not in ACCELERATED]
    evidence = "The switches of the combination with the largest gain over the plain step."
    return Statement("; ".join(lines), "measured", evidence)


def draw(found: pd.DataFrame) -> Axes:
    """Draw the way from the plain step to the last rung in ms, and the least time.

    Takes the rows of `table`. A bar is what a rung saves or adds, from the plain step's median times the ratios over
    the plain step. Two values of one field, as tf32 and bf16, both begin at the rung before."""
    steps = climbed(found)
    (ax,) = plots.axes(height=1.2 + 0.4 * len(steps))
    plain = steps["total_ms"].iloc[0].value if len(steps) else 0
    ends = [plain * (row["ratio"].value if isinstance(row["ratio"], Interval) else 1) for _, row in steps.iterrows()]
    reached = dict(zip(steps["on"], ends, strict=True))
    for at, (_, row) in enumerate(steps.iterrows()):
        start, end = reached.get(row["on"][:-1], ends[at - 1]) if at else 0, ends[at]
        colour = SHADES.get(row["rung_verdict"], plots.QUIET) if at else plots.SKY
        ax.barh(at, end - start, left=start, **plots.bar(colour))
        gain = f", {digits.value(row['rung_gain'])}×" if at and isinstance(row["rung_gain"], Interval) else ""
        plots.beside(ax, max(start, end), at, f"{digits.number(end, 0.02 * end)} ms{gain}")
    least = [i for i in steps["least_ms"] if isinstance(i, Interval)] if len(steps) else []
    if least:
        ax.axvline(least[-1].value, color=plots.INK, linestyle="--", linewidth=1)
        ax.annotate(
            "least possible", (least[-1].value, 1.01), xycoords=("data", "axes fraction"), ha="center", va="bottom",
            color=plots.QUIET,
        )  # fmt: skip
    ax.set_yticks(range(len(steps)), steps["label"])
    ax.invert_yaxis()
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set(xlabel="time of a step, ms", xlim=(0, 1.45 * max(ends, default=1)))
    return ax


def show(found: pd.DataFrame) -> tables.Table:
    """Show each rung with its option, its step, its gains and verdicts."""
    names = [_named(row, found["size"].iloc[0]) for _, row in found.iterrows()]
    caption = (
        "Each rung has one switch more than the rung before it (tf32 and bf16 start from the same one, and so do the "
        "kernels of attention): the whole step, and how many times faster it is than the rung before and than the "
        "plain step, in interleaved pairs"
    )
    narrow = found.drop(columns="noisy").assign(switch=pd.Series(names, found.index, dtype=object))
    return tables.show(narrow, "switch total_ms rung_gain rung_verdict gain verdict", caption)


def _named(row: pd.Series, size: str) -> Markup:
    """Return a switch with its option below, which may break after its punctuation."""
    name = Markup("<b>{}</b>").format(row["label"])
    if row["switch"] == KEEPS:
        where = "" if row["size"] == size else f", by a step of {row['size']}"
        return name + Markup("<br>MALLOC_ variables{}").format(where)
    if row["switch"] not in OPTIONS:
        return name
    option = re.sub(r"([._(=])(?=\w)", r"\1<wbr>", str(escape(OPTIONS[row["switch"]])))
    return name + Markup(f"<br><code>{option}</code>")


def prices(found: pd.DataFrame) -> tables.Table:
    """Show each rung's peak memory, error of the results, time to compile and when it has paid."""
    steps = climbed(found)
    followed = tidy.column(steps, "resident_peak_mib").notna().any()  # on a CPU, where compiled graphs hide tensors
    peak, of = ("resident_peak_mib", "the process") if followed else ("peak_mib", "tensors")
    return tables.show(
        steps, f"switch {peak} logits_error gradient_error compile_s payback_steps",
        f"The price of each rung: the most memory of {of}, how far logits and gradients move, the time to compile, "
        "and after how many steps compiling has paid for itself",
    )  # fmt: skip


def elsewhere(rungs: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return the best switches at other sizes and batches, by tokens a second; takes the rows of `table`.

    A larger batch is no rung, since it changes the work. Empty if they were only measured on the ladder."""
    best = best_of(found) if len(found) else dict.fromkeys(PLAIN)
    same = tidy.select(rungs, **{name: best[name] for name in PLAIN})
    rows = tidy.medians(same, "tokens_per_s", "total_ms", "formula_mib")
    return rows if len(rows) > 1 else rows.iloc[:0]


def learning(records: pd.DataFrame) -> pd.DataFrame:
    """Compare the losses of training with those of the plain step, one row per case that has them.

    `steps` were trained on one batch from equal weights; `last_loss` and `plain_loss` are the last losses in nats, and
    `apart_percent` is the largest distance between two losses of the same step."""
    rows = []
    for row, group in tidy.by_case(records[tidy.column(records, "loss_nats").notna()]):
        last = group.sort_values("round").iloc[-1]
        own, plain = last["loss_nats"], last["plain_loss_nats"]
        apart = max(abs(a - b) / b for a, b in zip(own, plain, strict=True))
        told = {"steps": len(own), "last_loss": own[-1], "plain_loss": plain[-1], "apart_percent": 100 * apart}
        rows.append(row | {"switches": " + ".join(switched(row)) or "plain"} | told)
    return Frame(rows, columns=None if rows else ["switches", "size"]).with_origin(records)


def order(records: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the last greedy search.

    Columns: rung, switch, the ratio of times and whether it was taken. At each rung, every switch that is left was
    tried against the rung before."""
    searched = tidy.with_table(records, "search").sort_values("round")
    if searched.empty:
        return Frame(columns=["rung", "switch", "ratio", "taken"])
    last = searched.iloc[-1]
    found = pd.DataFrame(last["search"])
    found["switch"] = [tidy.word(name, last[name]) for name in found["switch"]]
    ends = found[["ratio", "low", "high"]].itertuples(index=False)
    found["ratio"] = [Interval(*row, 1, 1) for row in ends]
    return Frame(found.assign(size=last["size"], hardware=last["hardware"])).with_origin(searched)
