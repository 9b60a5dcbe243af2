"""Tell what data parallelism, a sharded optimizer and FSDP cost in time and in memory."""

import math
from collections.abc import Mapping
from functools import partial

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.chapters import collectives
from lib.cost.flops import model_shape
from lib.parallel import accounting
from lib.parallel.accounting import MESH, MESH_AXES, TPU_V5P, XXL, Network
from lib.records.frame import Frame
from lib.report import compare, plots, sentences, tables, tidy
from lib.report.published import published_table
from lib.report.sentences import Statement, of_records
from lib.stats import digits
from lib.stats.intervals import Interval

PHASES = ("forward", "backward", "synchronization", "optimizer")
KINDS = ("parameters", "gradients", "states", "other")  # of what a rank holds after a step
OURS = ("naive", "flat", "overlap", "bucketed")
AFTER_BACKWARD = ("naive", "flat")  # these send
ALIKE = ["size", "context_length", "batch_size", "world"]  # of what is compared
WRITE_UPS = ("brandon-snider/cs336-a2", "damek/cs336-assignment2-systems")  # that print answers about XXL
UNCOUNTED = ["codes"]  # several experiments are in one table, each by its own code
UNTOLD = ["noisy", "why", "status"]  # by write-ups
MIB, GIB = 2**20, 2**30
NOTHING = "Steps of several ranks were not measured here."


def steps(records: pd.DataFrame) -> pd.DataFrame:
    """Return the medians of data parallel steps with the time relative to torch's own.

    `hidden_percent` is the part of the all-reduces' own time that does not add to the step."""
    metrics = [*(f"{phase}_ms" for phase in PHASES), "total_ms", "alone_ms"]
    table = tidy.medians(tidy.select(records, status="ok"), *metrics)
    if table.empty:
        return table.assign(hidden_percent=None, ratio=None, verdict=None)
    table = compare.beside_baselines(table, records)
    alike = [name for name in records.fields if name not in ("variant", "bucket_mib")]
    plain = tidy.select(table, variant="naive").set_index(alike)["backward_ms"].to_dict()
    return table.assign(hidden_percent=[_hidden(row, plain.get(tuple(row[alike]))) for _, row in table.iterrows()])


def _hidden(row: pd.Series, backward: Interval | None) -> Interval | None:
    """Return the percentage of the all-reduces' own time that a step hides, within 0 and 100.

    None if it sends after the backward pass. The rest is what it takes longer than a `backward` pass without any, in
    which nothing waits."""
    alone, *both = row["alone_ms"], row["backward_ms"], row["synchronization_ms"]
    if None in (alone, *both, backward) or row["variant"] in AFTER_BACKWARD:
        return None
    left = (sum(part.value for part in both) - backward.value) / alone.value
    off = math.hypot(*(part.reach / alone.value for part in (*both, backward)), left * alone.reach / alone.value)
    ends = (min(100.0, max(0.0, 100 * (1 - part))) for part in (left, left + off, left - off))
    return Interval(*ends, alone.n, alone.rounds) if math.isfinite(off) else None


