"""Sets numbers and tidy tables as text and HTML, under one set of headings; computes nothing."""

import html
import math

import pandas as pd

from lib.stats import Interval

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point, in tabular numerals
MISSING, UNAVAILABLE = "–", "not available"
LONG = 16  # characters in a cell from which on it may break
ABSENT = '<p class="absent">Not measured on this machine.</p>'
HEADINGS = {  # of columns and axes: one wording through the whole report, the unit at its end
    "amsgrad": "amsgrad",
    "attention": "attention",
    "backward_ms": "backward, ms",
    "backward_peak_mib": "peak backward, MiB",
    "bandwidth_percent": "of the ceiling, %",
    "baseline": "against",
    "batch_size": "batch",
    "call_us": "a call, µs",
    "by": "compared by",
    "case": "case",
    "causal": "causal",
    "cold": "cold caches",
    "ceiling_percent": "of the ceiling, %",
    "columns": "columns",
    "compiled": "compiled",
    "context_length": "context, tokens",
    "d_head": "head size",
    "d_model": "d_model",
    "device": "device",
    "first_iteration_s": "first iteration, s",
    "formula_mib": "by formula, MiB",
    "forward_backward_ms": "forward and backward, ms",
    "forward_end_mib": "kept for backward, MiB",
    "forward_ms": "forward, ms",
    "forward_peak_mib": "peak forward, MiB",
    "gigabytes": "GB/s",
    "gradient_error": "error of the gradients",
    "gflops": "GFLOP/s",
    "hardware": "hardware",
    "least_ms": "at least, ms",
    "least_percent": "at least, % of measured",
    "logits_error": "error of the logits",
    "mfu_percent": "MFU, %",
    "mode": "mode",
    "num_params": "parameters",
    "operation": "operation",
    "optimizer": "optimizer",
    "optimizer_ms": "optimizer, ms",
    "optimizer_peak_mib": "peak optimizer, MiB",
    "out_error": "error of the output",
    "param_size": "elements of each",
    "peak_mib": "peak, MiB",
    "peak_percent": "of its hardware's peak, %",
    "precision": "precision",
    "ratio": "time relative to it",
    "resident_peak_mib": "whole process, MiB",
    "rows": "rows",
    "seq_len": "tokens",
    "size": "size",
    "source": "source",
    "teraflops": "TFLOP/s",
    "tokens_per_s": "tokens/s",
    "total_ms": "whole, ms",
    "update_error": "error of the update",
    "variant": "variant",
    "verdict": "verdict",
    "visible_percent": "smallest visible difference, %",
    "attention_percent": "attention, %",
    "busy_percent": "of it in these, %",
    "calls": "calls",
    "claim": "claim",
    "class": "class",
    "copy_percent": "copy, %",
    "deviation_us": "deviation, µs",
    "elementwise_percent": "elementwise, %",
    "else_percent": "all else, %",
    "flops_percent": "of their FLOPs, %",
    "here": "here",
    "kernel": "kernel or operator",
    "kernels_ms": "kernels or operators, ms",
    "matrix_product_percent": "matrix product, %",
    "max_us": "most, µs",
    "mean_us": "mean, µs",
    "median_us": "median, µs",
    "min_us": "least, µs",
    "optimizer_percent": "optimizer, %",
    "other_percent": "other, %",
    "overhead_percent": "overhead, %",
    "part": "part",
    "part_ms": "time, ms",
    "phase": "phase",
    "product_ms": "of it products, ms",
    "profiled_ms": "profiled, ms",
    "profiled_ratio": "profiled to timed",
    "range": "range",
    "reduction_percent": "reduction, %",
    "scope": "of",
    "share_percent": "share, %",
    "time_percent": "of their time, %",
    "timed_ms": "timed, ms",
    "total_us": "total, µs",
}


