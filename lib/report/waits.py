"""Fit the time of messages between ranks, and predict how long a training step waits for them.

A message of S bytes takes o + S / w, with a latency o and a bandwidth w.
"""

import numpy as np
import pandas as pd
from scipy import optimize

from lib.config import SIZES
from lib.report import sentences

KIND = ["operation", "world", "backend"]
FAR_PERCENT = 50  # a line that is farther off explains no time
WIDE = 2  # an interval whose ends are farther apart decides nothing
REPLICAS = ("naive", "flat", "overlap", "bucketed")  # ways that average gradients of whole models


def fit(messages: pd.DataFrame) -> np.ndarray:
    """Return the latency in ms and the ms of a MB that make the relative errors of the times least."""
    terms = np.column_stack([np.ones(len(messages)), messages["message_bytes"] / 1e6])
    return optimize.nnls(terms / messages[["total_ms"]].to_numpy(float), np.ones(len(messages)))[0]


def fit_lines(timed: pd.DataFrame) -> pd.DataFrame:
    """Return messages, sorted by kind and size, with the line through all of their kind.

    A kind has an operation, ranks and a backend; its line needs several sizes, whose times grow with them. New columns:

    - `latency_ms`, `mb_ms` and `fit_gbs` of the line, and `fit_ms`, what it gives for the message.
    - `predicted_ms`: what a line through the other sizes gives. The smallest and the largest are not between others.
    - `error_percent` of that, of the smallest and the largest of `fit_ms`; `largest_error_percent` of the kind, unless
      its sizes are two, through which any line goes. A line that is off by more than FAR_PERCENT is left out."""
    timed = timed.sort_values([*KIND, "message_bytes"], ignore_index=True)
    lines = {}
    predicted = {}
    for kind, alike in timed.groupby(KIND):
        if alike["message_bytes"].max() > alike["message_bytes"].min():
            lines[kind] = fit(alike)
        for row in alike.index[1:-1]:
            predicted[row] = fit(alike.drop(row)) @ [1, alike.loc[row, "message_bytes"] / 1e6]
    fits = pd.DataFrame([[*kind, *line] for kind, line in lines.items()], columns=[*KIND, "latency_ms", "mb_ms"])
    fits = fits[fits["mb_ms"] > 0].astype({"latency_ms": float, "mb_ms": float})
    fitted = timed.assign(predicted_ms=pd.Series(predicted, dtype=float)).merge(fits, "left", KIND)
    # a megabyte a millisecond is a gigabyte a second
    fitted["fit_gbs"] = 1 / fitted["mb_ms"]
    fitted["fit_ms"] = fitted["latency_ms"] + fitted["message_bytes"] / 1e6 * fitted["mb_ms"]
    fitted["error_percent"] = 100 * (fitted["predicted_ms"].fillna(fitted["fit_ms"]) / fitted["total_ms"] - 1)
    errors = fitted["error_percent"].abs().groupby([fitted[name] for name in KIND])
    fitted["largest_error_percent"] = errors.transform("max").where(errors.transform("size") > 2)
    is_far = fitted["largest_error_percent"] > FAR_PERCENT
    fitted.loc[is_far, ["latency_ms", "mb_ms", "fit_gbs", "fit_ms"]] = np.nan
    return fitted


