"""Show where our FlashAttention wins and loses, how near the limit it is, and what it keeps."""

import itertools
import math
from collections.abc import Mapping
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from lib.catalog import CATALOG
from lib.chapters import attention
from lib.cost import flops, memory
from lib.records.frame import Frame
from lib.report import compare, hypotheses, plots, published, roofline, sentences, tidy
from lib.report.hypotheses import LEAST, Hypothesis
from lib.report.sentences import Statement
from lib.stats import digits
from lib.stats.comparisons import UNCLEAR
from lib.stats.intervals import Interval

OURS = ("triton", "flash_compiled", "tiled")
RIVALS = (CATALOG["flash"].baseline["variant"], "naive")
SHAPE = ("num_heads", "seq_len", "d_head", "causal", "precision")
AT = ("num_heads", "causal", "precision", "device")  # alike in a figure over lengths and head sizes
MIB = 2**20
MISSING = sentences.missing("FlashAttention was not measured here.")
SKIPPED, MASKED, WHOLE = 0, 1, 2  # of a tile
TILES = {"skipped": (plots.INK, 0), "masked": (plots.ORANGE, 0.8), "whole": (plots.BLUE, 0.8)}  # hue and opacity
LIMIT = "limit"  # the name of its line


def headline_case(flash: pd.DataFrame) -> dict:
    """Return the longest case of ours with heads of 64.

    That is Triton's in bf16, or else the tiled one's in fp32; of several numbers of heads the smallest. Each field is
    None if there is no such case."""
    for variant, precision in (("triton", "bf16"), ("tiled", "fp32")):
        chosen = tidy.select(flash, variant=variant, precision=precision, causal=True, d_head=64, status="ok")
        if len(chosen):
            return tidy.largest(chosen, "seq_len", num_heads=chosen["num_heads"].min())
    return dict.fromkeys(flash.fields)


def least_ms(case: Mapping, products: Interval, bandwidth: Interval) -> Interval:
    """Return the least ms of forward and backward: the longer of FLOPs and bytes at the ceilings.

    The FLOPs are those of the scores that a query may see, three forward passes of them; the bytes those of inputs,
    output and gradients."""
    shape = tuple(int(case[name]) for name in SHAPE[:3])
    moved = flops.attention_moved_bytes("sdpa", *shape, case["causal"], case["precision"], native=True)
    return roofline.least_ms(3 * _flops(case), sum(moved.values()), products, bandwidth)


def with_limits(flash: pd.DataFrame, products: Mapping[str, Interval], bandwidth: Interval) -> pd.DataFrame:
    """Add `causal_gflops`, `limit_gflops`, `least_ms`, `limit_percent` and `formula_mib`.

    The limit is the least time that the ceilings allow, in percent of the time."""
    rows, error = flash.to_dict("records"), f"least_ms{tidy.LOG_ERROR}"
    least = [least_ms(row, products.get(row["precision"], roofline.UNKNOWN), bandwidth) for row in rows]
    saved = [memory.attention_saved_bytes(row["variant"], *(row[name] for name in SHAPE)) / MIB for row in rows]
    known = attention.with_rates(flash, products).assign(
        least_ms=[ms.value for ms in least], **{error: [ms.log_error for ms in least]}, formula_mib=saved,
        limit_gflops=[3 * _flops(row) / ms.value / 1e6 for row, ms in zip(rows, least, strict=True)],
    )  # fmt: skip
    known = tidy.with_quotient(known, "limit_percent", "least_ms", "total_ms", scale=100)
    return tidy.derive(known, f"limit_percent{tidy.LOG_ERROR}", lambda _, error: error, "total_ms", error)


def _flops(case: Mapping) -> int:
    """Return the FLOPs of a forward pass of a case, those of the scores that a query may see."""
    return flops.attention_flops(*(int(case[name]) for name in SHAPE[:3]), case["causal"])


