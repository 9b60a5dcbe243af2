"""Compare optimizer steps on different lists of parameters with published times."""

import math
from collections import Counter
from collections.abc import Callable

import matplotlib as mpl
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from lib.catalog import CATALOG
from lib.cost import flops
from lib.report import claims, compare, hypotheses, sentences, tables, tidy
from lib.report.claims import MORE, Found
from lib.report.headings import heading
from lib.report.hypotheses import Hypothesis
from lib.report.plots import STYLE
from lib.report.sentences import NO_DATA, Statement
from lib.stats import digits
from lib.stats.comparisons import FASTER
from lib.stats.intervals import Interval

EQUAL, COMPILED = "equal", ["compiled_single_tensor", "compiled_foreach"]
LISTS = {"shapes": EQUAL, "amsgrad": True, "cold": False}  # lists of equal parameters, with amsgrad and warm caches
CASE = "for {num_params} × {param_size:,} elements"
REFERENCE = CATALOG["adam"].baseline["variant"]
POINT = ["num_params", "param_size"]  # the fields that define a list of equal parameters


def with_bytes(records: pd.DataFrame) -> pd.DataFrame:
    """Add `moved_mib`, which a step must move, and `per_element_ns` to the records."""
    wider = tidy.derive(records, "moved_mib", lambda moved, ms: moved / 2**20, "moved_bytes", "total_ms")
    return tidy.with_quotient(wider, "per_element_ns", "total_ms", "elements", scale=1e6)


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
        chosen = tidy.select(records, **at)
        first, *others = compare.ranked(chosen, "total_ms", "variant")
        pairs = {name: _compare_variants(chosen, first, name) for name in others}
        decided = compare.verdicts_of(pairs)
        tied = [name for name in others if decided.get(name) != FASTER]
        against = pairs.get(REFERENCE) or _compare_variants(chosen, first, REFERENCE)
        disturbed = cells["noisy"].astype(bool).sum()
        rows.append(
            at
            | dict(zip(cells["variant"], cells["total_ms"], strict=True))
            | {"best": [first, *tied], "hardware": cells["hardware"].iloc[0]}
            | {"relative": 1.0 if first == REFERENCE else against.ratio.value if against else None}
            | {"codes": frozenset().union(*cells["codes"])}
            | {"noisy": f"{disturbed} of {len(cells)} cells" if disturbed else ""}
        )
    variants = sorted(set(table["variant"]), key=tidy.ORDER.index)
    frame = pd.DataFrame(rows, columns=[*POINT, *variants, "best", "relative", "hardware", "codes", "noisy"])
    found = tidy.ordered(frame.astype({name: table[name].dtype for name in POINT}), " ".join(POINT))
    found.attrs["records"] = sentences.names(records, {})
    return found


def _compare_variants(records: pd.DataFrame, one: str, other: str):
    return compare.comparison(records, "total_ms", {"variant": one}, {"variant": other})


def wins_table(wins: pd.DataFrame, caption: str) -> tables.Table:
    """Show the rows of `wins`, one column per variant, the best of each row in bold."""
    variants = [name for name in wins if name in tidy.ORDER]
    shown = wins.copy()
    for name in variants:
        shown[name] = [
            tables.Bold(**vars(cell)) if name in best and isinstance(cell, Interval) else cell
            for best, cell in zip(wins["best"], wins[name], strict=True)
        ]
    return tables.show(shown, " ".join([*POINT, *variants]), caption)


def wins_map(ax: Axes, wins: pd.DataFrame) -> Axes:
    """Draw `wins` as a map of each point's best variant, darker where it gains more."""
    cells = wins[wins["relative"].notna()]
    if cells.empty:
        return ax
    labels = [
        f"{best[0].replace('_', chr(10), 1)}{f' and {len(best) - 1} more' if len(best) > 1 else ''}"
        f"\n{digits.number(relative)}"
        for best, relative in zip(cells["best"], cells["relative"], strict=True)
    ]
    cells = cells.assign(relative=cells["relative"].astype(float), label=labels)
    y, x = POINT
    wide = cells.pivot_table(index=y, columns=x, values=["relative", "label"], aggfunc="first")
    with mpl.rc_context(STYLE):
        sns.heatmap(
            wide["relative"].astype(float), vmin=0, vmax=1, cmap="cividis", annot=wide["label"].fillna(""), fmt="",
            cbar=False, annot_kws={"fontsize": 9}, ax=ax,
        )  # fmt: skip
        ax.set(xlabel=heading(x), ylabel=heading(y))
        ax.set_xticklabels([f"{value:,}" for value in wide["relative"].columns], rotation=0)
        ax.set_yticklabels([f"{value:,}" for value in wide["relative"].index], rotation=0)
        ax.tick_params(length=0)
    return ax


