"""Tell which switches of a training step to turn on: what each brings, and what it costs."""

import re
from collections.abc import Iterable, Mapping

import pandas as pd
from markupsafe import Markup, escape

from lib.catalog import CATALOG
from lib.chapters import allocator, compile
from lib.records.frame import Frame
from lib.report import compare, sentences, tables, tidy
from lib.report.compare import OPPOSITE
from lib.report.quantities import Quantity
from lib.report.sentences import Statement
from lib.stats import digits
from lib.stats.comparisons import FASTER
from lib.stats.intervals import Interval

PLAIN = {name: value for name, value in reversed(CATALOG["step"].baseline.items()) if name != "mode"}
OPTIONS = {  # how to switch each on
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "bf16": "torch.autocast(device, torch.bfloat16)",
    "fp16": "torch.autocast(device, torch.float16)",
    "foreach": "AdamW(parameters, foreach=True)",
    "fused": "AdamW(parameters, fused=True)",
    "sdpa": "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    "flex": "flex_attention(q, k, v)",
    "compiled": "torch.compile(model)",
    "tiled": 'lib.attention.VARIANTS["tiled"]',
    "compiled_single_tensor": 'lib.adam.AdamW(variant="compiled_single_tensor")',
    "compiled_foreach": 'lib.adam.AdamW(variant="compiled_foreach")',
}
KEEPS = "freed memory kept"
ALLOCATOR = "MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=2147483647 MALLOC_TOP_PAD_=67108864"  # in the environment
MANY = 3  # switches from which a combination stands beside the switches alone
METRICS = (
    *("total_ms", "forward_ms", "backward_ms", "optimizer_ms", "least_ms", "forward_flops", "peak_mib"),
    *("logits_error", "gradient_error"),
)


def switched(case: Mapping) -> list[str]:
    """Return the switches that a case has on, by name."""
    return [tidy.word(name, case[name]) for name, plain in PLAIN.items() if case[name] != plain]


def _where(rows: pd.DataFrame, chosen: Iterable[bool]) -> pd.DataFrame:
    """Select rows by a truth value each."""
    return rows[pd.Series(list(chosen), rows.index, dtype=bool)]


def compared(steps: pd.DataFrame) -> pd.DataFrame:
    """Compare each step that has switches on with the plain one; takes `step.prepared` steps.

    Has the medians of `METRICS`, and `on`, the switches; the plain step has no ratio."""
    fields = steps.fields
    table = tidy.medians(steps, *METRICS)
    table["on"] = pd.Series([tuple(switched(row)) for _, row in table.iterrows()], table.index, dtype=object)
    judged = pd.concat([compare.against_baselines(steps), compare.against_plain(steps)], ignore_index=True)
    judged = _where(judged, (len(switched(row)) == 1 or "," in row["baseline"] for _, row in judged.iterrows()))
    found = table.merge(judged[[*fields, "baseline", "ratio", "verdict"]], on=fields, how="left")
    found = Frame(found).with_origin(table)
    return _where(found, (found["ratio"].notna() | (found["on"].map(len) == 0)) & found["total_ms"].notna())


