"""Set attention in tiles beside plain attention, for the chapter `flash`."""

import numpy as np
import pandas as pd

from lib.report.rungs import ENDS

PROBLEM = ["batch_size", "num_heads", "d_head", "causal", "precision", "native", "cold", "seq_len"]
OURS = ("tiled", "flash_compiled", "triton")
TOTAL = ["total_ms", "total_ms_low", "total_ms_high"]


def beside_naive(here: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of attention's plain table of one machine, each beside *naive* on the same problem.

    Those of `list_paired_naive` are among them. New columns:

    - `type`: the precision, and if inputs in fp32 are converted to it. `line`: triton in bf16.
    - `heads`: 8 sequences, 1 head of 64.
    - `naive_total_ms` with its ends, alone, or else of pairs.
    - `over_naive_speedup` with its ends: of pairs with *naive*, or else the quotient of both times, between the
      quotients of their opposite ends. It is NaN for *naive* itself, and where it ran in one process of several.
    - `over_naive`: faster, slower, same or unclear. Of a quotient it goes by those ends that are known."""
    here = pd.concat([here, list_paired_naive(here)], ignore_index=True)
    is_paired = (here["baseline"] == "naive") & (here["variant"] != "naive")
    naive = here.query("variant == 'naive' and total_ms > 0").set_index(PROBLEM)[TOTAL].add_prefix("naive_")
    rows = here.join(naive, PROBLEM)
    naive_ms, naive_low, naive_high = rows[naive.columns].astype(float).T.to_numpy()
    own_ms, own_low, own_high = rows[TOTAL].astype(float).T.to_numpy()
    ratio = pd.DataFrame(
        np.transpose([naive_ms / own_ms, naive_low / own_high, naive_high / own_low]), rows.index, ENDS
    )
    # an end that is not known is the value itself
    known = ratio.bfill(axis="columns").ffill(axis="columns")
    verdicts = np.select([known["speedup_low"] > 1, known["speedup_high"] < 1], ["faster", "slower"], "unclear")
    verdicts = rows["verdict"].where(is_paired, verdicts)
    ratio = rows[ENDS].where(is_paired, ratio).mask(rows["variant"] == "naive")
    is_lone = is_paired & (rows["paired_rounds"] == 1) & (rows["rounds"] > 1)
    ratio = ratio.mask(is_lone)
    kinds = rows["precision"].mask(~rows["native"].astype(bool), rows["precision"] + ", converted")
    batches = _count(rows["batch_size"], "sequence") + ", " + _count(rows["num_heads"], "head")
    return rows.assign(
        **ratio.add_prefix("over_naive_"),
        over_naive=verdicts.where(ratio["speedup"].notna(), "").mask(is_lone, "pairs in one process"),
        type=kinds.replace("fp32, converted", "fp32"),
        line=rows["variant"] + " in " + rows["precision"],
        heads=batches + " of " + rows["d_head"].astype(str),
    )


def list_paired_naive(here: pd.DataFrame) -> pd.DataFrame:
    """Return a row of *naive* for each problem at which it ran as a baseline in pairs, and not alone."""
    alone = here.query("variant == 'naive'")[PROBLEM]
    pairs = here[(here["baseline"] == "naive") & (here["variant"] != "naive")].drop_duplicates(PROBLEM)
    pairs = pairs.drop(columns=pairs.filter(regex=r"^(total|forward|backward)_ms"))
    names = pairs.columns.str.replace("baseline_ms", "total_ms")
    pairs = pairs.set_axis(names.str.replace(r"^baseline_(forward|backward)_ms", r"\1_ms", regex=True), axis="columns")
    unseen = pairs[~pd.MultiIndex.from_frame(pairs[PROBLEM]).isin(pd.MultiIndex.from_frame(alone))]
    no_ratio = dict.fromkeys(ENDS, np.nan)
    return unseen.assign(variant="naive", status="of pairs", baseline="", verdict="", new_memory=0, **no_ratio)


def _count(numbers: pd.Series, noun: str) -> pd.Series:
    return numbers.astype(str) + " " + noun + (numbers > 1).map({True: "s", False: ""})
