"""Compare self-attention and its projections with theory and a public sweep."""

import math

import pandas as pd

from lib.cost import flops
from lib.report import hypotheses, sentences, tidy
from lib.report.hypotheses import LEAST, Hypothesis
from lib.report.published import PRECISION, published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import digits
from lib.stats.intervals import Interval

MIB = 2**20
CLOSE_MIB = 0.01  # byte counts this close are called equal, since one of them is rounded
KEYS = ["d_model", "context_length", "batch_size", "precision", "compiled"]


def total_flops(row: pd.Series) -> int:
    """Return FLOPs of both passes: the projections, and attention over all scores."""
    batch, context, width = (row[name] for name in ("batch_size", "context_length", "d_model"))
    return 3 * (8 * batch * context * width**2 + flops.attention_flops(batch, context, width))


def with_least_time(records: pd.DataFrame, peaks: dict[str, float], speed: float) -> pd.DataFrame:
    """Add `least_ms`, `least_percent` and `projections_percent` to the records.

    `least_ms` is the longer of two times of forward and backward: their FLOPs at the precision's ceiling, and their
    least bytes at memory's. `least_percent` is its share of the measured time. `projections_percent` is the
    projections' share of the FLOPs."""
    known = records.assign(limit=records["precision"].map(peaks).astype(float), speed=speed)

    def least(_, forward_flops, forward_bytes, backward_bytes, limit, speed):
        return 1e3 * max(3 * forward_flops / limit, (forward_bytes + backward_bytes) / speed)

    def share(_, projections, everything):
        return 100 * projections / everything

    amounts = ("forward_flops", "forward_bytes", "backward_bytes", "limit", "speed")
    known = tidy.derive(known, "least_ms", least, "total_ms", *amounts)
    known = tidy.with_quotient(known, "least_percent", "least_ms", "total_ms", scale=100)
    return tidy.derive(known, "projections_percent", share, "total_ms", "projection_flops", "forward_flops")


def published() -> pd.DataFrame:
    """Return the published sweep, one row per case.

    `model_mib`, `forward_end_mib` and `backward_end_mib` are the memory in use before the passes and after each. They
    are missing where the device does not count memory. A case is left out if the standard deviation of its forward
    pass exceeds half the mean. So is every backward time, since it was found by subtraction."""
    table = published_table("attention_module")
    table = table[~(table["forward_std_ms"] > table["forward_ms"] / 2)].copy()
    table["precision"] = table["dtype"].map(PRECISION)
    ends = {"model": "model_mib", "after_forward": "forward_end_mib", "after_backward": "backward_end_mib"}
    names = {f"memory_{when}_mib": name for when, name in ends.items()}
    table = table.rename(columns={"forward_backward_ms": "total_ms"} | names)
    table[[*ends.values()]] = table[[*ends.values()]].replace(0.0, math.nan)
    return table[[*KEYS, "source", "hardware", "forward_ms", "total_ms", *ends.values()]]


def published_memory() -> pd.DataFrame:
    """Split the memory columns of the published sweep, one row per case.

    `weights_mib` and `input_mib` follow from theory, and `rest_mib` is what else the first column holds. `kept_mib`
    and `gradients_mib` are added to that column by the end of the forward and the backward pass. `squares` counts
    the kept squares of one head's scores, beyond four arrays of the input's shape."""
    table = published()
    table = table[table["model_mib"].notna()].reset_index(drop=True)
    rows = table["batch_size"] * table["context_length"]
    weights, arrays = 16 * table["d_model"] ** 2 / MIB, 4 * rows * table["d_model"] / MIB
    squares = 4 * rows * table["context_length"] / MIB
    kept = table["forward_end_mib"] - table["model_mib"]
    return table.assign(
        weights_mib=weights,
        input_mib=arrays,
        rest_mib=table["model_mib"] - weights - arrays,
        kept_mib=kept,
        gradients_mib=table["backward_end_mib"] - table["model_mib"],
        squares=(kept - 4 * arrays) / squares,
    )


def exact(table: pd.DataFrame) -> pd.DataFrame:
    """Mark the memory columns as exact, so that they are shown with more digits."""
    names = [name for name in table if name.endswith("_mib")]
    return table.assign(**{name: [Interval(mib, mib, mib, 0, 0) for mib in table[name]] for name in names})


