"""Turns records into tidy tables: one row a case, with medians and their intervals, rates, shares and ratios;
knows nothing of how a table looks.
"""

from collections.abc import Mapping

import pandas as pd

from lib import stats
from lib.stats import Interval

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


def in_order(column: pd.Series) -> pd.Series:
    """A sort key: sizes, precisions and variants in the order of `ORDER`; numbers by value."""
    known = set(column.map(type)) == {str}
    return column.map(lambda value: ORDER.index(value) if value in ORDER else len(ORDER)) if known else column


def with_quotient(records: pd.DataFrame, name: str, above: str, below: str, scale: float = 1) -> pd.DataFrame:
    """The records with one metric more: sample by sample, `scale` times one metric over another of the same
    iteration."""
    return _with(
        records, name,
        [
            [scale * x / y for x, y in zip(a, b, strict=True)] if isinstance(a, list) and isinstance(b, list) else None
            for a, b in zip(records[above], records[below], strict=True)
        ],
    )  # fmt: skip


def with_sum(records: pd.DataFrame, name: str, first: str, second: str) -> pd.DataFrame:
    """The records with one metric more: sample by sample, the sum of two of the same iteration."""
    sums = [
        [x + y for x, y in zip(a, b, strict=True)] if isinstance(a, list) and isinstance(b, list) else None
        for a, b in zip(records[first], records[second], strict=True)
    ]
    return _with(records, name, sums)


def with_cold_start(records: pd.DataFrame) -> pd.DataFrame:
    """The records with `first_iteration_s`: that of a process that found no graph of the case compiled before."""
    cold = [
        [ms / 1e3 for ms in first] if isinstance(first, list) and hits == 0 else None
        for first, hits in zip(records["first_iteration_ms"], records["compile_cache_hits"], strict=True)
    ]
    return _with(records, "first_iteration_s", cold)


def with_rate(records: pd.DataFrame, name: str, amount: pd.Series, metric: str) -> pd.DataFrame:
    """The records with one metric more: the amount of each a second, for each sample of `metric` in ms."""
    rates = [
        [total * 1e3 / ms for ms in times] if isinstance(times, list) and pd.notna(total) else None
        for total, times in zip(amount, records[metric], strict=True)
    ]
    return _with(records, name, rates)


def _with(records: pd.DataFrame, name: str, values: list) -> pd.DataFrame:
    """The records with a column more, and still knowing which of their columns are fields of the case."""
    wider = records.assign(**{name: pd.Series(values, index=records.index, dtype=object)})
    wider.attrs = records.attrs
    return wider


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
    """The fields of the case with times for which the column `by` is largest, of those selected; each field
    None where there is none."""
    fields, chosen = records.attrs["fields"], select(records, status="ok", **where)
    return dict.fromkeys(fields) if chosen.empty else chosen.loc[chosen[by].idxmax(), fields].to_dict()


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


def ordered(frame: pd.DataFrame, columns: str) -> pd.DataFrame:
    """The rows by the columns named, sizes and variants in their order of introduction."""
    return frame.sort_values(columns.split(), key=in_order, ignore_index=True)