def tally(wins: pd.DataFrame) -> Statement:
    """Count the points at which each variant alone is fastest."""
    if wins.empty:
        return Statement("Which is fastest where was not measured here.", NO_DATA, "no records")
    alone = Counter(best[0] for best in wins["best"] if len(best) == 1)
    parts = [f"{name} takes the least time at {digits.count(count)}" for name, count in alone.most_common()]
    shared = len(wins) - alone.total()
    parts += [f"at {digits.count(shared)} it is unclear which of several does"] if shared else []
    text = f"Of {digits.count(len(wins))} points measured, {'; '.join(parts)}."
    evidence = "At each point the variant with the least time against each other one."
    return Statement(text, "measured", evidence, wins.attrs["records"])


def theory(adam: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict each variant's time, the cost of amsgrad and growth with the elements."""
    _, speed = tidy.limits(ceilings)
    most = tidy.largest(adam, "elements", **LISTS)
    at = sentences.at(", {num_params} × {param_size:,}", most)
    least = 1e3 * hypotheses.value(adam, "moved_bytes", most) / speed
    plain = tidy.largest(tidy.select(adam, amsgrad=False), "elements", shapes=EQUAL, variant="fused")
    ends = hypotheses.ends(adam, "param_size", {**most, "variant": "fused"})
    return [
        *(
            Hypothesis(
                f"{name}, ms{at}", "36 bytes an element at memory's ceiling", least,
                hypotheses.median(adam, "total_ms", {**most, "variant": name}),
            )
            for name in (REFERENCE, "foreach", "fused")
        ),
        Hypothesis(
            "fused, amsgrad to none", "36 bytes to 28", flops.adam_bytes(1, True) / flops.adam_bytes(1, False),
            hypotheses.ratio(adam, "total_ms", {**plain, "amsgrad": True}, plain),
        ),
        Hypothesis(
            f"exponent of fused's time in the elements of each{at}", "bytes, one after the other", 1.0,
            hypotheses.exponent(adam, "total_ms", "param_size", *ends),
        ),
    ]  # fmt: skip


def beside_nearest(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return medians for a model's parameters and for the most similar equal ones.

    The most similar list is closest in `elements`, an added column, and has the same amsgrad and cache state."""
    timed = tidy.select(records, status="ok")
    real, equal = timed[timed["shapes"] != EQUAL], timed[timed["shapes"] == EQUAL]
    kept = set(real.index)
    for (amsgrad, cold), group in real.groupby(["amsgrad", "cold"]):
        alike = equal[(equal["amsgrad"] == amsgrad) & (equal["cold"] == cold)]
        distance = (alike["elements"] / group["elements"].iloc[0]).map(lambda times: abs(math.log(times)))
        if len(alike):
            nearest = alike.loc[distance.idxmin(), POINT]
            kept |= set(alike.index[(alike[POINT] == nearest).all(axis=1)])
    chosen = timed.loc[sorted(kept)]
    table = tidy.medians(chosen, *metrics, "elements").astype({"elements": int})
    return tidy.ordered(without_zeros(table), "amsgrad cold variant shapes")


def compiled_against(*rivals: str, within: claims.Limits, **where) -> Callable[[claims.Data], list[Found]]:
    """Make a function that finds compiled single-tensor times relative to `rivals`."""

    def find(data: claims.Data) -> list[Found]:
        records, of = claims.rows(data, "adam"), {"variant": "compiled_single_tensor"}
        return [
            one
            for rival in rivals
            for one in claims.ratios(
                records, "total_ms", of, {"variant": rival}, within, f"times {rival} {CASE}", **where, **LISTS
            )
        ]

    return find


def many_parameters(data: claims.Data) -> list[Found]:
    """Find how compiled to eager changes from at most 8 parameters to the most."""
    records, found = claims.rows(data, "adam", **LISTS), []
    rows = claims.cases(records, variant="compiled_single_tensor")
    for size in sorted({case["param_size"] for case in rows}):
        counts = sorted(case["num_params"] for case in rows if case["param_size"] == size)
        few = max((count for count in counts if count <= 8), default=None)
        if few is None or counts[-1] <= 16:
            continue
        many = next(case for case in rows if case["param_size"] == size)
        sides = [{**many, "num_params": count} for count in (counts[-1], few)]
        pairs = [(side, {**side, "variant": "single_tensor"}) for side in sides]
        found += claims.contrast(records, "total_ms", *pairs, MORE, f"times the ratio for {few}, {CASE}")
    return found