def published_accounts() -> Statement:
    """State what the memory columns of the published sweep consist of."""
    table = published_memory()
    rest = table["rest_mib"].round(2).mode().iloc[0]
    same = table[(table["rest_mib"] - rest).abs() < CLOSE_MIB]  # leaves out the first case of each process
    gradients = ((same["gradients_mib"] - same["weights_mib"]).abs() < CLOSE_MIB).sum()
    longest = same[same["context_length"] == same["context_length"].max()]["squares"]
    cases = ["d_model", "context_length", "compiled"]
    pivot = same.pivot_table(index=cases, columns="precision", values="forward_end_mib")
    narrow = (pivot["bf16"] == pivot["fp32"])[pivot["bf16"].notna()]
    alike, all_, with_gradients = map(digits.count, (len(same), len(table), gradients))
    squares = digits.number(longest.median())
    text = (
        f"In {alike} of {all_} cases the published first column is the weights, the input and a constant "
        f"{digits.number(rest, 0)} MiB, such as a workspace. By its end the backward pass has added the gradients, "
        f"as large as the weights, in {with_gradients} of {alike}. The forward pass adds four arrays of the input's "
        f"shape. At the longest context it also adds {squares} score matrices of one head, so this module had no more "
        f"than two heads. Its rows in bf16 have the bytes of those in fp32 in "
        f"{digits.count(narrow.sum())} of {digits.count(len(narrow))} cases, although autocast keeps narrower arrays."
    )
    return Statement(text, "published", f"weights 16 C² bytes, input 4 B T C bytes; equal within {CLOSE_MIB} MiB.")


@of_records()
def workload(records: pd.DataFrame) -> Statement:
    """State what share of the FLOPs the projections take."""
    measured = tidy.select(records, status="ok")
    if measured.empty:
        return Statement("No module was measured here.", NO_DATA, "projection_flops")
    shares = 100 * measured["projection_flops"] / measured["forward_flops"]
    ends = "so this is mostly another workload" if shares.min() > 50 else "by the size of the case"
    text = (
        f"The projections take {digits.number(shares.min())}% to {digits.number(shares.max())}% of the FLOPs of the "
        f"modules measured here, {ends}; attention alone has no projections."
    )
    return Statement(text, "derived", "projection_flops over forward_flops, the least and the most of all cases.")


def theory(modules: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict the module's growth, least time and memory."""
    modules = with_least_time(modules, *tidy.limits(ceilings))
    widest = tidy.largest(modules, "projection_flops", precision="fp32", compiled=False)
    at = sentences.at(", C = {d_model:,}, T = {context_length:,}", widest)
    found = []
    for axis, letter in (("context_length", "T"), ("d_model", "C")):
        low, high = hypotheses.ends(modules, axis, widest)
        fold = hypotheses.value(modules, "forward_flops", high) / hypotheses.value(modules, "forward_flops", low)
        by_flops = math.log(fold) / math.log((high[axis] or math.nan) / (low[axis] or math.nan))
        measured = hypotheses.exponent(modules, "total_ms", axis, low, high)
        what = f"exponent of the time in {letter}{at}"
        found.append(Hypothesis(what, "FLOPs, 8BTC² + 4BT²C", by_flops, measured))
    brief, longer = hypotheses.ends(modules, "context_length", widest, longest=False)
    steps = f", C = {widest['d_model']:,}, T = {brief['context_length']} to {longer['context_length']}" if at else ""
    names = ("d_model", "context_length", "batch_size", "num_heads")
    width, context, batch, heads = (widest[name] or math.nan for name in names)
    weights, angles = hypotheses.value(modules, "weights_bytes", widest), 4 * context * width / heads
    arrays = 4 * 4 * batch * context * width
    return [
        *found,
        Hypothesis(
            f"growth of the time{steps}", "the longer of FLOPs and bytes at the ceilings",
            hypotheses.value(modules, "least_ms", longer) / hypotheses.value(modules, "least_ms", brief),
            hypotheses.ratio(modules, "total_ms", longer, brief),
        ),
        Hypothesis(
            f"module, ms{at}", "the longer of FLOPs and bytes at the ceilings",
            hypotheses.value(modules, "least_ms", widest), hypotheses.median(modules, "total_ms", widest), LEAST,
        ),
        Hypothesis(
            f"alive after the backward pass, MiB{at}", "32C² bytes, the angles' tables, four arrays of BTC",
            (2 * weights + angles + arrays) / MIB,
            hypotheses.counted(hypotheses.value(modules, "backward_end_mib", widest)),
        ),
    ]  # fmt: skip


@of_records()
def memory_bound(records: pd.DataFrame, peaks: dict[str, float], speed: float) -> Statement:
    """State how many tokens a batch needs so that moving weights is not the limit."""
    names = [name for name in tidy.ORDER if name in set(records["precision"]) & peaks.keys()]
    if not names or math.isnan(speed):
        return Statement("The ceilings were not measured here.", NO_DATA, "ceilings of products and of memory")
    tokens = {name: 2 * peaks[name] / speed for name in names}  # 24 C² B T FLOPs against 48 C² bytes
    batches = records["batch_size"] * records["context_length"]
    few = {name: batches[records["precision"] == name] < most for name, most in tokens.items()}
    said = [
        f"{digits.number(most)} tokens a batch in {name} ({digits.count(few[name].sum())} of "
        f"{digits.count(len(few[name]))} records have so few)"
        for name, most in tokens.items()
    ]
    text = f"By the ceilings measured here, memory is the limit below {' and below '.join(said)}."
    return Statement(text, "measured", "2 x FLOP/s over bytes/s: 24 C² B T FLOPs, 48 C² bytes.")
