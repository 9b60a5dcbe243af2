"""Training steps in narrow types are compared at the tokens where most sizes ran."""

import pandas as pd
import pytest

from lib.report import narrow

COMMON = {"batch_size": 4, "compiled": False, "attention": "naive", "optimizer": "fused", "device": "cpu"}


def step(size, tokens, parameters, precision="bf16", **columns):
    baseline = "fp32" if precision != "fp32" else ""
    case = {"size": size, "context_length": tokens, "parameters": parameters, "precision": precision}
    return COMMON | case | {"mode": "train_step", "baseline": baseline} | columns


def test_the_tokens_of_most_sizes_are_told_and_single_pairs_where_no_interval_decides():
    times = {"bound_ms": 1.0, "forward_ms": 1.0, "backward_ms": 2.0}
    open_ends = {"lowest_pair": 1.5, "highest_pair": 2.5, "speedup": 2.0, "speedup_low": None, "speedup_high": None}
    ends = open_ends | {"speedup_low": 1.9, "speedup_high": 2.1, "verdict": "faster", "paired_rounds": 3, "pairs": 9}
    steps = pd.DataFrame([
        step("small", 128, 2, "fp32", **times | {"bound_ms": 3.0}),
        step("small", 128, 2, **times, **open_ends, verdict="unclear", paired_rounds=1, pairs=3),
        step("tiny", 128, 1, **times, **ends),
        step("tiny", 512, 1, **times, **ends),
    ])  # fmt: skip
    sizes = narrow.list_sizes(narrow.compare(steps))
    assert sizes["size"].tolist() == ["tiny", "small"]
    assert sizes["bounds_allow"].tolist() == pytest.approx([float("nan"), 3.0], nan_ok=True)
    told = [narrow.gain(size) for size in sizes.itertuples()]
    assert told == ["2.00× (1.90 to 2.10)", "2.00× (unclear, but faster in all 3 pairs of one process)"]
    (mixed,) = sizes.tail(1).assign(lowest_pair=0.9).itertuples()
    assert narrow.gain(mixed) == "2.00× (3 pairs of one process, 0.90 to 2.50)"
    (wide,) = sizes.tail(1).assign(speedup_low=0.5, speedup_high=8.0, lowest_pair=0.9).itertuples()
    assert narrow.gain(wide) == "2.0× (0.5 to 8.0, one process)"


def test_without_steps_nothing_is_compared(reference_table):
    assert narrow.list_sizes(narrow.compare(reference_table("step")[:0])).empty


def test_what_ran_in_no_pairs_is_a_ratio_of_times_alone():
    ends = dict.fromkeys(["speedup", "speedup_low", "speedup_high", "lowest_pair", "highest_pair"])
    paired = {"paired_ms": 2.0, "baseline_ms": 4.0, "speedup": 2.0, "lowest_pair": 1.5, "highest_pair": 2.5}
    steps = pd.DataFrame([
        step("tiny", 128, 1, "fp32", total_ms=5.0),
        step("tiny", 128, 1, total_ms=2.0, **ends | paired, verdict="faster"),
        step("small", 128, 2, "fp32", total_ms=9.0),
        step("small", 128, 2, total_ms=6.0, **ends, verdict="") | {"baseline": ""},
    ])  # fmt: skip
    rows = narrow.list_all(steps.astype(dict.fromkeys(ends, float)))
    shown = rows[["fp32_ms", "narrow_ms", "speedup", "range", "verdict"]].to_numpy().tolist()
    assert shown == [[4.0, 2.0, 2.0, "1.50 to 2.50", "faster"], [9.0, 6.0, 1.5, "timed alone", ""]]
