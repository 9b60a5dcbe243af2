"""Weigh the cost of compiling against the time it saves."""

import math
import statistics
from collections.abc import Mapping

import pandas as pd

from lib.chapters.step import PLAIN
from lib.config import SIZES
from lib.cost import flops
from lib.report import claims, compare, hypotheses, sentences, tidy
from lib.report.claims import LESS, Found
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_attention, published_step
from lib.report.sentences import Statement, of_records
from lib.stats import digits, intervals
from lib.stats.comparisons import UNCLEAR

NEVER, UNKNOWN = "never", "unclear"
ERRORS = ("out_error", "logits_error", "gradient_error")


def with_compile_time(records: pd.DataFrame) -> pd.DataFrame:
    """Add `compile_s`, and sums of forward and backward in the pairs, to the records.

    `compile_s` is the first iteration less the median of the later ones, where nothing came from a cache."""
    columns = (tidy.column(records, name) for name in ("first_iteration_ms", "wall_ms", "compile_cache_hits"))
    values = [
        [(first[0] - statistics.median(later)) / 1e3] if hits == 0 and isinstance(later, list) else None
        for first, later, hits in zip(*columns, strict=True)
    ]
    wider = records.assign(compile_s=pd.Series(values, index=records.index, dtype=object))
    for side in ("paired", "baseline"):
        wider = tidy.with_sum(wider, f"{side}_forward_backward_ms", f"{side}_forward_ms", f"{side}_backward_ms")
    return wider


def by_phase(records: pd.DataFrame, *phases: str) -> pd.DataFrame:
    """Compare compiled cases with eager ones by `compare.against_baselines`, by phase."""
    found = [compare.against_baselines(records, f"{phase}_ms").assign(phase=phase) for phase in phases]
    table = pd.concat(found, ignore_index=True)
    return table[table["compiled"].astype(bool)].reset_index(drop=True)


def wide(records: pd.DataFrame, *phases: str) -> pd.DataFrame:
    """Return `by_phase` with one row per case; phases that were not compared are missing."""
    fields, found = records.fields, by_phase(records, *phases)
    rows = tidy.select(found, phase=phases[-1])[[*fields, "hardware", "codes", "noisy"]]
    for phase in phases:
        own = tidy.select(found, phase=phase).set_index(fields)[["ratio", "verdict"]]
        rows = rows.join(own.add_prefix(f"{phase}_"), on=fields)
    return rows.reset_index(drop=True)


def paid(records: pd.DataFrame) -> pd.DataFrame:
    """Return after how many steps compiling has paid for itself, one row per case.

    Takes records of `with_compile_time`. `compiled_ms` and `eager_ms` are medians of the pairs, and `verdict` judges
    their `total_ratio`. `payback_steps` holds a word where compiled is not faster."""
    table, fields = by_phase(records, "total"), records.fields
    medians = tidy.medians(records, "compile_s", "paired_ms", "baseline_ms")
    table = table.merge(medians[[*fields, "compile_s", "paired_ms", "baseline_ms"]], on=fields)
    groups = [tidy.select(records, **row[fields]) for _, row in table.iterrows()]
    steps = [_payback_steps(group, verdict) for group, verdict in zip(groups, table["verdict"], strict=True)]
    names = {"paired_ms": "compiled_ms", "baseline_ms": "eager_ms", "ratio": "total_ratio"}
    return table.assign(payback_steps=steps).rename(columns=names)


def _payback_steps(group: pd.DataFrame, verdict: str) -> intervals.Interval | str:
    """Divide compile time, of the processes that compiled, by the time saved per step in each process."""
    if verdict != "faster":
        return UNKNOWN if verdict == UNCLEAR else NEVER
    compile_s, eager, compiled = (
        {r: statistics.median(samples) for r, samples in tidy.samples(group, metric).items()}
        for metric in ("compile_s", "baseline_ms", "paired_ms")
    )
    saved = [(eager[r] - compiled[r]) / 1e3 for r in sorted(eager)]
    if not saved or not compile_s or min(saved) <= 0:
        return UNKNOWN
    once = statistics.median(compile_s.values())
    return intervals.median([[once / each] for each in saved])


@of_records("compiled")
def payback(records: pd.DataFrame, case: Mapping, what: str) -> Statement:
    """State how long compiling `what` took and when it had paid for itself."""
    rows = tidy.select(paid(records), **case)
    if rows.empty:
        return sentences.missing(f"Compiling {what} was not measured here.")
    row = rows.iloc[0]
    lead, steps = f"Compiling {what} took {digits.brief(row['compile_s'])} s", row["payback_steps"]
    evidence = f"{row['total_ratio'].n} pairs, {row['total_ratio'].rounds} processes; verdict {row['verdict']}."
    ends = {
        NEVER: "and never pays for itself: a compiled iteration takes as long as an eager one, or longer",
        UNKNOWN: "and may not pay off: compiled and eager are too close to tell apart",
    }
    end = ends.get(steps) or f"and has paid for itself after {digits.brief(steps)} iterations"
    return Statement(f"{lead} {end}.", row["verdict"], evidence)


def breaks(records: pd.DataFrame) -> pd.DataFrame:
    """Return graphs, breaks and reasons in the latest process, one row per compiled case."""
    known = records[tidy.column(records, "graphs").notna()].sort_values("round")
    fields = records.fields
    columns = [*fields, "hardware", "graphs", "graph_breaks", "graph_break_reasons"]
    last = known.drop_duplicates(fields, keep="last").reindex(columns=columns)
    reasons = ["; ".join(table["reason"]) or "none" for table in last.pop("graph_break_reasons")]
    whole = last.assign(reasons=reasons).astype({"graphs": int, "graph_breaks": int})
    return tidy.ordered(whole, " ".join(fields))