def table(steps: pd.DataFrame, allocators: pd.DataFrame) -> pd.DataFrame:
    """Compare each switch alone, and all together, with the plain step of the largest case that has them.

    Takes `step.prepared` steps and the records of `allocator`. One row a switch, the plain step first: `switch`, `on`,
    `label`, the medians of `METRICS`, `gain` over the plain step with its `verdict`, `compile_s` and
    `payback_steps`. Empty where no switch was measured."""
    found = compared(steps)
    at = ["size", "context_length", "batch_size", "device"]
    plain = set(found.loc[found["on"].map(len) == 0, at].itertuples(index=False, name=None))
    found = _where(found, (row in plain for row in found[at].itertuples(index=False, name=None)))
    if found["ratio"].isna().all():
        return found.iloc[:0].assign(switch=[], label=[], gain=[])
    several = found[found["on"].map(len) > 1]
    top = (several if len(several) else found[found["ratio"].notna()]).sort_values("forward_flops").iloc[-1]
    rows = tidy.select(found, **top[at])
    best = best_of(rows)["on"]
    rows = _where(rows, (len(on) < 2 or len(on) >= MANY or on == best for on in rows["on"]))
    paid = compile.paid(compile.with_compile_time(steps))
    columns = [*steps.fields, "compile_s", "payback_steps"]
    rows = rows.merge(paid.reindex(columns=columns), on=columns[:-2], how="left")
    words = [" + ".join(on) or "plain" for on in rows["on"]]
    labels = [" + ".join(on[:2]) + "".join(f" +\n{' + '.join(on[2:])}" * (len(on) > 2)) or "plain" for on in rows["on"]]
    gain = [ratio.inverse if isinstance(ratio, Interval) else None for ratio in rows["ratio"]]
    speed = [1 / ratio.value if isinstance(ratio, Interval) else 0 for ratio in rows["ratio"]]
    rows = rows.assign(switch=words, label=labels, gain=gain, many=rows["on"].map(len) > 1, speed=speed)
    rows = rows.sort_values(["many", "speed"], kind="stable")
    kept = _kept(allocators).assign(hardware=rows["hardware"].iloc[0])
    kept["codes"] = [rows["codes"].iloc[0]] * len(kept)
    rows = pd.concat([rows.iloc[:1], kept, rows.iloc[1:]], ignore_index=True)
    return Frame(rows).with_origin(found, what="Median or gain")


def _kept(allocators: pd.DataFrame) -> pd.DataFrame:
    """Return the row of keeping freed memory, from the steps of the experiment `allocator`."""
    rows = allocator.compared(allocators)
    rows = rows[rows["program"].str.endswith("_step")].tail(1)
    size = rows["program"].str.removesuffix("_step")
    gain, on = rows["ratio"], [(KEEPS,)] * len(rows)
    verdict = rows["verdict"].map(lambda word: OPPOSITE.get(word, word))
    names = ["machine", "quantity", "noisy"]
    return rows[names].assign(size=size, on=on, switch=KEEPS, label=KEEPS, gain=gain, verdict=verdict)


def best_of(rows: pd.DataFrame) -> pd.Series:
    """Return the row with the largest gain, or the plain one where no switch is faster."""
    faster = rows[rows["verdict"] == FASTER] if "verdict" in rows else rows.iloc[:0]
    faster = _where(faster, (KEEPS not in on for on in faster["on"]))
    if faster.empty:
        return rows.iloc[0]
    return faster.loc[faster["ratio"].map(lambda ratio: ratio.value).idxmin()]


def answer(steps: pd.DataFrame, found: pd.DataFrame) -> Statement:
    """Say what to switch on, its gain and its price; takes the rows of `table`."""
    if found.empty:
        return Statement("No step was measured with a switch on.", sentences.NO_DATA, "step")
    best, plain = best_of(found), found.iloc[0]
    case = {name: best[name] for name in steps.fields}
    of = f"a step of {best['size']} ({best['batch_size']:.0f} × {best['context_length']:.0f} tokens)"
    if not best["on"]:
        text = f"No switch makes {of} faster than the plain one: fp32, eager, naive attention, single_tensor AdamW."
        return Statement(text, "measured", "compared with the plain step", sentences.names(steps, case))
    times, number = [_number(row, "total_ms") for row in (best, plain)], _number(best, "gain")
    numbers, rounds = [number, *times], best["gain"].rounds
    text = (
        f"Switch on {sentences.listed(list(best['on']))}: {of} is then {number.shown} faster in interleaved pairs of "
        f"{digits.count(rounds)} process{'es' * (rounds > 1)} ({times[0].shown} ms against {times[1].shown}, each "
        "measured by itself)."
    )
    alone = found[(found["on"].map(len) == 1) & (found["verdict"] == FASTER)]
    alone = alone[alone["switch"] != KEEPS]
    if len(alone) and len(best["on"]) > 1:
        first = alone.loc[alone["ratio"].map(lambda ratio: ratio.value).idxmin()]
        numbers.append(_number(first, "gain"))
        text += f" Of the switches tried alone, {first['switch']} brings the most: {numbers[-1].shown}."
    price, paid = _price(best)
    evidence = (
        f"Gains are ratios of interleaved pairs with the plain step, n = {best['gain'].n}, {best['gain'].rounds} "
        "processes; ms are medians of each."
    )
    names = sentences.names(steps, case, {name: plain[name] for name in steps.fields})
    return Statement(text + price, best["verdict"], evidence, names, (*numbers, *paid))