def headline_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in fp32 of the largest case that has the most variants.

    Of each variant it is the row with the fastest bucket."""
    chosen = tidy.select(table, backend=collectives.backend(table), precision="fp32")
    if chosen.empty:
        return chosen
    variants = chosen.groupby(ALIKE)["variant"].transform("nunique")
    most = tidy.ordered(chosen[variants == variants.max()], "size context_length world").iloc[-1]
    chosen = tidy.select(chosen, **most[ALIKE])
    fastest = chosen["total_ms"].map(lambda found: found.value).groupby(chosen["variant"]).idxmin()
    return tidy.ordered(chosen.loc[fastest], "variant")


def answer(records: pd.DataFrame, table: pd.DataFrame) -> Statement:
    """State the fastest of our variants beside the naive one and torch's, and what it hides."""
    found = headline_rows(table).set_index("variant", drop=False) if len(table) else table
    ours = [name for name in OURS if name in found.index]
    if not ours:
        return sentences.missing(NOTHING, records)
    best = found.loc[min(ours, key=lambda name: found.loc[name, "total_ms"].value)]
    case = best[records.fields].to_dict()
    number = sentences.quantity(records, case, "total_ms", best["total_ms"], digits.brief(best["total_ms"]))
    bucketed = best["variant"] == "bucketed"
    way = f"buckets of {best['bucket_mib']:g} MiB" if bucketed else f"the {best['variant']} variant"
    text = (
        f"A step of {best['size']} ({best['batch_size']} × {best['context_length']} tokens in all) on {best['world']} "
        f"ranks by {best['backend']} takes {number} ms with {way}, the least median of our variants."
    )
    if best["alone_ms"]:
        text += f" Its all-reduces alone take {digits.value(best['alone_ms'])} ms"
        hidden = best["hidden_percent"]
        text += f"; the backward pass hides {digits.brief(hidden)}% of that." if hidden else "."
    said = [Statement(text, "measured", "Medians of the slowest rank.", sentences.names(records, case), (number,))]
    for other, words in (("naive", "the naive one"), ("torch", "torch's own")):
        if other in found.index.drop(best["variant"]):
            change = found.loc[other, records.fields].to_dict()
            said.append(sentences.compare(records, case, change, best["variant"], words))
    return sentences.together(*said)


def against(records: pd.DataFrame, variant: str, *others: str) -> Statement:
    """Compare a variant of the head's case with others."""
    found = headline_rows(steps(records)).set_index("variant", drop=False)
    if not {variant, *others} <= set(found.index):
        return sentences.missing(NOTHING, records)
    case, *rest = (found.loc[one, records.fields].to_dict() for one in (variant, *others))
    said, where = [], "at size {size}, {world} ranks by {backend}"
    for to in rest:
        words = f"the {variant} step", f"the {to['variant']} one", "" if said else where
        said.append(sentences.compare(records, case, to, *words))
    return sentences.together(*said)


@of_records()
def share(records: pd.DataFrame) -> Statement:
    """State how long the naive step takes and how much of it synchronizes gradients."""
    found = tidy.one(headline_rows(steps(records)), {"variant": "naive"})
    if found.empty or not found["synchronization_ms"]:
        return sentences.missing(NOTHING)
    whole, part = found["total_ms"], found["synchronization_ms"]
    text = (
        f"The naive step of {found['size']} on {found['world']} ranks takes {digits.brief(whole)} ms, of which "
        f"{digits.value(part)} ms ({digits.count(100 * part.value / whole.value)}%) synchronize gradients after the "
        "backward pass."
    )
    return Statement(text, "measured", "Medians of the slowest rank.")


def slower(records: pd.DataFrame) -> Statement:
    """Compare the step with a sharded optimizer with the plain one, in the largest case."""
    case = tidy.largest(records, "parameters", variant="sharded")
    words = "the step with a sharded optimizer", "the plain one", "at size {size}, {world} ranks by {backend}"
    return sentences.compare(records, case, {"variant": "plain"}, *words)


def stages() -> Statement:
    """State how our sharded optimizer differs from ZeRO stage 1 in bytes."""
    text = (
        "Ours all-reduces gradients and then sends parameters, three passes of the model round the ring; ZeRO stage 1 "
        "scatters the gradients instead, which are two. The memory is the same."
    )
    return Statement(text, "derived", "Rajbhandari et al. (2020), section 7.")


ANSWERS = {  # to the parts of the question about XXL, with the numbers of `xxl`
    "a": "XXL needs {} GiB for weights, gradients and states in fp32, and {} MiB a token for the backward pass in "
    "bf16; {} H100s hold the first.",
    "b": "FSDP of XXL takes at least {} devices without activations, and {} with as many tokens as hide its messages; "
    "on the mesh of the assignment each device then holds {} GiB.",
    "c": "On the mesh of the assignment XXL is compute-bound from {} tokens a device, {} in all; from {} if the "
    "messages of weights and activations add up, and from {} on the best mesh.",
    "d": "With twice the tensor parallelism, {} tokens a device are enough; at most {} ranks can share a tensor.",
}


