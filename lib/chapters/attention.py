"""Show how fast attention alone is, what it keeps, and where it meets the limits of a machine."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from lib.chapters import capacity
from lib.cost import flops, memory
from lib.records import results
from lib.report import claims, compare, hypotheses, plots, roofline, sentences, tidy
from lib.report.claims import Found, about
from lib.report.hypotheses import LEAST, MOST, Hypothesis
from lib.report.published import datasheets
from lib.report.quantities import Quantity
from lib.report.sentences import Statement, of_records
from lib.stats import digits
from lib.stats.comparisons import FASTER
from lib.stats.intervals import Interval

LENGTHS, HEADS = (256, 1024, 4096, 8192, 16384), (16, 32, 64, 128)  # the assignment's grid (CS336, pytorch_attention)
BATCH, CAUSAL = 8, True  # the assignment's batch; the mask is added, as in the language model
SHAPE = ("batch_size", "seq_len", "d_head", "causal")
MIB, GIB = 2**20, 2**30
MISSING = sentences.missing("Attention was not measured here.")


def peak_bytes(seq_len: int, d_head: int, batch_size: int = BATCH, causal: bool = CAUSAL) -> int:
    """Return the peak of naive attention in fp32, by formula."""
    return sum(memory.attention_peak_bytes(batch_size, seq_len, d_head, causal).values())


def longest(memory_bytes: int, d_head: int) -> int:
    """Return the most tokens of naive fp32 attention that fit, at the assignment's batch."""
    return capacity.most_tokens(memory_bytes, partial(peak_bytes, d_head=d_head))


def memories(records: pd.DataFrame, machine: str) -> dict[str, int]:
    """Return bytes of memory by hardware.

    Covers this machine, the reference machines, and GPUs in public write-ups whose names state their memory."""
    found = {}
    for frame in (records, results.reference("attention", but=machine)):
        for hardware, environment in zip(frame["hardware"], frame["environment"], strict=True):
            found[hardware] = capacity.memory_bytes(environment)
    named = {name: re.search(r"(\d+) ?GB", name) for name in datasheets()["hardware"].unique()}
    return found | {name: int(size[1]) * GIB for name, size in named.items() if size}


def fitting(sizes: Mapping[str, int]) -> pd.DataFrame:
    """Return each machine's memory and the most tokens that fit by formula.

    Columns cover the least and the largest head size, each with the first of the assignment's lengths that does not
    fit."""
    rows = []
    for hardware, size in sizes.items():
        row = {"hardware": hardware, "memory, GiB": size / GIB}
        for d_head in (HEADS[0], HEADS[-1]):
            row[f"most tokens, head size {d_head}"] = most = longest(size, d_head)
            row[f"first of the grid that does not fit, {d_head}"] = next((t for t in LENGTHS if t > most), None)
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def first_refused(records: pd.DataFrame) -> dict | None:
    """Return the smallest naive fp32 case that did not fit or was predicted not to, if any."""
    naive = tidy.select(records, variant="naive", precision="fp32", status=["too_large", "oom"])
    return None if naive.empty else naive.sort_values(["seq_len", "d_head"]).iloc[0].to_dict()


def accounted(records: pd.DataFrame, memory_bytes: int) -> dict:
    """Choose the case whose memory is explained: the smallest that did not fit.

    If everything fit, it is the first of the assignment's lengths that would not fit by formula. If all of those
    would fit, the longest is doubled until it does not."""
    refused = first_refused(records)
    if refused:
        return {name: refused[name] for name in SHAPE}
    doubled = (LENGTHS[-1] * 2**times for times in itertools.count(1))
    most = longest(memory_bytes, HEADS[0])
    length = next(tokens for tokens in itertools.chain(LENGTHS, doubled) if tokens > most)
    return dict(zip(SHAPE, (BATCH, length, HEADS[0], CAUSAL), strict=True))