def number(value: float, uncertainty: float = math.nan) -> str:
    """The value with the digits that its uncertainty warrants: to the uncertainty's first digit, and to the
    second where the first is a 1 or 2; four digits where there is none at all, three where none is known."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if uncertainty > 0:
        place = math.floor(math.log10(uncertainty))
        place = min(place - (uncertainty < 3 * 10**place), size - 1)  # never fewer than two digits
    else:
        place = size - (3 if uncertainty == 0 else 2)
    return f"{round(value, -place):,.{max(0, -place)}f}"


def interval(of: Interval | None) -> str:
    """The value with its interval behind it, as plain text: 2.71 (2.66 to 2.75)."""
    if of is None:
        return MISSING
    if not of.known:
        return f"{number(of.value)} (too few samples for an interval)"
    value, ends = number(of.value, of.reach), f"({number(of.low, of.reach)} to {number(of.high, of.reach)})"
    return f"{value} {ends}" if of.reach else value


def aligned(texts: list[str]) -> list[str]:
    """Numbers padded on the right so that, flush right in tabular numerals, they align at the point."""
    decimals = [len(text.partition(".")[2]) for text in texts]
    widest = max(decimals, default=0)
    return [
        text if text == MISSING else text + ("" if has else POINT_SPACE * (widest > 0)) + FIGURE_SPACE * (widest - has)
        for text, has in zip(texts, decimals, strict=True)
    ]


def _as_interval(value) -> Interval | None:
    """A number that came without an interval, such as a published one, as an interval of unknown width."""
    if isinstance(value, Interval | str) or pd.isna(value):
        return value if isinstance(value, Interval) else None
    return Interval(value, math.nan, math.nan, 0, 0)


def _column(values: pd.Series) -> tuple[list[str], bool]:
    """The cells of a column as HTML, and whether they are numbers."""
    if any(isinstance(value, Interval) for value in values):
        shown = [_as_interval(value) for value in values]
        heads = aligned([number(i.value, i.reach) if i else MISSING for i in shown])
        tails = [f"{number(i.low, i.reach)}–{number(i.high, i.reach)}" if i and i.reach > 0 else "" for i in shown]
        words = [
            value if isinstance(value, str) else f"{h}<small>{t}</small>"
            for value, h, t in zip(values, heads, tails, strict=True)
        ]
        return words, True
    if pd.api.types.is_bool_dtype(values):
        return ["yes" if value else "no" for value in values], False
    if pd.api.types.is_numeric_dtype(values):
        whole = pd.api.types.is_integer_dtype(values)
        return aligned([MISSING if pd.isna(v) else f"{v:,}" if whole else number(v) for v in values]), True
    return [MISSING if value is None or value is pd.NA else html.escape(str(value)) for value in values], False


class Table:
    """A table with its caption, which a notebook shows as HTML; the report numbers it."""

    def __init__(self, frame: pd.DataFrame, caption: str, note: str = ""):
        self.frame, self.caption, self.note = frame, caption, note

    def _repr_html_(self) -> str:
        cells = [_column(self.frame[name]) for name in self.frame]
        kinds = [
            "number" if is_number else "long" if max(map(len, texts), default=0) > LONG else "word"
            for texts, is_number in cells
        ]
        head = "".join(
            f'<th scope="col" class="{kind}">{html.escape(str(name))}</th>'
            for name, kind in zip(self.frame, kinds, strict=True)
        )
        rows = "".join(
            "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
            for row in zip(*(texts for texts, _ in cells), strict=True)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption><b class="label">Table</b> {html.escape(self.caption)}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.caption, quote=True)}">'
            f"{table if rows else ABSENT}</div>{note}</figure>"
        )


def show(frame: pd.DataFrame, columns: str, caption: str) -> Table:
    """The columns named in `columns`, with spaces between them, as a table under their headings. Memory of a case with
    times that offers no such count is called not available. Columns without any value are left out, and those of the
    case that are alike in all rows go into the note, with hardware, samples and rounds; in how many rounds the machine
    was restless, and `why` a row has no times, come last, if any has one."""
    if "status" in frame:
        for name in (name for name in columns.split() if name.endswith("_mib") and name in frame):
            uncounted = frame[name].isna() & (frame["status"] == "ok")
            frame = frame.assign(**{name: frame[name].mask(uncounted, UNAVAILABLE)})
    names = [name for name in columns.split() if name in frame and frame[name].notna().any()]
    alike = {
        name: frame[name].iloc[0]
        for name in names
        if len(frame) > 1 and not isinstance(frame[name].iloc[0], Interval) and len(set(frame[name])) == 1
    }
    shown = frame[[name for name in names if name not in alike]].rename(columns=HEADINGS)
    for name, heading in (("restless", "restless"), ("why", "not measured")):
        if name in frame and frame[name].any():
            shown = shown.assign(**{heading: frame[name]})
    setting = "; ".join(f"{HEADINGS[name]}: {_plain(value)}" for name, value in alike.items())
    return Table(
        shown, caption, " ".join(text for text in (provenance(frame), f"{setting}." if setting else "") if text)
    )


def peaks(sheets: pd.DataFrame, products: dict[str, float], copies: dict[str, float], caption: str) -> Table:
    """The table of `results.datasheets`, one row a GPU, below the ceilings in FLOP/s and bytes/s measured here."""
    wide = sheets.pivot_table(index=["hardware", "memory_gb_per_s"], columns="precision", values="tflops")
    wide = wide.reset_index().rename(columns={"memory_gb_per_s": "memory, GB/s"})
    own = {"hardware": "this machine, measured", **{name: rate / 1e12 for name, rate in products.items()}}
    own["memory, GB/s"] = max(copies.values(), default=math.nan) / 1e9
    wide = pd.concat([pd.DataFrame([own]), wide])[["hardware", "memory, GB/s", "fp32", "tf32", "bf16"]]
    short = sheets["source"].str.replace(r",? (as re|https?:).*", "", regex=True)
    sources = sheets.groupby(short, sort=False)["hardware"].agg(lambda names: " and ".join(dict.fromkeys(names)))
    said = "; ".join(f"{hardware} from {source}" for source, hardware in sources.items())
    return Table(
        wide, caption, f"{said}. The convention and full source of each number: reports/reference/datasheets.csv."
    )


def _plain(value) -> str:
    known = {"True": "yes", "False": "no"}
    return known.get(str(value)) or (value if isinstance(value, str) else f"{value:,}")


def provenance(frame: pd.DataFrame) -> str:
    """Hardware, number of samples and of processes behind the intervals of a table, for its note."""
    cells = {name: [i for i in frame[name] if isinstance(i, Interval)] for name in frame}
    intervals = [i for column in cells.values() for i in column]
    if not intervals:
        return ""
    measured = frame[[any(isinstance(value, Interval) for value in row) for row in frame.to_numpy()]]
    hardware = ", ".join(dict.fromkeys(measured["hardware"]))
    sampled = [i for i in intervals if i.n > i.rounds]  # others are one count a process, such as memory
    if not sampled:
        return f"{hardware}. One value in each process, {max(i.rounds for i in intervals)} at most."
    counts = sorted({i.n for i in sampled})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    scopes = " or ".join(sorted({i.scope for i in sampled}))
    versions = len(frozenset().union(*measured["codes"])) if "codes" in measured else 1
    mixed = f" Measured by {versions} versions of the code." if versions > 1 else ""
    restless = measured["restless"].astype(bool).sum() if "restless" in measured else 0
    marked = (
        f" {restless} of {len(measured)} in part on a restless machine, or in a series that changed."
        if restless
        else ""
    )
    what = "Ratio" if "ratio" in frame else "Median"
    return f"{hardware}. {what} and its 95% interval {scopes}; n = {many}.{mixed}{marked}"
