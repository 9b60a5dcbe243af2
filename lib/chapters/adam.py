"""Compare optimizer steps on different lists of parameters with published times."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.catalog import CATALOG
from lib.cost import flops
from lib.records.frame import Frame
from lib.report import claims, compare, hypotheses, plots, roofline, sentences, tables, tidy
from lib.report.claims import MORE, Found
from lib.report.hypotheses import Hypothesis
from lib.report.plots import INK, QUIET, STYLE
from lib.report.quantities import Quantity
from lib.report.sentences import Statement
from lib.stats import comparisons, digits
from lib.stats.comparisons import FASTER
from lib.stats.intervals import Interval

EQUAL, COMPILED = "equal", ["compiled_single_tensor", "compiled_foreach"]
LISTS = {"shapes": EQUAL, "amsgrad": True, "cold": False}  # lists of equal parameters, with amsgrad and warm caches
CASE = "for {num_params} × {param_size:,} elements"
EAGER = ["single_tensor", "foreach", "fused"]
REFERENCE = CATALOG["adam"].baseline["variant"]
MISSING = sentences.missing("Optimizer steps were not measured here.")
POINT = ["num_params", "param_size"]  # the fields that define a list of equal parameters


def without_zeros(table: pd.DataFrame) -> pd.DataFrame:
    """Blank the number and size of parameters where the list is a model's own."""
    return table.assign(**{name: table[name].astype("Int64").mask(table["shapes"] != EQUAL) for name in POINT})


def corners(table: pd.DataFrame) -> pd.DataFrame:
    """Select the corners of the grid, and every list of a model's own parameters."""
    own, kept = table["shapes"] != EQUAL, table["shapes"] == EQUAL
    for name in POINT:
        sizes = table.loc[~own, name]
        kept &= table[name].isin([sizes.min(), sizes.max()])
    return table[kept | own]


def wins(records: pd.DataFrame) -> pd.DataFrame:
    """Find the fastest variants at each point, one row per point.

    Columns: those of `POINT`; the time of each variant with its interval; `best`, the fastest variant and those not
    shown to be slower; `relative`, the least time divided by the reference's; and `hardware, codes, noisy` as in
    `tidy.medians`."""
    table, rows = tidy.medians(records, "total_ms"), []
    for point, cells in table[table["total_ms"].notna()].groupby(POINT, sort=False):
        at = dict(zip(POINT, point, strict=True))
        first, *others = compare.ranked(tidy.select(records, **at))
        to = partial(compare.comparison, tidy.select(records, **at), "total_ms", {"variant": first})
        compared = {name: found for name in others if (found := to({"variant": name}))}
        verdicts = dict(zip(compared, comparisons.verdicts(list(compared.values())), strict=True))
        reference, disturbed = to({"variant": REFERENCE}), cells["noisy"].astype(bool).sum()
        rows.append({
            **at, **dict(zip(cells["variant"], cells["total_ms"], strict=True)),
            "best": [first, *(name for name in others if verdicts.get(name) != FASTER)],
            "relative": reference.ratio.value if reference else None,
            "hardware": cells["hardware"].iloc[0], "codes": frozenset().union(*cells["codes"]),
            "noisy": f"{disturbed} of {len(cells)} cells" if disturbed else "",
        })  # fmt: skip
    variants = sorted(set(table["variant"]), key=tidy.ORDER.index)
    frame = Frame(rows, columns=[*POINT, *variants, "best", "relative", "hardware", "codes", "noisy"])
    found = tidy.ordered(frame.astype({name: table[name].dtype for name in POINT}), " ".join(POINT))
    return found.with_origin(records=sentences.names(records, {}))


def wins_table(wins: pd.DataFrame, caption: str) -> tables.Table:
    """Show the rows of `wins`, one column per variant, the best of each row in bold."""
    variants = [name for name in wins if name in tidy.ORDER]
    bold = {
        name: [
            tables.Bold(**vars(cell)) if name in best and isinstance(cell, Interval) else cell
            for best, cell in zip(wins["best"], wins[name], strict=True)
        ]
        for name in variants
    }
    return tables.show(wins.assign(**bold), " ".join([*POINT, *variants]), caption)


def wins_map(ax: Axes, wins: pd.DataFrame) -> Axes:
    """Draw `wins` as a map of each point's best variant, darker where it gains more."""
    cells = wins[wins["relative"].notna()]
    if cells.empty:
        return ax
    labels = []
    for (best, *more), relative in zip(cells["best"], cells["relative"], strict=True):
        name = best.replace("_", "\n", 1) + (f" and {len(more)} more" if more else "")
        labels.append(f"{name}\n{digits.number(relative)}")
    return plots.heatmap(ax, cells.assign(label=labels), *POINT, "relative", vmin=0, vmax=1, cmap="cividis")