def account(case: Mapping) -> pd.DataFrame:
    """Return the parts of naive fp32 attention's peak, one row per part, the sum last."""
    parts = memory.attention_peak_bytes(*(case[name] for name in SHAPE))
    b, t, d = (case[name] for name in SHAPE[:3])
    formulas = {
        12 * b * t * d: f"3 × 4 × {b:,} × {t:,} × {d:,}", 4 * b * t * d: f"4 × {b:,} × {t:,} × {d:,}",
        4 * b * t * t: f"4 × {b:,} × {t:,}²", t * t: f"{t:,}²",
    }  # fmt: skip
    rows = [(part, formulas[size], size) for part, size in parts.items()] + [("together", "", sum(parts.values()))]
    table = pd.DataFrame(rows, columns=["part", "product", "bytes"])
    return table.assign(GiB=table["bytes"] / GIB)


@of_records()
def out_of_memory(records: pd.DataFrame, machine: str) -> Statement:
    """State at which size naive attention no longer fits, and what fills the memory."""
    if records.empty:
        return sentences.missing("Which sizes fit was not measured here.")
    hardware, size = next(iter(memories(records, machine).items()))
    case, refused = accounted(records, size), first_refused(records)
    needed, squares = peak_bytes(**case), 12 * case["batch_size"] * case["seq_len"] ** 2
    what = f"{case['batch_size']} × {case['seq_len']:,} tokens with heads of {case['d_head']}"
    shares = f"of its {digits.number(needed / GIB)} GiB, three T × T score matrices are "
    shares += f"{digits.number(100 * squares / needed)}%"
    evidence = f"naive, fp32; {size / GIB:.1f} GiB in {hardware}; the peak by formula, which a test holds to the byte."
    if refused is None:
        text = f"All sizes measured here fit; by the formula the first that would not is {what}: {shares}."
        return Statement(text, "derived", evidence)
    ran = refused["status"] == "oom"
    said = "ran out of memory" if ran else "is predicted not to fit, and so was not run"
    text = f"On this machine, with {digits.number(size / GIB)} GiB, naive attention in fp32 of {what} {said}: {shares}."
    if not ran:
        evidence += f" It may take nine tenths of the memory, {refused['available_bytes'] / GIB:.1f} GiB."
    return Statement(text, "measured" if ran else "derived", evidence)


def kept_mib(variant: str, case: Mapping) -> float:
    """Return the MiB that a variant keeps in fp32 for its backward pass, by formula."""
    kept = memory.attention_kept_bytes(variant, *(int(case[name]) for name in SHAPE[:3]), CAUSAL)
    return sum(kept.values()) / MIB


def with_kept(rows: pd.DataFrame) -> pd.DataFrame:
    """Add `by_formula`, the MiB that a variant keeps for its backward pass.

    Missing unless the precision is fp32 and the variant is naive, tiled or sdpa."""
    kept = [
        kept_mib(row["variant"], row)
        if row["precision"] == "fp32" and row["variant"] in ("naive", "tiled", "sdpa")
        else None
        for _, row in rows.iterrows()
    ]
    return rows.assign(by_formula=pd.Series(kept, index=rows.index, dtype=float))


def with_rates(attention: pd.DataFrame, peaks: Mapping[str, float | Interval]) -> pd.DataFrame:
    """Add `causal_gflops` and `causal_percent`, the rate as a share of the products' ceiling.

    They count only the scores that a query may see, whatever the variant computes. Missing without the mask."""
    known = attention.assign(causal_flops=tidy.column(attention, "causal_flops"))
    known = tidy.with_rate(known, "causal_gflops", "causal_flops", scale=3e-9)
    return roofline.with_percent_of(known, "causal_percent", "causal_flops", dict(peaks), times=3)


def growth(attention: pd.DataFrame, at: Mapping) -> Statement:
    """State how the time of naive attention grows with the tokens, and what tiled attention keeps."""
    naive, tiled = ({**at, "variant": variant} for variant in ("naive", "tiled"))
    return sentences.together(
        sentences.exponent(attention, "total_ms", "seq_len", naive, "the time of naive attention"),
        sentences.exponent(attention, "forward_end_mib", "seq_len", tiled, "what tiled attention keeps"),
    )