def choose_steps(here: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that the chapter on several ranks tells, among the rows of a machine's plain table.

    They are the timed ones of one batch, precision and number of ranks. What shards has a chapter of its own, and is
    left out unless nothing else was measured. The rows of one process on the same batch are among them, as `way` "one
    process". Rows are sorted by model and time. New columns:

    - `is_told`: the model of most rounds; of several the one of most ways.
    - `one_ms` with its ends, and `one_optimizer_ms`: the step of one process, and its optimizer."""
    same = ["size", "context_length", "batch_size", "precision", "backend", "device"]
    timed = here[(here["world"] > 1) & here["total_ms"].notna()]
    is_sharded = timed["variant"].str.contains("shard|zero|fsdp").astype(bool)
    timed = timed.assign(is_sharded=is_sharded, is_fp32=timed["precision"] == "fp32")
    timed["ways"] = timed.groupby([*same, "world"])["way"].transform("count")
    main = timed.sort_values("total_ms").nlargest(1, ["is_fp32", "rounds", "ways", "parameters"])
    alone = here[here["world"] == 1].merge(main[same[1:]]).dropna(subset="total_ms").assign(way="one process")
    solo = alone.filter(regex="^(size|total_ms.*|optimizer_ms)$")
    solo.columns = solo.columns.str.replace("optimizer", "one_optimizer").str.replace("total", "one")
    steps = timed.merge(main[[*same[1:], "world"]])
    steps = pd.concat([alone, steps[steps["is_sharded"] == steps["is_sharded"].min()].merge(solo, "left", "size")])
    steps["is_told"] = steps["size"].isin(main["size"])
    return steps.sort_values(["parameters", "total_ms"], ignore_index=True)


def predict_steps(steps: pd.DataFrame, reduces: pd.DataFrame) -> pd.DataFrame:
    """Return the data-parallel steps among `steps`, predicted by the lines of all-reduces.

    `reduces` are rows of `fit_lines`. Steps are those of `choose_steps`, with `one_ms`, the step of one process on the
    whole batch, and `one_optimizer_ms`, its optimizer. New columns:

    - `in_turn_ms`: all messages one after the other, m o + S / w.
    - `hidden_ms`: what is left of those that travel beside the backward pass, m o + s / w with the largest message s.
    - `predicted_wait_ms`: the first of naive, and the second of the others.
    - `predicted_step_ms`, with the ends of `one_ms`: the wait after the work. Ranks on one machine's cores do the work
      of one process, and each runs the whole optimizer besides; messages take these cores, so that none hides. GPUs
      divide the work.
    - `best_mb`: the best bucket, sqrt(S w o)."""
    lines = reduces.drop_duplicates(["world", "backend"])[["world", "backend", "latency_ms", "mb_ms"]]
    sent = steps[steps["variant"].isin(REPLICAS)].merge(lines, "left", ["world", "backend"])
    calls_ms = sent["messages"].astype(float) * sent["latency_ms"]
    gradients_mb = 4e-6 * sent["parameters"].astype(float)
    largest_mb = 2**20 / 1e6 * sent["largest_message_mib"].astype(float)
    sent["in_turn_ms"] = calls_ms + gradients_mb * sent["mb_ms"]
    sent["hidden_ms"] = (calls_ms + largest_mb * sent["mb_ms"]).where(sent["variant"] != "naive")
    sent["predicted_wait_ms"] = sent["hidden_ms"].fillna(sent["in_turn_ms"])
    is_shared = sent["device"] == "cpu"
    devices = sent["world"].where(~is_shared, 1)
    sent_ms = sent["in_turn_ms"].where(is_shared, sent["predicted_wait_ms"])
    for end in ("", "_low", "_high"):
        work_ms = sent[f"one_ms{end}"].fillna(sent["one_ms"]) + (sent["world"] - 1) * sent["one_optimizer_ms"]
        sent[f"predicted_step_ms{end}"] = work_ms / devices + sent_ms
    sent["best_mb"] = (gradients_mb * sent["latency_ms"] / sent["mb_ms"]) ** 0.5
    return sent.sort_values(["parameters", "messages"])


def compare(sent: pd.DataFrame) -> pd.Series:
    """Say of each step of `predict_steps` if it came as predicted: yes, wait longer, step later …

    Only intervals apart from the prediction count. One wider than a factor of two that holds it decides nothing: wait
    undecided. The text is empty where there is nothing to compare."""
    lines = pd.Series("", sent.index)
    known = pd.Series(False, sent.index)
    for name, expected, part, above, below in [
        ("wait_ms", "predicted_wait_ms", ", wait ", "longer", "shorter"),
        ("total_ms", "predicted_step_ms", ", step ", "later", "earlier"),
    ]:
        has_ends = sent[[f"{name}_low", expected]].notna().all(axis="columns")
        known |= has_ends
        came = pd.Series("", sent.index)
        came[has_ends & (sent[f"{name}_high"] > WIDE * sent[f"{name}_low"])] = f"{part}undecided"
        for rows, word in zip(sentences.apart(sent, name, expected), (above, below), strict=True):
            came[rows] = f"{part}{word}"
        lines += came
    return lines.str.removeprefix(", ").mask(known & (lines == ""), "yes")


def judge(sent: pd.DataFrame) -> str:
    """Say how many steps and waits of `predict_steps` came as predicted or not."""
    came = compare(sent)
    known = came[came != ""]
    if known.empty:
        return ""
    counts = known.replace("yes", "as predicted").value_counts()
    told = ", ".join(counts.astype(str) + " " + counts.index.str.replace(", ", " and "))
    is_wide = bool(known.str.contains("undecided").any())
    wide = " Undecided: an interval wider than a factor of two holds the prediction." * is_wide
    return f"Of {len(known)} steps: {told}.{wide}"


def judge_buckets(sent: pd.DataFrame) -> str:
    """Say which bucket is the best by the formula in each model, and whether the measured ones differ.

    `sent` are rows of `predict_steps`. Buckets differ where the intervals of any two steps lie apart."""
    lines = []
    for size, ways in sent.dropna(subset="best_mb").groupby("size", sort=False):
        tried = ways[ways["variant"] == "bucketed"]
        config = SIZES[size]
        largest_mb = 4e-6 * config.d_model * max(config.vocab_size, config.d_ff)
        text = f"in {size} {ways['best_mb'].iloc[0]:.2g} MB, where the largest one has {largest_mb:.3g}"
        if len(tried) > 1:
            is_apart = tried["total_ms_low"].max() > tried["total_ms_high"].min()
            text += f" ({len(tried)} sizes were timed: their steps {'differ' if is_apart else 'do not differ'} clearly)"
        lines.append(text)
    return f"The best bucket by the formula, if no parameter were larger: {'; '.join(lines)}." if lines else ""


def cover_percent(events: pd.DataFrame, message: str, phase: str) -> float:
    """Return the percentage of a phase in which messages of a kind are under way, in one rank's step.

    `events` have `part`, `start_ms` and `end_ms`; see `lib.parallel.timeline`."""
    (span,) = events[events["part"] == phase].itertuples()
    sent = events[events["part"] == message].sort_values("start_ms")
    starts, ends = (sent[name].clip(span.start_ms, span.end_ms) for name in ("start_ms", "end_ms"))
    # what an earlier message covers, too, counts once
    alone = ends - starts.clip(lower=ends.cummax().shift(fill_value=span.start_ms))
    return 100 * alone.clip(lower=0).sum() / (span.end_ms - span.start_ms)


def tell_gathers(steps: pd.DataFrame, gathers: pd.DataFrame, events: pd.DataFrame) -> str:
    """Say of each model if the weights that `fsdp` gathers come in time for its forward pass.

    `steps` are rows of a plain table with a `way`; `bucketed` has all weights. `gathers` are rows of `fit_lines`. Each
    matrix has a gather of its own: seven of a layer, the embedding and the head. `events` are those of one rank's step
    by `fsdp`, as `cover_percent` takes them, with a `size`."""
    lines = gathers.drop_duplicates(["world", "backend"])[["world", "backend", "latency_ms", "mb_ms"]].dropna()
    whole = steps[steps["way"] == "bucketed"].set_index("size").filter(like="forward_ms").add_prefix("whole_")
    sharded = steps[steps["way"] == "fsdp"].merge(lines, on=["world", "backend"]).join(whole, "size", how="inner")
    covered = {size: cover_percent(of_size, "all-gather", "forward") for size, of_size in events.groupby("size")}
    texts = []
    for row in sharded.itertuples():
        calls = 7 * SIZES[row.size].num_layers + 2
        gathered_ms = calls * row.latency_ms + 4e-6 * row.parameters * row.mb_ms
        hides = "too long" if gathered_ms > row.whole_forward_ms else "short enough"
        under_way_ms = covered.get(row.size, float("nan")) / 100 * row.forward_ms
        came = "no delay is proven"
        if row.forward_ms_low > row.whole_forward_ms_high:
            came = "weights come late" if under_way_ms > row.whole_forward_ms else "messages probably take its cores"
        text = f"in {row.size} {calls} gathers should take {gathered_ms:,.0f} ms by the line of all-gathers, {hides} "
        text += f"to hide behind a forward pass of {sentences.ms(row, 'whole_forward')}; by fsdp it takes "
        under_way = f", in {covered[row.size]:.0f}% of which gathers are under way" if row.size in covered else ""
        texts.append(f"{text}{sentences.ms(row, 'forward')}{under_way}, so {came}")
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in texts)