def xxl_answer(part: str) -> Statement:
    """Return the answers to a part of the assignment's question about XXL as one sentence."""
    said = ANSWERS[part].format(*tidy.select(xxl(), part=part)["by accounting"])
    return Statement(said, "derived", "Plain arithmetic on the assignment's numbers.")


def timelines(records: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """Return the spans of one step of each variant in the case of `headline_rows`, by rank and part."""
    rows = []
    for _, row in headline_rows(table).iterrows():
        every = tidy.with_table(tidy.select(records, **row[records.fields]), "timeline")
        for _, record in every.head(1).iterrows():
            rows.append(pd.DataFrame(record["timeline"]).assign(variant=row["variant"], hardware=record["hardware"]))
    columns = ["variant", "rank", "part", "start_ms", "end_ms", "hardware"]
    return pd.concat(rows, ignore_index=True)[columns] if rows else pd.DataFrame(columns=columns)


@mpl.rc_context(plots.STYLE)
def draw_timelines(spans: pd.DataFrame) -> Axes:
    """Draw the spans of each rank, above what it computes or waits for, below its all-reduces."""
    lanes = list(dict.fromkeys(spans[["variant", "rank"]].itertuples(index=False, name=None)))
    (ax,) = plots.axes(height=1.2 + 0.17 * len(lanes))
    for place, (variant, rank) in enumerate(lanes):
        own = tidy.select(spans, variant=variant, rank=rank)
        for part, group in own.groupby("part", sort=False):
            middle = place + (0.2 if part == "all-reduce" else -0.17)
            style = plots.bar(plots.COLOURS[part]) | {"height": 0.28 if part == "all-reduce" else 0.42}
            known = ax.get_legend_handles_labels()[1]
            widths = group["end_ms"] - group["start_ms"]
            ax.barh([middle] * len(group), widths, left=group["start_ms"], label="_" * (part in known) + part, **style)
    ax.set_yticks(range(len(lanes)), [f"{variant}, rank {rank}" for variant, rank in lanes])
    ax.set(xlabel="time of one step, ms", ylim=(max(1, len(lanes)) - 0.4, -0.6))
    ax.grid(axis="x")
    if lanes:
        plots.above(ax, *ax.get_legend_handles_labels())
    return ax


def note(spans: pd.DataFrame) -> str:
    """Return a figure's note on the ranks and the hardware of the spans; empty without any."""
    return tables.hardware(spans, f"One step of each on {digits.count(spans['rank'].nunique())} ranks.")


def held(sharded: pd.DataFrame, fsdp: pd.DataFrame) -> pd.DataFrame:
    """Return what a rank holds after a step by kind, measured and by formula.

    The case is the largest of each experiment; `ours` are all ways but torch's. `error_percent` is that of parameters,
    gradients and states together; what is left counts as other."""
    rows: dict[str, dict] = {}
    metrics = ["initial_mib", "before_step_mib", "after_step_mib", "total_ms", *(f"after_{kind}_mib" for kind in KINDS)]
    for name, records in (("sharded", sharded), ("fsdp", fsdp)):
        table = tidy.medians(tidy.select(records, status="ok"), *metrics)
        table = tidy.select(table, precision="fp32") if "precision" in table else table
        if table.empty:
            continue
        table = tidy.select(table, **tidy.ordered(table, "size context_length world").iloc[-1][ALIKE])
        for variant, label, scheme in (("plain",) * 3, (name,) * 3, ("torch", f"torch's {name}", name)):
            row = tidy.one(table, {"variant": variant})
            if len(row):
                told = _with_formula(row, scheme) | {"label": label, "ours": variant != "torch"}
                rows.setdefault((label, *row[["context_length", "batch_size", "world"]]), told)
    columns = ["label", "size", "after_step_mib", "formula_mib", "error_percent"]
    return Frame(rows.values(), columns=None if rows else columns)


def _with_formula(row: pd.Series, scheme: str) -> dict:
    """Add the MiB by accounting to a row of medians, and how far off they are."""
    parts = _state_mib(row, scheme)
    found = {f"{kind}_mib": row[f"after_{kind}_mib"] for kind in KINDS}
    formula = sum(parts.values())
    seen = [found[f"{kind}_mib"] for kind in parts]
    off = math.nan if None in seen else 100 * (formula / sum(i.value for i in seen) - 1)
    by_kind = {f"formula_{kind}_mib": mib for kind, mib in parts.items()}
    told = row.drop([*tidy.MARKS, *UNCOUNTED], errors="ignore").to_dict()
    return told | found | by_kind | {"formula_mib": formula, "error_percent": off}


def _state_mib(row: Mapping, scheme: str) -> dict[str, float]:
    """Return the MiB by accounting of a rank's parameters, gradients and states."""
    parts = accounting.state_bytes(scheme, model_shape(row["size"], row["context_length"]), row["world"])
    return {kind: size / MIB for kind, size in parts.items()}


def draw_held(table: pd.DataFrame) -> Axes:
    """Draw two bars for each of our ways to train, what a rank holds and what it should by the formula."""
    rows = []
    for _, row in tidy.select(table, ours=True).iterrows():
        rows.append({"label": row["label"]} | {f"{kind}_mib": row[f"{kind}_mib"] for kind in KINDS})
        formula = {f"{kind}_mib": tables.as_interval(row[f"formula_{kind}_mib"]) for kind in KINDS[:-1]}
        rows.append({"label": f"{row['label']}, by formula", "other_mib": None} | formula)
    (ax,) = plots.axes(height=1.2 + 0.24 * len(rows))
    drawn = pd.DataFrame(rows, columns=None if rows else ["label", *(f"{kind}_mib" for kind in KINDS)])
    return plots.phases(ax, drawn, "mib", "MiB of a rank after a step", KINDS)


def memory(table: pd.DataFrame, *records: pd.DataFrame) -> Statement:
    """State what a rank holds after a step in each of our ways, and how far the formula is off."""
    ours = tidy.select(table, ours=True)
    if ours.empty:
        return sentences.missing("Memory of ranks was not measured here.", *records)
    ours = tidy.select(ours, **ours.iloc[0][ALIKE])
    parts = [f"{digits.number(row['after_step_mib'].value, 0)} MiB {row['label']}" for _, row in ours.iterrows()]
    row, off = ours.iloc[0], sentences.off(*ours["error_percent"].dropna())
    text = (
        f"After a step of {row['size']} on {row['world']} ranks, each holds {sentences.listed(parts)}; the formula "
        f"predicts their parameters, gradients and states {off}."
    )
    names = sum((sentences.names(one, {"size": row["size"]}) for one in records if len(one)), ())
    return Statement(text, "measured", "after_step_mib, the largest of any rank.", names)


@of_records()
def bound(records: pd.DataFrame, network: Network | None, peaks: Mapping[str, float]) -> Statement:
    """State from how many tokens a rank on data parallelism on this network is compute-bound."""
    precision = next((name for name in ("bf16", "fp32") if name in peaks), None)
    if network is None or precision is None:
        return sentences.missing("No network or ceiling was measured here.")
    fsdp, plain = (
        digits.number(accounting.data_parallel_tokens(peaks[precision], network.bandwidth, precision=sent))
        for sent in (precision, "fp32")
    )
    text = (
        f"At the ceiling of {precision} and {digits.number(network.bandwidth / 1e9)} GB/s on the bus, FSDP on many "
        f"ranks is compute-bound from {fsdp} tokens per rank, and data parallelism, which sends gradients in fp32, "
        f"from {plain}."
    )
    return Statement(text, "derived", "C / W of the scaling book: ceiling over bandwidth, by the bytes of a number.")


def xxl() -> pd.DataFrame:
    """Answer the assignment's questions about XXL by accounting, beside the answers of two write-ups."""
    whole = digits.count
    (x, y), devices, of = MESH, MESH[0] * MESH[1], {**TPU_V5P, "d_ff": XXL.d_ff}
    mixed = partial(accounting.mixed_tokens, **of, axes=MESH_AXES)
    least, added, narrower = mixed(tensor_world=y), mixed(tensor_world=y, overlap=False), mixed(tensor_world=2 * y)
    cards = math.ceil(XXL.state_bytes / accounting.H100_BYTES)
    alone, busy = (XXL.least_world(tokens, accounting.TPU_BYTES) for tokens in (0, least))
    each = digits.number(XXL.sharded_bytes(least, devices) / GIB)
    rows = [
        ("a", "weights, gradients and states in fp32, GiB", whole(XXL.state_bytes / GIB), "3,276", "3,276"),
        ("a", "kept for the backward pass in bf16, MiB a token", digits.number(XXL.token_bytes / MIB), "16.7", "16.7"),
        ("a", "H100s of 80 GiB for weights, gradients and states", whole(cards), "", "41"),
        ("b", "least FSDP devices of 95 GiB, without activations", whole(alone), "", ""),
        ("b", f"the same with {whole(least)} tokens each, half of their activations whole", whole(busy), "", ""),
        ("b", f"GiB on each of {devices} devices with these tokens", each, "", ""),
        ("c", f"tokens a device, X = {x}, Y = {y}, weights and activations at once", whole(least), "", ""),
        ("c", "the same on all devices together", whole(devices * least), "", ""),
        ("c", "tokens a device where both times add up", whole(added), "", "395"),
        ("c", "with the best X and Y", whole(accounting.best_mesh_tokens(**of, axes=MESH_AXES)), "246", "245"),
        ("d", f"tokens a device with X = {x // 2}, Y = {2 * y}, at once", whole(narrower), "", ""),
        ("d", "ranks that tensor parallelism can use", whole(math.floor(accounting.tensor_ranks(**of))), "", ""),
    ]
    return pd.DataFrame(rows, columns=["part", "asked", "by accounting", *WRITE_UPS])


def published_steps(table: pd.DataFrame) -> pd.DataFrame:
    """Return data parallel steps of write-ups and of here, each relative to the naive one of its case.

    `formula_ms` is what the model fitted to the source's own all-reduces gives the communication of a naive or flat
    step."""
    own = headline_rows(table).assign(source="this report").rename(columns={"size": "model"})
    theirs = published_table("data_parallel")
    fits = collectives.published_fits()
    found = pd.concat([own, theirs.astype(object)], ignore_index=True)
    found["formula_ms"] = [_by_fit(row, fits) for row in found.to_dict("records")]
    sizes = tidy.column(found, "bucket_mib").where(found["variant"] == "bucketed")
    found["bucket_mib"] = ["" if pd.isna(mib) else f"{mib:g}" for mib in sizes]
    alike = ["source", "hardware", "model", "context_length", "batch_size", "world"]
    times = found["total_ms"].map(lambda ms: ms.value if isinstance(ms, Interval) else float(ms))
    naive = times.where(found["variant"] == "naive").groupby([found[name] for name in alike]).transform("max")
    found["relative"] = times / naive
    found = found.rename(columns={"model": "size"}).drop(columns=UNTOLD, errors="ignore")
    return found.with_origin(what="Median")


def _by_fit(row: Mapping, fits: pd.DataFrame) -> float:
    """Return the time of a step's collectives by the fit to its source's all-reduces; NaN without one."""
    of = tidy.one(fits, {"source": row["source"], "world": row["world"], "backend": "nccl"})
    if of.empty or row["variant"] not in ("naive", "flat"):
        return math.nan
    network = accounting.network("all_reduce", row["world"], of["overhead_us"] / 1e6, 1e9 * of["algorithm_gb_per_s"])
    shape = model_shape(row["model"], row["context_length"])
    return 1e3 * sum(one.seconds(network, row["world"]) for one in accounting.step_messages(row["variant"], shape))


def published_memory(table: pd.DataFrame) -> pd.DataFrame:
    """Return what a rank holds in write-ups and here, beside the MiB by accounting after a step."""
    theirs = published_table("sharded").dropna(subset="after_step_mib")
    theirs = theirs.rename(columns={"model": "size", "variant": "label"})
    formula = [sum(_state_mib(row, row["label"]).values()) for _, row in theirs.iterrows()]
    theirs = theirs.assign(formula_mib=formula)
    own = table.assign(source="this report").drop(columns=UNTOLD, errors="ignore")
    return pd.concat([own, theirs.astype(object)], ignore_index=True)