def sdpa_kernels(attention: pd.DataFrame) -> Statement:
    """State which of its kernels sdpa ran, in which precisions."""
    known = attention[tidy.column(attention, "sdpa_backend").notna()]
    if known.empty:
        return sentences.missing("Which kernel sdpa ran was not recorded here.")
    said = [
        f"{kernel} in {sentences.listed(sorted(set(ran['precision']), key=tidy.ORDER.index))}"
        for kernel, ran in known.groupby("sdpa_backend", sort=False)
    ]
    text = f"Of PyTorch's kernels sdpa ran {'; '.join(said)}."
    evidence = "As PyTorch picked it for the case's own inputs; math is the formula, without a kernel of its own."
    return Statement(text, "measured", evidence, sentences.names(known, {}))


@of_records("variant")
def answer(attention: pd.DataFrame, alike: Mapping) -> Statement:
    """State how much faster the fastest variant is than naive attention, and what both keep."""
    best, naive = _best_and_naive(attention, alike)
    found = best and sentences.factor(attention, "total_ms", best, naive)
    if not found:
        return MISSING
    ratio, rests_on = found
    takes = f"is {ratio} faster than" if ratio.verdict == FASTER else f"takes {ratio} the time of"
    text, numbers = f"At {alike['seq_len']:,} tokens {best['variant']} {takes} naive attention", [ratio]
    kept = [_kept_mib(attention, case) for case in (best, naive)]
    if all(kept):
        text += f", forward and backward, and keeps {kept[0]} MiB for the backward pass instead of {kept[1]}"
        numbers += kept
    return Statement(f"{text}.", ratio.verdict, f"{sentences.fields(alike)}; {rests_on}.", (), tuple(numbers))


def first_line(attention: pd.DataFrame) -> Statement:
    """State the time and memory of naive attention and of the fastest variant, in a line."""
    alike = longest_case(attention)
    best, naive = _best_and_naive(attention, alike)
    found = best and sentences.factor(attention, "total_ms", best, naive)
    ms = sentences.number(attention, "total_ms", naive) if found else None
    if not ms:
        return MISSING
    ratio, rests_on = found
    faster = ratio.verdict == FASTER
    ratio = replace(ratio, shown=f"{digits.value(ratio.value.inverse if faster else ratio.value)}×")
    said = f"{ratio} faster" if faster else f"{ratio} its time ({ratio.verdict})"
    own, most = (_kept_mib(attention, case) for case in (best, naive))
    text = f"{alike['seq_len']:,} tokens, forward and backward: naive {ms} ms{f', {most} MiB' if most else ''}; "
    text += f"{best['variant']} {said}{f', {own} MiB' if own else ''}."
    evidence = f"{sentences.fields(alike)}; total_ms, forward_end_mib; {rests_on}."
    numbers = tuple(filter(None, (ms, most, ratio, own)))
    return Statement(text, ratio.verdict, evidence, sentences.names(attention, naive, best), numbers)


def longest_case(attention: pd.DataFrame, variant: str = "naive") -> dict:
    """Return a variant's longest case without the variant: fp32, causal, warm, heads of 64."""
    found = tidy.largest(attention, "seq_len", variant=variant, precision="fp32", causal=True, cold=False, d_head=64)
    return {name: of for name, of in found.items() if name != "variant"}


def _best_and_naive(attention: pd.DataFrame, alike: Mapping) -> tuple[dict | None, dict]:
    """Return the cases of the fastest variant other than naive, None without one, and of naive."""
    ranked = compare.ranked(tidy.select(attention, **alike)) if alike["seq_len"] else []
    others = [name for name in ranked if name != "naive"]
    return {**alike, "variant": others[0]} if others and "naive" in ranked else None, {**alike, "variant": "naive"}


