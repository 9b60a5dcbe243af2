"""Predict a step of several H100 by the records of one, and by what a write-up printed of NCCL.

Nothing here is measured on several GPUs.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.config import SIZES
from lib.report import published, sentences, waits

SOURCE = "brandon-snider/cs336-a2"  # it has all-reduces and steps on several H100
# the largest bucket of each way, in MiB: 0 leaves each gradient by itself
MOST_MIB = {
    "naive": 0.0, "flat": np.inf, "overlap": 0.0, **{f"bucketed, {most} MiB": most for most in (1, 10, 100, 1000)},
    "sharded": 25.0,
}  # fmt: skip
WHOLE = "not sharded"  # the printed step beside that of sharded


def predict(step: pd.DataFrame, world: int = 2) -> pd.DataFrame:
    """Return what a data-parallel step of several H100 should take, each with the batch of one, by way.

    `step` is the row of one H100's step in fp32, or none. Messages take o + S / w by a line through the printed
    all-reduces. Where all of them take less than the backward pass, all but the last one hide behind it. Columns:

    - `way`, `calls`, `messages_ms` (one after the other), `wait_ms`, `step_ms`, `communication_percent` of the step.
    - `printed_wait_ms`, `printed_step_ms`: the write-up's, with as many tokens a GPU.

    `sharded` gathers the weights in one message of half an all-reduce's bytes, and saves all but an n-th of the
    optimizer."""
    printed = published.load("collectives").query("backend == 'nccl' and source == @SOURCE and world == @world")
    latency_ms, mb_ms = waits.fit(printed.assign(message_bytes=2**20 * printed["message_mib"]))
    rows = []
    for row in step.itertuples():
        tensors_mb = list_gradients(row.size)
        for way, most_mib in MOST_MIB.items():
            buckets_mb = fill_buckets(tensors_mb, most_mib * 2**20 / 1e6)
            messages_ms = len(buckets_mb) * latency_ms + sum(buckets_mb) * mb_ms
            last_ms = latency_ms + buckets_mb[-1] * mb_ms
            wait_ms = max(last_ms, messages_ms - row.backward_ms)
            if way in ("naive", "flat"):
                wait_ms = messages_ms
            work_ms = row.total_ms
            if way == "sharded":
                wait_ms += latency_ms + sum(buckets_mb) / 2 * mb_ms
                work_ms -= (1 - 1 / world) * row.optimizer_ms
            rows.append([way, len(buckets_mb), messages_ms, wait_ms, work_ms + wait_ms])
        # the printed partner of sharded does not say how it averages, so nothing predicts it
        rows.append([WHOLE, *[np.nan] * 4])
    predicted = pd.DataFrame(rows, columns=["way", "calls", "messages_ms", "wait_ms", "step_ms"])
    predicted["communication_percent"] = 100 * predicted["wait_ms"] / predicted["step_ms"]
    tokens = world * step["batch_size"] * step["context_length"]
    return predicted.merge(_list_printed(tokens, world), "left", "way")


def list_gradients(size: str) -> list[float]:
    """Return the MB of each parameter's gradient in fp32, in order: the last layer's are ready first.

    A layer has two norms, four matrices of attention and three of SwiGLU."""
    config = SIZES[size]
    norm, square, wide = config.d_model, config.d_model**2, config.d_model * config.d_ff
    layer = [norm, square, square, square, square, norm, wide, wide, wide]
    words = config.vocab_size * config.d_model
    return [4e-6 * elements for elements in reversed([words, *layer * config.num_layers, norm, words])]


def fill_buckets(tensors_mb: Sequence[float], most_mb: float) -> list[float]:
    """Return the MB of each bucket, of one tensor or of at most `most_mb`, filled in turn."""
    buckets_mb: list[float] = []
    for tensor_mb in tensors_mb:
        if buckets_mb and buckets_mb[-1] + tensor_mb <= most_mb:
            buckets_mb[-1] += tensor_mb
        else:
            buckets_mb.append(tensor_mb)
    return buckets_mb


def tell(step: pd.DataFrame, predicted: pd.DataFrame) -> str:
    """Say what `predict` gives for two H100, and which waits the write-up printed.

    The text is empty without a step."""
    ways = predicted.set_index("way")
    hidden = ways[ways.index.str.contains("overlap|bucketed")].max()
    waiting = []
    text = ""
    for way in ways.index.intersection(["naive", "flat"], sort=False):
        wait_ms, share_percent = ways.loc[way, ["wait_ms", "communication_percent"]]
        waiting.append(f"{wait_ms:.0f} ms by {way} ({share_percent:.0f}% of the step)")
    for row in step.itertuples():
        saved_ms = f"{row.optimizer_ms / 2:.0f} of {row.optimizer_ms:.0f} ms"
        text = f"One {row.hardware} takes {sentences.ms(row, 'total')} for a step of {row.size} at {row.batch_size} × "
        text += f"{row.context_length} tokens in {row.precision}. Two, each with as many tokens, should wait for "
        text += f"messages {', '.join(waiting)}, at most {hidden.wait_ms:.1f} ms by overlap and all buckets "
        text += f"(predicted, not measured). A sharded optimizer should save {saved_ms} and wait "
        text += f"{ways.loc['sharded', 'wait_ms']:.0f} ms for weights."
        printed_ms = ways.loc[["naive", "flat"], "printed_wait_ms"]
        if printed_ms.notna().all():
            text += f" {SOURCE} printed waits of {' and '.join(printed_ms.map('{:.0f}'.format))} ms by naive and flat: "
            text += "the model leaves out the copy into one message. Its steps are those of another program."
    return text


def tell_sharded(step: pd.DataFrame, predicted: pd.DataFrame) -> str:
    """Say what the write-up printed of a sharded optimizer on two H100, beside what `predict` gives."""
    ways = predicted.set_index("way")
    steps_ms = ways["printed_step_ms"].reindex([WHOLE, "sharded"])
    if steps_ms.isna().any():
        return ""
    row = step.iloc[0]
    printed = published.load("sharded").dropna(subset="before_step_mib").set_index("variant").filter(like="_mib")
    whole, shard = [" / ".join(map("{:,.0f}".format, printed.loc[way])) for way in ("plain", "sharded")]
    saved_gib = (printed.loc["plain"] - printed.loc["sharded"]) / 1024
    # moments have twice the bytes of the gradients, and two ranks share them
    expected_gib = sum(list_gradients(row["size"])) * 1e6 / 2**30
    saved_ms = steps_ms[WHOLE] - steps_ms["sharded"]
    less_ms, wait_ms = row["optimizer_ms"] / 2, ways.loc["sharded", "wait_ms"]
    text = f"Printed for {row['size']} on two H100 ({SOURCE}), MiB when built / before the optimizer / after it: "
    text += f"{whole} whole, {shard} sharded, {saved_gib.iloc[-1]:.1f} GiB saved, {expected_gib:.1f} predicted. Steps "
    text += f"take {' and '.join(steps_ms.map('{:.1f}'.format))} ms, {saved_ms:.0f} saved, predicted {less_ms:.0f} − "
    return f"{text}{wait_ms:.0f} = {less_ms - wait_ms:.0f}."


def list_nccl() -> pd.DataFrame:
    """Return the printed GB/s of NCCL's all-reduces, a row for each source and number of GPUs."""
    printed = published.load("collectives").query("backend == 'nccl'").rename(columns={"world": "GPUs"})
    printed["gbs"] = printed["message_mib"] * 2**20 / printed["total_ms"] / 1e6
    wide = printed.pivot_table("gbs", ["source", "GPUs"], "message_mib")
    return wide.rename(columns="{:,} MiB, GB/s".format).reset_index().rename_axis(columns=None)