@of_records()
def equal_results(records: pd.DataFrame) -> Statement:
    """Say how far compiled programs differ in fp32 from the eager model, or from attention in fp64."""
    chosen = tidy.select(records, precision="fp32", compiled=True, status="ok")
    errors = [max(row[name][0] for name in ERRORS if isinstance(row.get(name), list)) for _, row in chosen.iterrows()]
    if not errors:
        return sentences.missing("Errors of compiled programs were not measured.")
    text = (
        f"From equal seeds, compiled and eager results in fp32 differ by at most {digits.number(max(errors))} of their "
        "size."
    )
    return Statement(text, "measured", f"the largest of {', '.join(ERRORS)} over {len(errors)} records.")


def theory(records: pd.DataFrame) -> list[Hypothesis]:
    """Predict attention's gain by its least bytes, and none for the optimizer."""
    fp32 = {"precision": "fp32", "compiled": True}
    longest = tidy.largest(records, "seq_len", model="attention", **fp32)
    largest = tidy.largest(records, "forward_flops", model=list(SIZES), **fp32)
    at, of = sentences.at(", {seq_len:,} tokens", longest), sentences.at(", {model}", largest)
    shape = [longest[name] or math.nan for name in ("batch_size", "seq_len", "d_head")]
    ours, theirs = (flops.attention_moved_bytes(name, *shape, True, "fp32") for name in ("compiled", "naive"))

    def measured(phase: str, case: Mapping) -> intervals.Interval | None:
        return hypotheses.ratio(records, f"{phase}_ms", case, {**case, "compiled": False})

    of_attention = [
        (f"the {phase} pass of attention", ours[phase] / theirs[phase], measured(phase, longest))
        for phase in ("forward", "backward")
    ]
    both = sum(ours.values()) / sum(theirs.values())
    of_attention.append(("both passes of attention", both, measured("total", longest)))
    return [
        *(Hypothesis(f"{what}, compiled to eager{at}", "least bytes of both", *found) for what, *found in of_attention),
        Hypothesis(
            f"the optimizer beside a compiled model{of}", "the same program on both sides", 1.0,
            measured("optimizer", largest),
        ),
    ]  # fmt: skip


def published() -> pd.DataFrame:
    """Return published times of compiled programs relative to eager ones, one row per case.

    Both are of the same write-up and hardware; phases without a published time have no ratio. A program compiled in
    TF32 is compared with eager fp32 if eager TF32 is missing, and `precision` says so."""
    attention = published_attention().assign(model="attention")
    attention["compiled"] = attention["variant"] == "compiled"
    steps = published_step().rename(columns={"size": "model", "context_length": "seq_len"})
    return pd.concat([_compiled_to_eager(table) for table in (attention, steps)], ignore_index=True)


def _compiled_to_eager(times: pd.DataFrame) -> pd.DataFrame:
    cases = ("model", "seq_len", "d_head", "batch_size", "precision", "source", "hardware")
    keys = [name for name in cases if name in times]
    compiled = times["compiled"].astype(bool)
    eager = times[~compiled].assign(said=times["precision"])
    fp32 = tidy.select(eager, precision="fp32").assign(precision="tf32", said="tf32, eager in fp32")
    eager = pd.concat([eager, fp32]).drop_duplicates(keys)
    both = times[compiled].merge(eager, on=keys, suffixes=("", "_eager"))
    metrics = [name for name in times if name.endswith("_ms")]
    ratios = {f"{name.removesuffix('_ms')}_ratio": both[name] / both[f"{name}_eager"] for name in metrics}
    return both[keys].assign(precision=both["said"], **ratios)


def beside_published(own: pd.DataFrame, **where) -> pd.DataFrame:
    """Append the selected published ratios to `own`, the fp32 rows of `wide`."""
    theirs = tidy.ordered(tidy.select(published(), **where), "model seq_len precision source")
    if theirs["d_head"].notna().all():
        theirs = theirs.astype({"d_head": int})  # float only beside models, which state no head size
    both = [own.assign(source="this report"), theirs.assign(noisy="")]
    return pd.concat([rows for rows in both if len(rows)] or both, ignore_index=True)


def compiled_attention(data: claims.Data) -> list[Found]:
    """Find compiled against naive attention at the most tokens, by head size."""
    records, where = claims.rows(data, "attention"), {"precision": "fp32", "causal": True, "cold": False}
    longest = max((case["seq_len"] for case in claims.cases(records, variant="compiled", **where)), default=None)
    of, to = {"variant": "compiled", "seq_len": longest}, {"variant": "naive"}
    label = "at {seq_len:,} tokens, head size {d_head}"
    return claims.ratios(records, "total_ms", of, to, LESS, label, **where)


def compiled_step(data: claims.Data) -> list[Found]:
    """Find the compiled step against the eager one, for each size and context."""
    steps = claims.rows(data, "step", mode="train_step", **PLAIN)
    of, to = {"compiled": True}, {"compiled": False}
    return claims.ratios(steps, "total_ms", of, to, LESS, claims.SIZED, precision="fp32")


def tf32_to_compiling(data: claims.Data) -> list[Found]:
    """Find the gain of TF32 relative to that of compiling, at the largest size."""
    steps = claims.rows(data, "step", mode="train_step", **PLAIN)
    measured = claims.cases(steps, precision="tf32", compiled=True)
    if not measured:
        return []
    case = measured[-1]
    compiled = {**case, "precision": "fp32"}
    pairs = (case, compiled), (compiled, {**compiled, "compiled": False})
    label = f"is the gain of TF32 to that of compiling {claims.SIZED}"
    return claims.contrast(steps, "total_ms", *pairs, LESS, label)