def tally(wins: pd.DataFrame) -> Statement:
    """Count the lists at which each variant alone is fastest, of those with several variants."""
    wins = wins[wins.reindex(columns=list(CATALOG["adam"].variants)).notna().sum(axis=1) > 1]
    if wins.empty:
        return MISSING
    alone = Counter(best[0] for best in wins["best"] if len(best) == 1)
    shared, count = len(wins) - alone.total(), digits.count(len(wins))
    parts = [f"{name} is fastest on {'all of them' if won == len(wins) else won}" for name, won in alone.most_common()]
    parts += [f"on {shared} several tie"] if shared else []
    text = f"Over {count} lists of equally large parameters, {sentences.listed(parts)}."
    evidence = "At each list the variant with the least time against each other one."
    return Statement(text, "measured", evidence, wins.records)


def headline_case(adam: pd.DataFrame) -> dict:
    """Return a model's own parameters, or the largest list measured, as a case without variant."""
    own = adam[adam["shapes"] != EQUAL] if len(adam) else adam
    found = tidy.largest(own if (tidy.column(own, "status") == "ok").any() else adam, "elements", cold=False)
    return {name: of for name, of in found.items() if name != "variant"}


def _named(case: Mapping) -> str:
    """Name the parameters of a case."""
    equal = case["shapes"] == EQUAL
    return f"{case['num_params']} × {case['param_size']:,} elements" if equal else f"{case['shapes']}'s parameters"


def _times(adam: pd.DataFrame, case: Mapping) -> dict[str, Quantity]:
    """Return the time of each eager variant of a case."""
    cases = {name: {**case, "variant": name} for name in EAGER} if case["shapes"] else {}
    found = {name: sentences.number(adam, "total_ms", of) for name, of in cases.items()}
    return {name: took for name, took in found.items() if took}


@sentences.of_records("variant")
def answer(adam: pd.DataFrame, case: Mapping) -> Statement:
    """State the times of fused and single_tensor AdamW on a case's parameters, and their ratio."""
    times, (of, to) = _times(adam, case), ({**case, "variant": name} for name in ("fused", REFERENCE))
    found = sentences.factor(adam, "total_ms", of, to) if {"fused", REFERENCE} <= times.keys() else None
    if not found:
        return MISSING
    ratio, rests_on = found
    numbers = times["fused"], times[REFERENCE], ratio
    said = f"fused is {ratio} faster" if ratio.verdict == FASTER else f"the ratio is {ratio} ({ratio.verdict})"
    text = f"Fused AdamW takes {numbers[0]} ms for {_named(case)}, {REFERENCE} {numbers[1]}: {said}."
    if near := hypotheses.median(adam, "bandwidth_percent", of):
        text += (
            " Moving its bytes at the memory ceiling, the best of copies, sums and fused AdamW itself, takes "
            f"{digits.brief(near)}% of fused's time."
        )
    return Statement(text, ratio.verdict, f"{sentences.fields(case)}; {rests_on}.", (), numbers)


def first_line(adam: pd.DataFrame) -> Statement:
    """State the times of the eager variants on a model's parameters, in a line."""
    case = headline_case(adam)
    times = _times(adam, case)
    if not times:
        return MISSING
    first, *others = (f"{name} {took}" for name, took in times.items())
    text = f"{_named(case)}: {', '.join([f'{first} ms', *others])}."
    used = sentences.names(adam, *({**case, "variant": name} for name in times))
    return Statement(text, "measured", f"total_ms, {sentences.fields(case)}.", used, tuple(times.values()))


@sentences.of_records("variant")
def compiling(adam: pd.DataFrame, case: Mapping) -> Statement:
    """State what compiling single_tensor gains, and how long its first step takes."""
    of, to = ({**case, "variant": name} for name in (COMPILED[0], REFERENCE))
    found = sentences.factor(adam, "total_ms", of, to) if case["shapes"] else None
    first = sentences.number(adam, "first_iteration_s", of) if found else None
    if not first:
        return MISSING
    ratio, rests_on = found
    faster = ratio.verdict == FASTER
    gain = f"makes it {ratio} faster" if faster else f"makes it take {ratio} as long ({ratio.verdict})"
    text = f"Compiling {REFERENCE} {gain} for {_named(case)}; its first step takes {first} s."
    return Statement(text, ratio.verdict, f"{rests_on}; the first step where nothing is compiled.", (), (ratio, first))