def _price(best: pd.Series) -> tuple[str, tuple[Quantity, ...]]:
    """Say what the switches cost: the time to compile, and how far the logits move."""
    said, numbers = [], []
    if isinstance(best["compile_s"], Interval):
        numbers.append(_number(best, "compile_s"))
        said.append(f"Compiling takes {numbers[-1].shown} s")
        if isinstance(best["payback_steps"], Interval):
            numbers.append(_number(best, "payback_steps"))
            said[-1] += f", repaid after {numbers[-1].shown} steps against the same step uncompiled"
    if isinstance(best["logits_error"], Interval) and best["precision"] != PLAIN["precision"]:
        percent = 100 * best["logits_error"].value
        said.append(f"the logits differ by {digits.number(percent, percent)}% from those in {PLAIN['precision']}")
    text = "; ".join(said)
    return f" {text[:1].upper()}{text[1:]}." if text else "", tuple(numbers)


def _number(row: pd.Series, metric: str) -> Quantity:
    """Return a number of a row of `table` as a sentence shows it; a gain is that of its ratio."""
    i = row[metric]
    if metric == "gain":
        return Quantity(f"{row['quantity']}/total_ms/{row['baseline']}", i.inverse, sentences.times(i), row["verdict"])
    return Quantity(f"{row['quantity']}/{metric}", i, digits.number(i.value, i.reach))


def use_line(found: pd.DataFrame) -> Statement:
    """Name the options that turn the best switches on, in one line to copy; takes the rows of `table`."""
    on = best_of(found)["on"] if len(found) else ()
    kept = [row["verdict"] == FASTER for _, row in found.iterrows() if KEEPS in row["on"]]
    if not on:
        return Statement("No switch made a step faster.", sentences.NO_DATA, "step")
    evidence = "The switches of the combination with the largest gain over the plain step."
    return Statement("; ".join([ALLOCATOR] * any(kept) + [OPTIONS[name] for name in on]), "measured", evidence)


def show(found: pd.DataFrame) -> tables.Table:
    """Show each switch with its option, its step, its gain over the plain step and the verdict."""
    names = [_named(row, found["size"].iloc[0]) for _, row in found.iterrows()]
    caption = (
        "Each switch alone, then several: the whole step, and how many times faster it is in pairs with the plain one"
    )
    narrow = found.drop(columns="noisy").assign(switch=pd.Series(names, found.index, dtype=object))
    return tables.show(narrow, "switch total_ms gain verdict", caption)


def _named(row: pd.Series, size: str) -> Markup:
    """Return a switch with its option below, which may break after its punctuation."""
    name = Markup("<b>{}</b>").format(row["switch"])
    if row["switch"] == KEEPS:
        where = "" if row["size"] == size else f", by a step of {row['size']}"
        return name + Markup("<br>MALLOC_ variables{}").format(where)
    if row["switch"] not in OPTIONS:
        return name
    option = re.sub(r"([._(=])(?=\w)", r"\1<wbr>", str(escape(OPTIONS[row["switch"]])))
    return name + Markup(f"<br><code>{option}</code>")


def prices(found: pd.DataFrame) -> tables.Table:
    """Show each switch's peak memory, error of the results, time to compile and when it has paid."""
    return tables.show(
        found, "switch peak_mib logits_error gradient_error compile_s payback_steps",
        "The price of each switch: peak memory, how far logits and gradients move, the time to compile, and after how "
        "many steps it has paid for itself against the same step without it",
    )  # fmt: skip