def alike(flash: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Select the records of all lengths, head sizes and variants that go with the case."""
    return tidy.select(flash, **{name: case[name] for name in AT})


def beside_naive(flash: pd.DataFrame, case: Mapping) -> dict:
    """Return the case, or where naive attention did not run as long, its longest length."""
    naive = tidy.largest(flash, "seq_len", **{**case, "variant": "naive", "seq_len": list(set(flash["seq_len"]))})
    return {**case, "seq_len": min(naive["seq_len"], case["seq_len"])} if naive["seq_len"] else dict(case)


def answer(flash: pd.DataFrame, case: Mapping) -> Statement:
    """State the time of ours against that of both rivals, and how near the limit it is."""
    if case["seq_len"] is None:
        return sentences.missing(MISSING.text, flash)
    said, started = [], "forward and backward "
    for rival, name, each in zip(RIVALS, ("sdpa", "naive attention"), (case, beside_naive(flash, case)), strict=True):
        where = started + "at {num_heads} × {seq_len:,} tokens"
        said.append(sentences.compare(flash, each, {"variant": rival}, each["variant"], name, where))
        started = ""
    return sentences.together(*said, shares(flash, case))


def shares(flash: pd.DataFrame, case: Mapping) -> Statement:
    """State how much of what the ceilings allow ours and PyTorch's kernel reach."""
    cases = [{**case, "variant": name} for name in (case["variant"], RIVALS[0])]
    found = {each["variant"]: sentences.number(flash, "limit_percent", each) for each in cases}
    words = [f"{variant} reaches {percent}%" for variant, percent in found.items() if percent]
    if not words:
        return MISSING
    text, numbers = f"Of what the ceilings allow, {sentences.listed(words)}.", tuple(filter(None, found.values()))
    return Statement(text, "measured", "least_ms over total_ms.", sentences.names(flash, *cases), numbers)


def outcomes(flash: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Compare ours with each of `RIVALS` at all lengths and head sizes.

    Columns as in `compare.against_baselines`, and `rival`. The verdicts are those of the tables of all cases."""
    judged = {RIVALS[0]: compare.against_baselines(flash), RIVALS[1]: compare.contrasts(flash, "variant", RIVALS[1])}
    where = {name: case[name] for name in ("variant", *AT)}
    found = [tidy.select(table, **where).assign(rival=rival) for rival, table in judged.items()]
    return Frame(pd.concat(found, ignore_index=True)).with_origin(found[0])


def turning(found: pd.DataFrame, flash: pd.DataFrame, case: Mapping) -> Statement:
    """State at which lengths ours is faster or slower than each rival, with heads of the case's size."""
    parts = []
    for rival in RIVALS:
        rows = tidy.select(found, rival=rival, d_head=case["d_head"]).sort_values("seq_len")
        lengths = itertools.groupby(zip(rows["verdict"], rows["seq_len"], strict=True), key=lambda row: row[0])
        words = [f"{verdict} {_span([tokens for _, tokens in run])}" for verdict, run in lengths]
        if words:
            parts.append(f"{case['variant'].capitalize()} against {rival}: {', '.join(words)} tokens.")
    if not parts:
        return MISSING
    used = {name: case[name] for name in ("d_head", *AT)}
    return Statement(" ".join(parts), "measured", "The verdicts of the map.", sentences.names(flash, used))


def _span(lengths: list[int]) -> str:
    first, last = map(digits.count, (lengths[0], lengths[-1]))
    return f"at {first}" if len(lengths) == 1 else f"from {first} to {last}"


def kept(flash: pd.DataFrame, case: Mapping) -> Statement:
    """State what ours and naive attention save for the backward pass."""
    if case["seq_len"] is None:
        return MISSING
    same = beside_naive(flash, case)
    cases = [{**same, "variant": name} for name in (case["variant"], RIVALS[1])]
    numbers = tuple(
        sentences.number(flash, "saved_mib", each, lambda mib: digits.number(mib.value, 0)) for each in cases
    )
    if None in numbers:
        return MISSING
    text = (
        f"For the backward pass of {digits.count(same['seq_len'])} tokens {case['variant']} keeps {numbers[0]} MiB, "
        f"naive attention {numbers[1]}."
    )
    return Statement(text, "measured", "saved_mib, counted by tensor.", sentences.names(flash, *cases), numbers)


@mpl.rc_context(plots.STYLE)
def draw(table: pd.DataFrame) -> Axes:
    """Draw the rate of each variant below the limit, and what it saves, against the tokens."""
    rate = attention.lines(table, "causal_gflops", "saved_mib")
    limits = table.drop_duplicates("seq_len").set_index("seq_len")["limit_gflops"].sort_index().dropna()
    if len(limits):
        rate.plot(limits, color=plots.QUIET, linestyle=plots.DASHES["compiled"])
        rate.annotate(LIMIT, (limits.index[-1], limits.iloc[-1]), (0, 4), textcoords="offset points", ha="right")
        plots.round_ticks(rate.yaxis)
    return rate


@mpl.rc_context(plots.STYLE)
def draw_map(found: pd.DataFrame) -> Axes:
    """Draw ours relative to each rival, tokens by head size.

    Blue is faster, red slower, and brackets mark what is unclear."""
    at = ["seq_len", "d_head"]
    every = pd.MultiIndex.from_product([sorted(found[name].unique()) for name in at], names=at)
    grid = plots.axes(2, 1.1 + 0.26 * max(1, len(every.levels[0])), sharey=True)
    for ax, rival in zip(grid if len(every) else (), RIVALS, strict=False):
        cells = tidy.select(found, rival=rival).set_index(at)
        judged = zip(cells["ratio"], cells["verdict"], strict=True)
        texts = ((f"{ratio.value:.2f}", verdict) for ratio, verdict in judged)
        labels = [f"({text})" if verdict == UNCLEAR else text for text, verdict in texts]
        cells = cells.assign(log=[math.log2(ratio.value) for ratio in cells["ratio"]], label=labels)
        cells = cells[["log", "label"]].reindex(every).reset_index()
        plots.heatmap(ax, cells, *at, "log", vmin=-3, vmax=3, cmap="vlag").set_title(f"relative to {rival}")
    grid[-1].set_ylabel("")
    return grid[0]


def tiles(tokens: int, queries: int = memory.TILE, keys: int = memory.TILE) -> np.ndarray:
    """Return what happens to each tile of causal scores, queries by keys: SKIPPED, MASKED or WHOLE.

    A tile is skipped if all its keys are in the future of all its queries, and masked if some are."""
    first, start = np.arange(0, tokens, queries)[:, None], np.arange(0, tokens, keys)[None, :]
    last, end = np.minimum(first + queries, tokens) - 1, np.minimum(start + keys, tokens) - 1
    return np.where(start > last, SKIPPED, np.where(end > first, MASKED, WHOLE))


@mpl.rc_context(plots.STYLE)
def draw_tiles(tokens: int) -> Axes:
    """Draw the tiles of causal scores: those skipped, masked and computed whole."""
    (ax,) = plots.axes(height=3.2)
    colours = [(*mpl.colors.to_rgb(colour), strength) for colour, strength in TILES.values()]
    edges = np.arange(0, tokens + 1, memory.TILE)
    ax.pcolormesh(
        edges, edges, tiles(tokens), cmap=ListedColormap(colours), edgecolors=plots.QUIET, linewidth=0.8, vmin=SKIPPED,
        vmax=WHOLE,
    )  # fmt: skip
    ax.set(xlabel="keys", ylabel="queries", aspect="equal")
    ax.set_xticks(edges[::2], [f"{edge:,}" for edge in edges[::2]])
    ax.set_yticks(edges[::2], [f"{edge:,}" for edge in edges[::2]])
    ax.invert_yaxis()
    plots.above(ax, [Patch(facecolor=colour, edgecolor=plots.QUIET) for colour in colours], list(TILES))
    return ax


def counted_tiles(tokens: int) -> Statement:
    """State how many tiles of a sequence the mask leaves."""
    found = tiles(tokens)
    every, left, masked = (digits.count(n) for n in (found.size, (found != SKIPPED).sum(), (found == MASKED).sum()))
    text = (
        f"Of {every} tiles of {digits.count(tokens)} tokens {left} are visited, and only {masked} of them are masked."
    )
    return Statement(text, "derived", f"Tiles of {memory.TILE} queries and keys.")


def recomputation(case: Mapping, products: float, bandwidth: float) -> pd.DataFrame:
    """Return what it takes to keep the visible weights of a case, and to compute them again."""
    heads, tokens, d_head = (int(case[name]) for name in SHAPE[:3])
    scores = heads * tokens * (tokens + 1) // 2
    moved, computed = 2 * flops.width(case["precision"]) * scores, 2 * d_head * scores
    rows = [
        ("write the weights and read them", moved / MIB, math.nan, 1e3 * moved / bandwidth),
        ("compute the scores again", math.nan, computed / 1e9, 1e3 * computed / products),
    ]
    return pd.DataFrame(rows, columns=["to have the weights twice", "MiB", "GFLOP", "least_ms"])


def cheaper(case: Mapping, products: float, bandwidth: float) -> Statement:
    """State the least times of keeping the weights and of computing their scores again."""
    if case["seq_len"] is None or math.isnan(products) or math.isnan(bandwidth):
        return MISSING
    keep, again = recomputation(case, products, bandwidth)["least_ms"]
    word = "less" if again < keep else "more"
    text = (
        f"To compute the scores again takes at least {digits.number(again)} ms, {word} than the "
        f"{digits.number(keep)} ms to write the weights to memory and read them back."
    )
    return Statement(text, "derived", "FLOPs and bytes by formula at the ceilings measured here.")


def beside_public(flash: pd.DataFrame) -> pd.DataFrame:
    """Return public times of FlashAttention on GPUs, each case below what this machine measured of it."""
    public, own = published.published_flash(), tidy.medians(flash, "forward_ms", "total_ms")
    rows, keys = [], list(SHAPE)
    for case, group in public.groupby(keys, sort=False) if len(flash) else ():
        alike = dict(zip(keys, case, strict=True))
        text = published.case_text({name: alike[name] for name in keys if name != "causal"})
        measured = tidy.select(own, **alike, variant=[*OURS, *RIVALS], status="ok")
        mine = measured.assign(source="this report", why="").to_dict("records")
        missing = {"variant": OURS[0], "source": "this report", "hardware": flash["hardware"].iloc[0]}
        missing["why"] = "not measured here"
        rows += [{**row, "case": text} for row in mine or [missing]]
        rows += [{**row, "case": text, "why": ""} for row in group.to_dict("records")]
    return pd.DataFrame(rows, columns=["case", "source", "hardware", "variant", "forward_ms", "total_ms", "why"])


def theory(flash: pd.DataFrame, case: Mapping) -> list[Hypothesis]:
    """Predict growth with the tokens, the least time, and what is saved to the byte."""
    naive = {**beside_naive(flash, case), "variant": "naive"}
    at, grows = ", {seq_len:,} tokens", partial(hypotheses.exponent, flash, axis="seq_len", case=case)
    rows = [
        (f"exponent of {case['variant']}'s time in T", "FLOPs, T²", 2.0, grows("total_ms")),
        ("exponent of what it saves", "T (4D + 1) numbers", 1.0, grows("saved_mib")),
    ]
    for one, how in ((case, "T (4D + 1) numbers a head"), (naive, "3TD + T² numbers a head, and a mask")):
        formula, saved = (hypotheses.value(flash, name, one) for name in ("formula_mib", "saved_mib"))
        what = f"{one['variant']} saves, MiB{sentences.at(at, one)}"
        rows.append((what, how, formula, hypotheses.counted(saved)))
    for variant in (case["variant"], RIVALS[0]):
        took = hypotheses.median(flash, "total_ms", {**case, "variant": variant})
        how, least = "the longer of FLOPs and bytes at the ceilings", hypotheses.least(flash, case)
        rows.append((f"{variant}, ms{sentences.at(at, case)}", how, least, took, LEAST))
    return [Hypothesis(*row) for row in rows]
