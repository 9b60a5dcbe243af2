"""Say what the assignment asks for and no chapter tells.

That is its own sizes, and ways of ranks side by side.
"""

import pandas as pd

from lib import records
from lib.config import SIZES
from lib.report import fits, sentences
from lib.report.first_steps import SAMPLES
from lib.report.steps import list_deviations
from lib.report.table import load

SMALL_BUCKETS, WHOLE = "bucketed, 1 MiB", "flat"
ALIGNED = ("synchronization_ms", "total_ms")
STATES = "{size} by {way} {initial_mib:,.0f} / {before_step_mib:,.0f} / {after_all_mib:,.0f}, peak {peak_mib:,.0f}"


def tell(machine: str) -> dict[str, str]:
    """Return sentences by their names in `questions.yaml`; those without records are left out."""
    lists = {**tell_ranks(machine), **tell_deviations(machine), **tell_attention(machine), **tell_peaks(machine)}
    lists |= tell_formula()
    return {name: f"{lead}{'; '.join(texts)}." for name, (lead, texts) in lists.items() if texts}


def tell_ranks(machine: str) -> dict[str, tuple[str, list[str]]]:
    """Compare the ways of two ranks in fp32; return how each sentence begins, and its parts by size."""
    ranks = load("parallel", machine).query("world == 2 and precision == 'fp32'").dropna(subset="total_ms")
    buckets = list_buckets(ranks)
    ranks = ranks.assign(way=ranks["variant"] + ranks["bucket_mib"].map({0: "", 1: ", 1 MiB"}))
    ranks = ranks.sort_values("parameters", kind="stable").drop_duplicates(["size", "way"])
    shares = []
    for naive in ranks[ranks["way"] == "naive"].itertuples():
        share = f"{sentences.ms(naive, 'synchronization')} of {sentences.ms(naive, 'total')}"
        shares.append(f"in {naive.size} {share}, {naive.synchronization_ms / naive.total_ms:.0%}")
    states = ranks[ranks["way"].isin(["bucketed", "sharded"])].dropna(subset="peak_mib")
    flat = sentences.sides(ranks, "flat", "naive", "total")
    return {
        "naive": ("Of the naive step communication takes ", shares),
        "flat": ("The step by flat against naive: ", [flat] if flat else []),
        "steps": ("Steps by the MiB of a bucket: ", buckets),
        "aligned": (
            "Buckets of 1 MiB should wait less than one message and, on devices of their own, step faster: ",
            align_buckets(ranks),
        ),
        "states": (
            "MiB alive on a rank when built / before / after the optimizer's first step, and the peak of later ones: ",
            [STATES.format_map(row) for row in states.to_dict("records")],
        ),
    }


def list_buckets(ranks: pd.DataFrame) -> list[str]:
    """List the steps of each model by the MiB of its buckets."""
    bucketed = ranks[ranks["bucket_mib"] > 0].sort_values(["parameters", "bucket_mib"])
    texts = []
    for size, rows in bucketed.groupby("size", sort=False):
        steps = [f"{sentences.ms(row, 'total')} at {row.bucket_mib}" for row in rows.itertuples()]
        texts.append(f"in {size} {', '.join(steps)}")
    return texts


def align_buckets(ranks: pd.DataFrame) -> list[str]:
    """Say for each model if small buckets clearly wait less, and step faster, than one message."""
    ends = ["synchronization_ms_low", "synchronization_ms_high", "total_ms_low", "total_ms_high"]
    small, whole = (ranks[ranks["way"] == way].set_index("size")[ends] for way in (SMALL_BUCKETS, WHOLE))
    texts = []
    for size in small.index.intersection(whole.index, sort=False):
        waits, steps = (small.loc[size, f"{name}_high"] < whole.loc[size, f"{name}_low"] for name in ALIGNED)
        texts.append(
            f"in {size} they {'' if waits else 'do not '}wait less and {'' if steps else 'do not '}step faster"
        )
    return texts


