"""Turns records into tables: medians with their intervals, ratios, and the HTML to read them; measures nothing."""

import html
import math
from collections.abc import Mapping

import pandas as pd

from lib import stats
from lib.stats import Interval

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point, in tabular numerals
MISSING = "–"
STATUS = {
    "ok": "",
    "oom": "ran out of memory",
    "too_large": "predicted not to fit",
    "timeout": "took longer than its time limit",
    "crashed": "its process died",
}


def samples(records: pd.DataFrame, metric: str) -> dict[int, list[float]]:
    """The samples of a metric in these records of one case, by round."""
    if metric not in records:
        return {}
    rows = records.loc[records[metric].map(lambda value: isinstance(value, list) and len(value) > 0)]
    return dict(zip(rows["round"], rows[metric], strict=True))


def medians(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """One row a case: the fields of the case, `machine, hardware, status` (of the last round), `why` it has no
    times, and for each metric a column of the same name holding a `stats.Interval`, or None."""
    rows = []
    fields = records.attrs.get("fields", [])
    for key, group in records.groupby([*fields, "machine"], sort=False) if len(records) else ():
        last = group.sort_values("round").iloc[-1]
        row = dict(zip([*fields, "machine"], key, strict=True))
        row |= {"hardware": last["hardware"], "status": last["status"], "why": _why(last)}
        for metric in metrics:
            by_round = samples(group, metric)
            row[metric] = stats.median(list(by_round.values())) if by_round else None
        rows.append(row)
    frame = pd.DataFrame(rows, columns=[*fields, "machine", "hardware", "status", "why", *metrics])
    return frame.sort_values(fields, key=in_order, ignore_index=True) if fields else frame


def _why(record: pd.Series) -> str:
    """Why a record holds no times, with the numbers that it gives."""
    text = STATUS[record["status"]]
    if record["status"] == "too_large":
        needed, available = (record[name] / 2**30 for name in ("predicted_bytes", "available_bytes"))
        text += f" ({needed:,.1f} GiB of {available:,.1f})"
    return text


ORDER = (  # in which sizes, precisions and variants are introduced
    *("tiny", "small", "medium", "large", "xl", "2.7B"),
    *("fp32", "tf32", "bf16", "fp16"),
    *("naive", "tiled", "sdpa", "compiled"),
    *("single_tensor", "foreach", "fused", "compiled_single_tensor", "compiled_foreach"),
)
HEADINGS = {  # of columns and axes: one wording through the whole report, the unit at its end
    "amsgrad": "amsgrad",
    "backward_ms": "backward, ms",
    "backward_peak_mib": "peak backward, MiB",
    "bandwidth_percent": "of a copy's rate, %",
    "batch_size": "batch",
    "causal": "causal",
    "compiled": "compiled",
    "context_length": "context, tokens",
    "d_head": "head size",
    "d_model": "d_model",
    "first_iteration_ms": "first iteration, ms",
    "forward_backward_ms": "forward and backward, ms",
    "forward_end_mib": "kept for backward, MiB",
    "forward_ms": "forward, ms",
    "forward_peak_mib": "peak forward, MiB",
    "gigabytes": "GB/s",
    "gradient_error": "error of the gradients",
    "gflops": "GFLOP/s",
    "hardware": "hardware",
    "logits_error": "error of the logits",
    "mfu_percent": "MFU, %",
    "num_params": "parameters",
    "operation": "operation",
    "optimizer_ms": "optimizer, ms",
    "optimizer_peak_mib": "peak optimizer, MiB",
    "out_error": "error of the output",
    "param_size": "elements of each",
    "peak_mib": "peak, MiB",
    "precision": "precision",
    "rows": "rows",
    "seq_len": "tokens",
    "size": "size",
    "source": "source",
    "tokens_per_s": "tokens/s",
    "total_ms": "whole, ms",
    "update_error": "error of the update",
    "variant": "variant",
    "why": "not measured",
}


def in_order(column: pd.Series) -> pd.Series:
    """A sort key: sizes, precisions and variants in the order of `ORDER`; numbers by value."""
    known = set(column.map(type)) == {str}
    return column.map(lambda value: ORDER.index(value) if value in ORDER else len(ORDER)) if known else column


def with_quotient(records: pd.DataFrame, name: str, above: str, below: str) -> pd.DataFrame:
    """The records with one metric more: sample by sample, one metric over another of the same iteration."""
    both = records.copy()
    both.attrs = records.attrs
    both[name] = [
        [x / y for x, y in zip(a, b, strict=True)] if isinstance(a, list) and isinstance(b, list) else None
        for a, b in zip(records[above], records[below], strict=True)
    ]
    return both


def with_rate(records: pd.DataFrame, name: str, amount: pd.Series, metric: str) -> pd.DataFrame:
    """The records with one metric more: the amount of each a second, for each sample of `metric` in ms."""
    both = records.copy()
    both.attrs = records.attrs
    both[name] = [
        [total * 1e3 / ms for ms in times] if isinstance(times, list) else None
        for total, times in zip(amount, records[metric], strict=True)
    ]
    return both


def ceiling(ceilings: pd.DataFrame, operation: str, fact: str) -> dict[str, float]:
    """The most that an operation reached on this machine over all its sizes, by precision: `fact` (flops or
    moved_bytes) a second at the median time."""
    chosen = select(ceilings, operation=operation, status="ok")
    table = medians(with_rate(chosen, "rate", chosen[fact], "total_ms"), "rate") if len(chosen) else ()
    best: dict[str, float] = {}
    for precision, rate in zip(table["precision"], table["rate"], strict=True) if len(table) else ():
        best[precision] = max(rate.value, best.get(precision, 0))
    return best


def largest(records: pd.DataFrame, by: str, **where) -> dict:
    """The fields of the case with times for which the column `by` is largest, of those selected; empty where
    there is none."""
    chosen = select(records, status="ok", **where) if len(records) else records
    return {} if chosen.empty else chosen.loc[chosen[by].idxmax(), records.attrs["fields"]].to_dict()


def select(records: pd.DataFrame, **where) -> pd.DataFrame:
    """The records whose columns have these values; a list admits any of its values."""
    kept = pd.Series(True, index=records.index)
    for name, value in where.items():
        admitted = value if isinstance(value, list) else [value]
        kept &= records[name].isin(admitted) if name in records else False
    chosen = records[kept]
    chosen.attrs = records.attrs
    return chosen


def ratio(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> Interval | None:
    """The ratio of the medians of two cases, each picked by the values of its fields; None without data."""
    above, below = samples(select(records, **of), metric), samples(select(records, **to), metric)
    return stats.ratio(above, below) if above.keys() & below.keys() else None


def ratios(records: pd.DataFrame, metric: str, axis: str, reference, case: Mapping) -> pd.DataFrame:
    """The ratio of each value of the field `axis` to its `reference`, in an otherwise equal `case`: columns
    `name` (the value), `ratio`, `hardware`."""
    rest = {name: value for name, value in case.items() if name != axis}
    chosen = select(records, **rest) if rest else records.iloc[:0]
    rows = [
        {"name": value, "ratio": ratio(chosen, metric, {axis: value}, {axis: reference})}
        for value in dict.fromkeys(chosen.get(axis, ()))
        if value != reference
    ]
    frame = pd.DataFrame(rows, columns=["name", "ratio"]).sort_values("name", key=in_order)
    return frame[frame["ratio"].notna()].assign(hardware=chosen["hardware"].iloc[0] if len(chosen) else "")


def as_shares(table: pd.DataFrame, parts: list[str], total: str) -> pd.DataFrame:
    """The table with the medians of its parts, and the total with its interval, in percent of the median of
    the total."""
    shares = table.copy()
    for part in parts:
        shares[part] = [
            Interval(100 * p.value / sum(row[q].value for q in parts), math.nan, math.nan, p.n, p.rounds)
            for p, (_, row) in zip(table[part], table.iterrows(), strict=True)
        ]
    shares[total] = [Interval(100, 100 * t.low / t.value, 100 * t.high / t.value, t.n, t.rounds) for t in table[total]]
    return shares


def number(value: float, uncertainty: float = math.nan) -> str:
    """The value with the digits that its uncertainty warrants, or three where none is known."""
    if value == 0:
        return "0"
    place = math.floor(math.log10(uncertainty)) if uncertainty > 0 else math.floor(math.log10(abs(value))) - 2
    place = min(place, math.floor(math.log10(abs(value))) - 1)  # never fewer than two
    return f"{round(value, -place):,.{max(0, -place)}f}"


def interval(of: Interval | None) -> str:
    """The value with its interval behind it, as plain text: 2.71 (2.66 to 2.75)."""
    if of is None:
        return MISSING
    if not of.known:
        return f"{number(of.value)} (too few samples for an interval)"
    width = (of.high - of.low) / 2
    return f"{number(of.value, width)} ({number(of.low, width)} to {number(of.high, width)})"


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
    if isinstance(value, Interval) or pd.isna(value):
        return value if isinstance(value, Interval) else None
    return Interval(value, math.nan, math.nan, 0, 0)


def _column(values: pd.Series) -> tuple[list[str], bool]:
    """The cells of a column as HTML, and whether they are numbers."""
    if any(isinstance(value, Interval) for value in values):
        shown = [_as_interval(value) for value in values]
        widths = [(i.high - i.low) / 2 if i and i.known else math.nan for i in shown]
        heads = aligned([number(i.value, w) if i else MISSING for i, w in zip(shown, widths, strict=True)])
        tails = [
            f"{number(i.low, w)}–{number(i.high, w)}" if i and i.known else ""
            for i, w in zip(shown, widths, strict=True)
        ]
        return [f"{h}<small>{t}</small>" for h, t in zip(heads, tails, strict=True)], True
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
        kinds = ["number" if is_number else "word" for _, is_number in cells]
        head = "".join(
            f'<th scope="col" class="{kind}">{html.escape(str(name))}</th>'
            for name, kind in zip(self.frame, kinds, strict=True)
        )
        rows = "".join(
            "<tr>" + "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
            for row in zip(*(texts for texts, _ in cells), strict=True)
        )
        note = f'<p class="note">{self.note}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption><b class="label">Table</b> {html.escape(self.caption)}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.caption, quote=True)}">'
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}</figure>"
        )


def show(frame: pd.DataFrame, columns: str, caption: str) -> Table:
    """The columns named in `columns`, with spaces between them, as a table under their headings: those that it
    has and that hold anything, `why` a row has no times if any has none, and a note of hardware, samples and
    rounds behind its intervals."""
    names = [name for name in [*columns.split(), "why"] if name in frame and frame[name].notna().any()]
    if "why" in names and not frame["why"].any():
        names.remove("why")
    return Table(frame[names].rename(columns=HEADINGS), caption, provenance(frame[[*names, "hardware"]]))


def provenance(frame: pd.DataFrame) -> str:
    """Hardware, number of samples and of processes behind the intervals of a table, for its note."""
    intervals = [value for name in frame for value in frame[name] if isinstance(value, Interval)]
    if not intervals:
        return ""
    own = frame[[any(isinstance(value, Interval) for value in row) for row in frame.to_numpy()]]
    hardware = ", ".join(dict.fromkeys(own["hardware"]))
    counts = sorted({i.n for i in intervals})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    scopes = " or ".join(sorted({i.scope for i in intervals}))
    return f"{html.escape(hardware)}. Median and its 95% interval {scopes}; n = {many}."
