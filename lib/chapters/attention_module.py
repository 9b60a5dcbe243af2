"""Compare self-attention and its projections with theory and a public sweep."""

import math
from collections.abc import Mapping

import pandas as pd

from lib.cost import flops
from lib.report import hypotheses, roofline, sentences, tidy
from lib.report.hypotheses import LEAST, Hypothesis
from lib.report.published import PRECISION, published_table
from lib.report.sentences import Statement, of_records
from lib.stats import digits
from lib.stats.intervals import Interval

MIB = 2**20
KEYS = ["d_model", "context_length", "batch_size", "precision", "compiled"]


def total_flops(row: pd.Series) -> int:
    """Return FLOPs of both passes: the projections, and attention over the scores that a query may see."""
    batch, context, width = (row[name] for name in ("batch_size", "context_length", "d_model"))
    return 3 * (8 * batch * context * width**2 + flops.attention_flops(batch, context, width, causal=True))


def with_least_time(records: pd.DataFrame, peaks: Mapping[str, Interval], speed: Interval) -> pd.DataFrame:
    """Add `least_ms`, `least_percent` and `projections_percent` to the records.

    `least_ms` is the longer of two times of forward and backward: their FLOPs at the precision's ceiling, and their
    least bytes at memory's. `least_percent` is its share of the measured time. Medians of both include the ceiling's
    error. `projections_percent` is the projections' share of the FLOPs."""
    amounts = (
        tidy.column(records, name).astype(float) for name in ("forward_flops", "forward_bytes", "backward_bytes")
    )
    least = [
        roofline.least_ms(3 * operations, forward + backward, peaks.get(precision, roofline.UNKNOWN), speed)
        for precision, operations, forward, backward in zip(records["precision"], *amounts, strict=True)
    ]
    known = roofline.with_least(records, [ms.value for ms in least], [ms.log_error for ms in least])
    parts = ("total_ms", "projection_flops", "forward_flops")
    return tidy.derive(known, "projections_percent", lambda _, own, every: 100 * own / every, *parts)


def published() -> pd.DataFrame:
    """Return the published sweep, one row per case.

    A case is left out if the standard deviation of its forward pass exceeds half the mean. So is every backward time,
    since it was found by subtraction."""
    table = published_table("attention_module")
    table = table[~(table["forward_std_ms"] > table["forward_ms"] / 2)].copy()
    table["precision"] = table["dtype"].map(PRECISION)
    table = table.rename(columns={"forward_backward_ms": "total_ms"})
    return table[[*KEYS, "source", "hardware", "forward_ms", "total_ms"]]


@of_records()
def workload(records: pd.DataFrame) -> Statement:
    """State what share of the FLOPs the projections take."""
    measured = tidy.select(records, status="ok")
    if measured.empty:
        return sentences.missing("No module was measured here.")
    shares = 100 * measured["projection_flops"] / measured["forward_flops"]
    text = (
        f"The four projections do {digits.number(shares.min())}% to {digits.number(shares.max())}% of the arithmetic "
        "of self-attention at the sizes measured here."
    )
    return Statement(text, "derived", "projection_flops over forward_flops, the least and the most of all cases.")


def theory(modules: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict the module's growth, least time and memory."""
    modules = with_least_time(modules, *roofline.limit_intervals(ceilings))
    widest = tidy.largest(modules, "projection_flops", precision="fp32", compiled=False)
    at = sentences.at(", C = {d_model:,}, T = {context_length:,}", widest)
    names = ("d_model", "context_length", "batch_size", "num_heads")
    width, context, batch, heads = (widest[name] or math.nan for name in names)
    weights, angles = hypotheses.value(modules, "weights_bytes", widest), 4 * context * width / heads
    arrays = 4 * 4 * batch * context * width
    alive = hypotheses.counted(hypotheses.value(modules, "backward_end_mib", widest))
    brief, longer = hypotheses.ends(modules, "context_length", widest, longest=False)
    sooner, later = (hypotheses.value(modules, "least_ms", case) for case in (brief, longer))
    took, grew = hypotheses.median(modules, "total_ms", widest), hypotheses.ratio(modules, "total_ms", longer, brief)
    steps = f", C = {widest['d_model']:,}, T = {brief['context_length']} to {longer['context_length']}" if at else ""
    rows = []
    for axis, letter in (("context_length", "T"), ("d_model", "C")):
        by_flops, measured = (
            hypotheses.exponent(modules, name, axis, widest) for name in ("forward_flops", "total_ms")
        )
        predicted = by_flops.value if by_flops else math.nan
        rows.append((f"exponent of the time in {letter}{at}", "FLOPs, 8BTC² + 4BT²C", predicted, measured))
    how, parts = "the longer of FLOPs and bytes at the ceilings", "32C² bytes, the angles' tables, four arrays of BTC"
    rows += [
        (f"growth of the time{steps}", how, later / sooner, grew),
        (f"module, ms{at}", how, hypotheses.least(modules, widest), took, LEAST),
        (f"alive after the backward pass, MiB{at}", parts, (2 * weights + angles + arrays) / MIB, alive),
    ]
    return [Hypothesis(*row) for row in rows]