@mpl.rc_context(STYLE)
def bars(ax: Axes, table: pd.DataFrame, least_ms: float) -> Axes:
    """Draw a bar for each variant's time, and one for that of the bytes at memory's ceiling."""
    rows = list(zip(table["variant"], table["total_ms"], map(plots.COLOURS.get, table["variant"]), strict=True))
    known = bool(rows) and not math.isnan(least_ms)
    rows += [("bytes at the ceiling", tables.as_interval(least_ms), QUIET)] * known
    for name, took, colour in rows:
        faint = {"color": (colour, 0.45 if colour in (INK, QUIET) else 1)}
        ax.barh(name, took.value, xerr=plots.errors([took]), ecolor=INK, capsize=3, **plots.bar(colour) | faint)
        plots.beside(ax, took.high if took.known else took.value, name, f"{digits.value(took)} ms")
    ax.invert_yaxis()
    ax.set(xlabel="time of a step, ms", xlim=(0, 1.3 * max((took.value for _, took, _ in rows), default=1)))
    ax.grid(axis="x")
    return ax


def theory(adam: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict each variant's time, the cost of amsgrad and growth with the elements."""
    _, speed = roofline.limit_intervals(ceilings)
    most = tidy.largest(adam, "elements", **LISTS)
    at = sentences.at(", {num_params} × {param_size:,}", most)
    least = speed.inverse.scaled(1e3 * hypotheses.value(adam, "moved_bytes", most))
    bytes_at_ceiling = "36 bytes an element at memory's ceiling"
    rows = [
        (f"{name}, ms{at}", bytes_at_ceiling, least, hypotheses.median(adam, "total_ms", {**most, "variant": name}))
        for name in EAGER
    ]
    plain = tidy.largest(tidy.select(adam, amsgrad=False), "elements", shapes=EQUAL, variant="fused")
    amsgrad = hypotheses.ratio(adam, "total_ms", {**plain, "amsgrad": True}, plain)
    more_bytes = flops.adam_bytes(1, True) / flops.adam_bytes(1, False)
    rows.append(("fused, amsgrad to none", "36 bytes to 28", more_bytes, amsgrad))
    grows = hypotheses.exponent(adam, "total_ms", "param_size", {**most, "variant": "fused"})
    rows.append((f"exponent of fused's time in the elements of each{at}", "bytes, one after the other", 1.0, grows))
    return [Hypothesis(*row) for row in rows]


def beside_nearest(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return medians for a model's parameters and for the most similar equal ones.

    The most similar list is closest in `elements`, an added column, and has the same amsgrad and cache state."""
    timed = tidy.select(records, status="ok")
    equal = timed["shapes"] == EQUAL
    kept = ~equal
    for (amsgrad, cold), own in timed[~equal].groupby(["amsgrad", "cold"]):
        alike = tidy.select(timed[equal], amsgrad=amsgrad, cold=cold)
        if len(alike):
            apart = np.log(alike["elements"] / own["elements"].iloc[0]).abs()
            kept |= timed.index.isin(tidy.select(alike, **alike.loc[apart.idxmin(), POINT]).index)
    table = tidy.medians(timed[kept], *metrics, "elements").astype({"elements": int})
    return tidy.ordered(without_zeros(table), "amsgrad cold variant shapes")


def compiled_against(data: claims.Data, rivals: Sequence[str], within: claims.Limits, **where) -> list[Found]:
    """Find compiled single-tensor times relative to `rivals`, in the cases with these values of fields."""
    records, of, found = claims.rows(data, "adam", **LISTS), {"variant": COMPILED[0]}, []
    for rival in rivals:
        label = f"times {rival} {CASE}"
        found += claims.ratios(records, "total_ms", of, {"variant": rival}, within, label, **where)
    return found


def many_parameters(data: claims.Data) -> list[Found]:
    """Find how compiled to eager changes from at most 8 parameters to the most."""
    records, found = claims.rows(data, "adam", **LISTS), []
    cases = claims.cases(records, variant=COMPILED[0])
    for size in sorted({case["param_size"] for case in cases}):
        lists = {case["num_params"]: case for case in cases if case["param_size"] == size}
        few, most = max((count for count in lists if count <= 8), default=None), max(lists)
        if few is not None and most > 16:
            pairs = [(lists[count], {**lists[count], "variant": REFERENCE}) for count in (most, few)]
            found += claims.contrast(records, "total_ms", *pairs, MORE, f"times the ratio for {few}, {CASE}")
    return found
