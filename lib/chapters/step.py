"""Tell how long a training step takes, what its parts take, and the least time that it could take.

The least time follows the roofline (Williams, Waterman and Patterson 2009): operations at the rate of the step's own
matrix products, or of the best one where those were not measured, then all other bytes at the ceiling of memory.
"""

import itertools
import math
from collections.abc import Mapping
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from lib.chapters import capacity
from lib.config import SIZES
from lib.cost.flops import model_shape
from lib.records.frame import Frame
from lib.report import claims, hypotheses, plots, roofline, sentences, tidy
from lib.report.claims import Found, about
from lib.report.hypotheses import LEAST, MOST, Hypothesis
from lib.report.sentences import Statement
from lib.stats import digits
from lib.stats.intervals import Interval

PHASES = ("forward", "backward", "optimizer")
SHOWN = 0.1  # of the longest step; a shorter one would be a sliver in the figure
# where a step takes less than its least possible time
TOO_SLOW = ", so these rates were measured too low, or data came from a cache"
PLAIN = {"attention": "naive", "optimizer": "single_tensor"}  # what the assignment's model has


def flops(row: pd.Series) -> float:
    """Return the FLOPs of both passes of a step, three times `forward_flops`."""
    return 3 * row["forward_flops"]


def prepared(every: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Select the training steps; add their rates, their shares and the least time."""
    peaks, speed = roofline.limit_intervals(ceilings)
    steps = tidy.select(every, mode="train_step")
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    steps = roofline.with_percent_of(steps, "mfu_percent", "forward_flops", peaks, times=3)
    steps = roofline.with_least_time(steps, peaks, speed, roofline.own_products(ceilings))
    steps = tidy.with_rate(steps, "tokens_per_s", "tokens")
    return tidy.with_moments(steps)


def headline_case(steps: pd.DataFrame) -> dict:
    """Return the fields of the plain step in fp32 with the most FLOPs."""
    return tidy.largest(steps, "forward_flops", precision="fp32", compiled=False, **PLAIN)


def answer(steps: pd.DataFrame, case: Mapping) -> Statement:
    """Say how long a step takes, its parts, its rate and its least time; takes `prepared` steps."""
    total = sentences.number(steps, "total_ms", case, digits.brief)
    if total is None:
        return sentences.missing("No training step was measured.")
    record = tidy.one(steps, case)
    numbers, said = [total], []
    for phase in PHASES:
        ms = sentences.number(steps, f"{phase}_ms", case, _shown)
        said.append(f"{phase} {ms}{' ms' * (not said)} ({digits.count(100 * ms.value.value / total.value.value)}%)")
        numbers.append(ms)
    rate = sentences.number(steps, "tokens_per_s", case, _shown)
    million, layers = digits.number(record["parameters"] / 1e6), digits.count(SIZES[case["size"]].num_layers)
    keeps = case["device"] == "cpu" and record["environment"].get("allocator") == "keeps"
    switches = "freed memory kept, no other switch" if keeps else "no switch"
    text = (
        f"A step of {case['size']} takes {total} ms ({million} M parameters, {layers} layers, {case['batch_size']} × "
        f"{case['context_length']} tokens, {case['precision']}, {switches}): {', '.join(said)}. That is {rate} tokens "
        f"a second, a million in {duration(1e6 / rate.value.value)}."
    )
    least, percent = (sentences.number(steps, name, case, _shown) for name in ("least_ms", "least_percent"))
    if least:
        text += (
            f" The least possible time, at the rates of {record['limit_of']} and of memory, is {least} ms: {percent}% "
            f"of the measured time{TOO_SLOW * (percent.value.known and percent.value.low > 100)}."
        )
    evidence = f"Medians, {sentences.fields(case)}; 95% interval {total.value.scope}, n = {total.value.n}."
    numbers = (*numbers, rate, *filter(None, (least, percent)))
    return Statement(text, "measured", evidence, sentences.names(steps, case), numbers)


def _shown(found: Interval) -> str:
    """Format a value to its interval, or to three digits."""
    return digits.number(found.value, found.reach or math.nan)


def duration(seconds: float) -> str:
    """Write a duration in the largest unit that fits: 56 min, 1.7 h.

    >>> duration(100), duration(3_400)
    ('1.7 min', '57 min')
    """
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 1.5 * size:
            return f"{digits.number(seconds / size, 5 if seconds >= 10 * size else 0.5)} {unit}"
    return f"{digits.count(seconds)} s"


def sizes(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the plain fp32 steps of all sizes, with the reason where one was not measured.

    `seq_len` is the context."""
    plain = tidy.select(steps, precision="fp32", compiled=False, **PLAIN)
    table = tidy.medians(plain, "total_ms", "least_percent", "limit_of")
    context = headline_case(steps)["context_length"] or 128
    missing = [
        {"size": size, "context_length": context, "status": "absent"}
        | {"why": f"not in this sweep; needs {digits.number(capacity.step_bytes(size, context) / capacity.GIB)} GiB"}
        for size in SIZES
        if size not in set(table["size"])
    ]
    rows = pd.DataFrame([*table.drop(columns="noisy").to_dict("records"), *missing])
    rows["seq_len"] = rows["context_length"]
    return tidy.ordered(Frame(rows).with_origin(table), "size context_length")


def shapes() -> pd.DataFrame:
    """Return layers, heads, widths and parameters of every model size."""
    rows = [
        {"size": size, "layers": config.num_layers, "heads": config.num_heads, "d_ff": config.d_ff}
        | {"vocabulary": config.vocab_size, "parameters, M": round(model_shape(size, 128).parameters / 1e6, 1)}
        for size, config in SIZES.items()
    ]
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame) -> Axes:
    """Draw the phases of each step in ms, its whole time at the end, its least time as a mark.

    Takes a row per step with `label`, `total_ms`, the phases and `least_ms`."""
    (ax,) = plots.axes(height=1.1 + 0.4 * len(table))
    least = "least_ms" if table["least_ms"].notna().any() else ""
    plots.phases(ax, table, "ms", "time of a step, ms", least=least)
    for row, (_, step) in enumerate(table.iterrows()):
        parts = [step[f"{phase}_ms"] for phase in PHASES]
        ends = zip(itertools.accumulate(i.value for i in parts), plots.errors(parts)[1], strict=True)
        marked = step["least_ms"].value if isinstance(step["least_ms"], Interval) else 0
        end = max(*(at + reach for at, reach in ends), marked)  # beside both, over neither
        plots.beside(ax, end, row, digits.value(step["total_ms"]))
    return ax


