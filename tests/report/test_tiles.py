"""Attention in tiles is set beside plain attention, by pairs or else by the quotient of two times."""

import pandas as pd
import pytest

from lib.report import tiles

SHAPE = {"batch_size": 8, "num_heads": 1, "d_head": 64, "causal": True, "cold": False, "seq_len": 1024}
KNOWN = SHAPE | {"precision": "bf16", "native": True, "new_memory": 0, "rounds": 2, "paired_rounds": 0}


def compare(*rows):
    """Return the rows, some columns of which may be missing, beside plain attention."""
    columns = [*KNOWN, "variant", "baseline", "verdict", *tiles.TOTAL, *tiles.ENDS, "baseline_ms"]
    texts = {"baseline": "", "verdict": ""}
    frame = pd.DataFrame([KNOWN | texts | row for row in rows]).reindex(columns=columns)
    return tiles.beside_naive(frame).set_index("variant")


def times(total_ms, total_ms_low, total_ms_high):
    return {"total_ms": total_ms, "total_ms_low": total_ms_low, "total_ms_high": total_ms_high}


def test_in_pairs_with_plain_attention_the_ratio_is_theirs():
    pairs = {"baseline": "naive", "speedup": 2.0, "speedup_low": 1.5, "speedup_high": 2.5, "verdict": "faster"}
    compared = compare({"variant": "tiled", "baseline_ms": 9.0, "paired_rounds": 2, **times(5.0, 4.0, 6.0), **pairs})
    row = compared.loc["tiled"]
    assert (row["over_naive_speedup"], row["over_naive"], row["naive_total_ms"]) == (2.0, "faster", 9.0)
    assert (row["line"], row["heads"], row["type"]) == ("tiled in bf16", "8 sequences, 1 head of 64", "bf16")
    # naive was not timed alone
    assert compared.loc["naive", ["total_ms", "status"]].tolist() == [9.0, "of pairs"]
    # one process of several says too little
    lone = compare({"variant": "tiled", "paired_rounds": 1, **times(5.0, 4.0, 6.0), **pairs}).loc["tiled"]
    assert lone["over_naive"] == "pairs in one process"
    assert pd.isna(lone["over_naive_speedup"])


@pytest.mark.parametrize(("naive", "verdict"), [((10.0, 8.0, 12.0), "faster"), ((5.0, 4.0, 6.0), "unclear")])
def test_in_pairs_with_another_variant_it_is_the_quotient_of_both_times(naive, verdict):
    own = {"variant": "triton", "baseline": "sdpa", "speedup": 0.8, "verdict": "slower", **times(5.0, 4.0, 6.0)}
    compared = compare({"variant": "naive", **times(*naive)}, own)
    row = compared.loc["triton"]
    ends = row[["over_naive_speedup", "over_naive_speedup_low", "over_naive_speedup_high"]]
    assert list(ends) == pytest.approx([naive[0] / 5, naive[1] / 6, naive[2] / 4])
    assert row["over_naive"] == verdict
    assert compared.loc["naive", "over_naive"] == ""
    assert pd.isna(compared.loc["naive", "over_naive_speedup"])


def test_a_time_without_an_interval_is_its_own_end():
    compared = compare({"variant": "naive", "total_ms": 5.0}, {"variant": "triton", **times(6.0, 5.5, 7.0)})
    assert compared.loc["triton", "over_naive"] == "slower"
    assert pd.isna(compared.loc["triton", "over_naive_speedup_low"])


def test_converted_inputs_are_named():
    converted = {"variant": "naive", "native": False, **times(5.0, 4.0, 6.0)}
    row = compare(converted).loc["naive"]
    assert row["type"] == "bf16, converted"