def _kept_mib(attention: pd.DataFrame, case: Mapping) -> Quantity | None:
    """Return the MiB that a case keeps for the backward pass; None if they were not counted."""
    return sentences.number(attention, "forward_end_mib", case, lambda mib: digits.count(mib.value))


def lines(table: pd.DataFrame, *metrics: str) -> Axes:
    """Draw two metrics against the tokens, a panel each, one line per variant; return the first."""
    first, other = plots.axes(2, 3.4)
    for ax, metric in zip((first, other), metrics, strict=True):
        plots.lines(ax, table, "seq_len", metric, "variant", [])
    plots.legend(first, list(dict.fromkeys(table.loc[table["total_ms"].notna(), "variant"])))
    return first


def theory(attention: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict growth with the tokens, memory kept, the least time and the mask."""
    peaks, speed = roofline.limit_intervals(ceilings)
    alike = {"precision": "fp32", "cold": False, "d_head": 64}
    longest = tidy.largest(attention, "seq_len", causal=True, **alike)
    naive, tiled = ({**longest, "variant": name} for name in ("naive", "tiled"))
    grows = partial(hypotheses.exponent, attention, axis="seq_len")
    took = partial(hypotheses.median, attention, case=naive)
    operations, moved = (hypotheses.value(attention, name, naive) for name in ("forward_flops", "moved_bytes"))
    least = roofline.least_ms(3 * operations, moved, peaks.get("fp32", roofline.UNKNOWN), speed)
    at = sentences.at(", {seq_len:,} tokens", longest)
    open_ = tidy.largest(tidy.select(attention, variant="sdpa", causal=False), "seq_len", **alike)
    visible, all_ = (flops.attention_flops(1, open_["seq_len"] or math.nan, 1, causal) for causal in (True, False))
    masked = hypotheses.ratio(attention, "total_ms", {**open_, "causal": True}, open_)
    kept = kept_mib("naive", longest) if at else math.nan
    naive_keeps, tiled_keeps = (grows("forward_end_mib", case=case) for case in (naive, tiled))
    rows = [
        ("exponent of naive's time in T", "FLOPs and bytes, T²", 2.0, grows("total_ms", case=naive)),
        (f"naive, ms{at}", "the longer of FLOPs and bytes at the ceilings", least, took("total_ms"), LEAST),
        ("exponent of what naive keeps", "scores alone, T²", 2.0, naive_keeps, MOST),
        ("exponent of what tiled keeps", "one number a query, T", 1.0, tiled_keeps),
        (f"naive keeps, MiB{at}", "closed formula", kept, took("forward_end_mib")),
        ("sdpa with the mask to without", "scores that a query may see", visible / all_, masked, LEAST),
    ]
    return [Hypothesis(*row) for row in rows]


def with_several_heads(table: pd.DataFrame) -> pd.DataFrame:
    """Select the lengths for which several head sizes were timed.

    If there are more than three, only the first, the middle and the last are kept."""
    timed = table[table["total_ms"].notna()]
    counts = timed.groupby("seq_len")["d_head"].nunique()
    lengths = sorted(counts[counts > 1].index)
    some = {lengths[i] for i in (0, len(lengths) // 2, -1)} if lengths else set()
    return timed[timed["seq_len"].isin(some)]


def attention_grows(data: claims.Data) -> list[Found]:
    """Find the exponents of time and memory of naive attention, up to 8,192 tokens."""
    records = claims.rows(data, "attention", variant="naive", precision="fp32", causal=True, cold=False)
    lengths = [length for length in set(records.get("seq_len", [])) if 256 <= length <= 8192]
    folds = {"total_ms": (80, "time"), "forward_end_mib": (60, "memory")}
    return [
        one
        for metric, (fold, word) in folds.items()
        for one in claims.exponent(
            records, metric, "seq_len", tuple(math.log(end) / math.log(8192 / 256) for end in about(fold)),
            f"is the exponent of {word} up to {{seq_len:,}} tokens, head size {{d_head}}", seq_len=lengths,
        )
    ]  # fmt: skip