def tell_deviations(machine: str) -> dict[str, tuple[str, list[str]]]:
    """List mean and deviation of each part of a step by size, at 4 x 128 tokens in fp32.

    They are of ten steps after five warm-ups where these were timed, else of the samples of a step."""
    tens = records.load_any("warmup", machine)
    first_steps = tens.filter(regex="^first_.*_ms$").rename(columns=lambda name: name.removeprefix("first_"))
    tens = tens.assign(**first_steps.map(lambda times: times[5 : 5 + SAMPLES], na_action="ignore"))
    runs = pd.concat([list_deviations(frame) for frame in (tens, records.load_any("step", machine))])
    runs = runs[(runs["batch × tokens"] == "4 × 128") & (runs["precision"] == "fp32")].drop_duplicates("size")
    runs = runs.sort_values("size", key=lambda sizes: sizes.map(list(SIZES).index))
    texts = runs["size"].astype(str) + " " + runs["forward"] + ", " + runs["backward"] + ", " + runs["optimizer"]
    texts += runs["samples"].map(" ({} steps".format) + runs["largest_percent"].map(", up to {:.0f}%)".format)
    ratios = runs["size"].astype(str) + runs["backward over forward"].map(" {:.1f}".format)
    lead = "Mean ± deviation of forward, backward, optimizer at 4 × 128 tokens in fp32, in ms, of one process each, "
    lead += "that in the middle or the faster of two: "
    backward = "The backward pass takes so many times as long as the forward pass, where FLOPs predict 2: "
    return {"deviations": (lead, list(texts)), "backward": (backward, list(ratios))}


def tell_peaks(machine: str) -> dict[str, tuple[str, list[str]]]:
    """List the measured peaks in fp32, forward alone and in a step, where both are known."""
    runs = load("memory", machine).query("precision == 'fp32' and checkpoint == 0 and attention == 'naive'")
    shape = ["parameters", "context_length", "size", "batch_size"]
    both = runs.pivot_table("peak_mib", shape, "mode").reindex(columns=["no_grad", "train_step"]).dropna()
    texts = []
    for row in both.reset_index().itertuples():
        peaks = f"{row.no_grad:,.0f} and {row.train_step:,.0f}"
        texts.append(f"{row.size} at {row.batch_size} × {row.context_length} tokens {peaks}")
    return {"measured_peaks": ("Measured in MiB, forward alone and in a step: ", texts)}


def tell_attention(machine: str) -> dict[str, tuple[str, list[str]]]:
    """Say where plain attention of 8 sequences in fp32 runs out of memory."""
    naive = load("attention", machine).query("variant == 'naive' and precision == 'fp32' and causal")
    naive = naive.query("batch_size == 8 and num_heads == 1")
    texts = []
    for length, heads in naive[naive["status"] == "out of memory"].groupby("seq_len")["d_head"]:
        texts.append(f"at {length:,} tokens with heads of {', '.join(map(str, sorted(heads)))}")
    return {"attention": ("Plain attention of 8 sequences in fp32 runs out of memory ", texts)}


def tell_formula() -> dict[str, tuple[str, list[str]]]:
    """List the peaks of the 2.7B model by formula, in GiB: forward alone, and of a step."""
    gib = fits.list_peaks("2.7B", 4, [128, 256, 512, 2048], groups=[]).set_index("precision")
    peaks = []
    for row in gib.loc["fp32"].itertuples():
        peaks.append(f"{row.forward_gib} and {row.step_gib} at {row.tokens:,} tokens")
    shortest = gib[gib["tokens"] == 128].astype(str).agg(" to ".join)
    return {
        "peaks": (
            "By formula, on a GPU, 4 sequences of 2.7B in fp32 take forward alone, and in a step, in GiB: ",
            peaks,
        ),
        "bf16": (
            "By formula, on a GPU, the peak of 2.7B at 4 × 128 tokens goes in bf16, in GiB, ",
            [f"forward alone from {shortest['forward_gib']}", f"in a step from {shortest['step_gib']}"],
        ),
    }