def tell_nccl() -> str:
    """Say what write-ups printed of NCCL's largest all-reduce."""
    printed = published.load("collectives").query("backend == 'nccl'")
    largest = printed[printed["message_mib"] == printed["message_mib"].max()]
    gbs = largest["message_mib"] * 2**20 / largest["total_ms"] / 1e6
    rates = gbs.map("{:.3g} GB/s".format) + (1e3 / gbs).map(" ({:.1f} ms a GB)".format)
    rates += " between " + largest["world"].astype(str) + " GPUs"
    rates = rates.groupby(largest["source"] + " (" + largest["hardware"] + ")", sort=False).agg(", ".join)
    text = "; ".join(rates.index + " " + rates)
    return f"Others printed of NCCL's all-reduce of {largest['message_mib'].max():,} MiB: {text}."


def _list_printed(tokens: pd.Series, world: int) -> pd.DataFrame:
    """Return the printed steps of xl in fp32 with so many tokens on all GPUs."""
    sharded = published.load("sharded").replace({"variant": {"plain": WHOLE}})
    theirs = pd.concat([published.load("data_parallel"), sharded]).query("source == @SOURCE and world == @world")
    theirs = theirs[(theirs["context_length"] * theirs["batch_size"]).isin(tokens)]
    buckets = theirs["bucket_mib"].map(", {:.0f} MiB".format).where(theirs["bucket_mib"].notna(), "")
    printed = {"synchronization_ms": "printed_wait_ms", "total_ms": "printed_step_ms"}
    return theirs.assign(way=theirs["variant"] + buckets).rename(columns=printed)[["way", *printed.values()]]