def drawn(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `draw` for the plain steps, eager, in each precision."""
    plain = tidy.select(steps, compiled=False, **PLAIN)
    table = tidy.medians(plain, "total_ms", "least_ms", *(f"{phase}_ms" for phase in PHASES))
    table = table[table["total_ms"].notna()]
    ms = table["total_ms"].map(lambda i: i.value).astype(float)
    table = table[ms >= SHOWN * ms.max()].reset_index(drop=True)
    words = [f"{row['size']}, {row['context_length']:,} tokens, {row['precision']}" for _, row in table.iterrows()]
    return table.assign(label=words)


def theory(every: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict a step's phases, its least time and its growth with the context."""
    peaks, speed = roofline.limits(ceilings)[0], roofline.limit_intervals(ceilings)[1]
    steps = prepared(every, ceilings)
    largest = headline_case(steps)
    plain = tidy.largest(steps, "context_length", precision="fp32", compiled=False, **PLAIN)
    short, long = hypotheses.ends(steps, "context_length", plain)
    of = partial(hypotheses.value, steps, case=largest)
    took, grew = partial(hypotheses.median, steps, case=largest), partial(hypotheses.ratio, steps, of=long, to=short)
    least = of("least_ms")
    grown, longer = (
        hypotheses.value(steps, name, long) / hypotheses.value(steps, name, short)
        for name in ("forward_flops", "least_ms")
    )
    backward_to_forward = of("backward_flops") / of("forward_flops")
    optimizer_ms = speed.inverse.scaled(1e3 * of("optimizer_bytes"))
    mfu = 3e5 * of("forward_flops") / peaks.get("fp32", math.nan) / least
    at = sentences.at(", {size} at {context_length}", largest)
    tokens = f", {long['size']}, {short['context_length']} to {long['context_length']}" if long.get("size") else ""
    rows = [
        (f"backward to forward{at}", "FLOPs of products, 2F to F", backward_to_forward, took("backward_to_forward")),
        (f"optimizer, ms{at}", "28 bytes a parameter at memory's ceiling", optimizer_ms, took("optimizer_ms")),
        (
            f"whole step, ms{at}",
            "products, then bytes, at their best rates",
            hypotheses.least(steps, largest),
            took("total_ms"),
            LEAST,
        ),
        (f"MFU, % of the ceiling{at}", "its FLOPs in that time", mfu, took("mfu_percent"), MOST),
        (f"growth of the forward pass{tokens}", "FLOPs, 2NBT + 4LBT²d", grown, grew("forward_ms")),
        (f"growth of the whole step{tokens}", "the least times of both", longer, grew("total_ms")),
    ]
    return [Hypothesis(*row) for row in rows]


def backward_twice_forward(data: claims.Data) -> list[Found]:
    """Find backward to forward in the same iteration, for each eager fp32 step."""
    steps = claims.rows(data, "step", mode="train_step", precision="fp32", compiled=False, **PLAIN)
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    return claims.medians(steps, "backward_to_forward", about(2), claims.SIZED)
