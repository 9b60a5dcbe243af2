"""Each rung stands on the one with most of its switches, and its gain is the quotient of their ratios."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest

from lib.report import rungs

SPEEDUPS = {
    "fused+bf16+compiled+masters": (4.0, 0.01), "fused+bf16": (3.0, 0.01), "fused": (1.2, 0.03),
    "fused+bf16_products": (2.4, 0.04), "fused+bf16_products+compiled": (2.5, 0.01), "fused+bf16+compiled": (3.1, 0.05),
    "compiled": (0.9, math.nan),
}  # fmt: skip
BEFORE = {
    "fused": "plain", "compiled": "plain", "fused+bf16_products": "fused", "fused+bf16": "fused+bf16_products",
    "fused+bf16_products+compiled": "fused+bf16_products", "fused+bf16+compiled": "fused+bf16",
    "fused+bf16+compiled+masters": "fused+bf16+compiled",
}  # fmt: skip


def compared():
    rows = [(names, ratio, ratio * math.exp(-e), ratio * math.exp(e)) for names, (ratio, e) in SPEEDUPS.items()]
    rows.append(("fused+gone", 9.0, 8.0, 10.0))
    return rungs.compare(pd.DataFrame(rows, columns=["switches", *rungs.ENDS]))


def test_rungs_are_in_the_order_of_the_ladder_each_after_the_one_that_lacks_its_latest_switch():
    table = compared()
    assert dict(zip(table["switches"], table["before"], strict=True)) == BEFORE
    assert list(table["switches"]) == list(BEFORE)
    assert list(table["switch"]) == ["fused", "compiled", "bf16_products", "bf16", "compiled", "compiled", "masters"]


def test_a_gain_is_a_quotient_whose_errors_add_up_and_one_without_an_interval_is_none():
    table = compared().set_index("switches")
    row = table.loc["fused+bf16_products"]
    assert row["switch_speedup"] == pytest.approx(2)
    assert row["switch_speedup_low"] == pytest.approx(2 * math.exp(-0.05))
    assert row["switch_speedup_high"] == pytest.approx(2 * math.exp(0.05))
    assert table["switch_advice"].to_dict() == {
        "fused": "proven", "compiled": "none", "fused+bf16_products": "proven", "fused+bf16": "proven",
        "fused+bf16_products+compiled": "probable", "fused+bf16+compiled": "probable",
        "fused+bf16+compiled+masters": "proven",
    }  # fmt: skip
    assert table.loc["fused", "switch_verdict"] == "faster"
    assert table.loc["compiled", "switch_verdict"] == "unclear"


def test_the_batch_is_that_of_most_rungs():
    # parameters, sequences, switches
    rows = [(9, 4, "fused"), (9, 4, "fused+bf16"), (9, 1, "fused+bf16"), (1, 4, "fused")]
    table = pd.DataFrame(rows, columns=["parameters", "batch_size", "switches"])
    chosen = rungs.choose_batch(table.assign(size=table["parameters"], context_length=8, losses=False, device="cpu"))
    assert list(chosen["switches"]) == ["fused", "fused+bf16"]
    assert set(chosen["batch_size"]) == {4}


def test_the_fastest_rung_is_proven_ends_with_a_switch_that_gains_and_can_be_copied():
    # switches, speedup, advice against plain, advice of the last switch
    rows = [
        ("fused", 1.5, "proven", "proven"), ("fused+bf16", 1.8, "proven", "probable"),
        ("fused+bf16+compiled", 1.9, "none", "proven"), ("fused+bf16+compiled+masters", 2.0, "proven", "none"),
        ("fused+whole", 3.0, "proven", "proven"),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["switches", "speedup", "advice", "switch_advice"])
    assert list(rungs.choose_fastest(table)["switches"]) == ["fused+bf16"]
    assert list(rungs.choose_fastest(table.assign(advice="none"))["switches"]) == ["fused+bf16+compiled"]
    nothing = table.assign(advice="none", switch_advice="none")
    assert list(rungs.choose_fastest(nothing)["switches"]) == ["fused+bf16+compiled+masters"]
    assert rungs.choose_fastest(table[:0]).empty


def test_without_rungs_there_is_nothing_to_compare():
    table = rungs.compare(pd.DataFrame(columns=["switches", *rungs.ENDS]))
    assert table.empty
    assert "switch_speedup" in table


@pytest.mark.parametrize(
    ("switch", "error", "expected"),
    [
        ("fused", 0.00729, ""),
        ("bf16", 0.00729, "logits off by 0.73%"),
        ("bf16_products", 4e-7, "calls another fp32 library, here as accurate"),
        ("compiled", 0.00729, "a first step that compiles 9.5 (7 to 9.5) s"),
        ("fused+bf16+compiled", 0.00729, "logits off by 0.73%, a first step that compiles 9.5 (7 to 9.5) s"),
        ("fused+bf16+compiled", math.nan, "a first step that compiles 9.5 (7 to 9.5) s"),
    ],
)
def test_a_price_is_in_digits_or_in_seconds(switch, error, expected):
    row = SimpleNamespace(switch=switch, logits_error=error, first_ms=9500.0, first_ms_low=7000.0, first_ms_high=9500.0)
    assert rungs.price(row) == expected


def test_the_longest_time_gives_the_lowest_rate():
    timed = {"tokens": [512], "paired_ms": [2000.0], "paired_ms_low": [1600.0], "paired_ms_high": [2560.0]}
    rates = rungs.add_rates(pd.DataFrame(timed)).iloc[0]
    assert (rates["tokens_a_second"], rates["tokens_a_second_low"], rates["tokens_a_second_high"]) == (256, 200, 320)


def test_a_first_iteration_that_loaded_what_another_process_compiled_does_not_count():
    case = {"experiment": "step", "size": "tiny", "compiled": True, "machine": "here", "status": "ok"}
    records = pd.DataFrame([case | {"first_iteration_ms": first} for first in ([13000.0], [15000.0], [900.0])])
    start = rungs.cold_starts(records).iloc[0]
    assert (start["first_ms"], start["first_ms_low"], start["first_ms_high"]) == (14000, 13000, 15000)
    assert rungs.cold_starts(records[:0]).empty
    # an iteration that takes long by itself: what counts is the time beyond the later ones
    long = pd.DataFrame(
        [case | {"first_iteration_ms": first, "paired_ms": [3000.0]} for first in ([19000.0], [4000.0])]
    )
    assert rungs.cold_starts(long).iloc[0][["first_ms", "first_ms_low"]].tolist() == [19000, 19000]


def test_a_gain_is_told_over_the_rung_before_and_a_wide_interval_decides_nothing():
    table = compared().assign(
        logits_error=0.0,
        first_ms=2000.0,
        first_ms_low=2000.0,
        first_ms_high=2000.0,
        interval="between processes",
        paired_rounds=3,
    )
    gains = rungs.describe(table.query("switches != 'fused+bf16_products+compiled'")).set_index("switches")
    assert gains.loc["fused+bf16", "switch"] == "bf16 autocast instead"
    assert gains.loc["fused+bf16", "over"] == gains.loc["fused+bf16", "baseline"] == "fused + bf16_products"
    assert gains.loc["fused+bf16", ["speedup", "seen"]].to_list() == [pytest.approx(1.25), "proven"]
    assert gains.loc["fused+bf16+compiled", ["seen", "price"]].to_list() == [
        "probable",
        "a first step that compiles 2 s",
    ]
    ends = {"switch_speedup": 1.0, "switch_speedup_low": [0.95, 0.95, 0.8], "switch_speedup_high": [1.05, 1.096, 0.9]}
    # an end that reads 1.10 reaches 10%
    other = table[:3].assign(switch_advice="none", switch_verdict=["unclear", "unclear", "slower"], **ends)
    assert list(rungs.describe(other)["seen"]) == ["no gain seen", "undecided", "slower"]


def test_the_price_of_masters_is_a_longer_update():
    rows = compared().assign(forward_speedup=1.2, optimizer_speedup=2.0)
    is_masters = rows["switch"] == "masters"
    rows.loc[is_masters, ["forward_speedup", "optimizer_speedup"]] = [1.5, 1.0]
    table = rungs.compare(rows).assign(logits_error=0.0, first_ms=math.nan, interval="", paired_rounds=3)
    prices = rungs.describe(table).loc[table["switch"] == "masters", "price"]
    assert list(prices) == ["an optimizer's step that takes about 2.0 times as long"]


def test_what_compiling_costs_and_saves_has_ends():
    rows = {"total_ms": [100.0], "first_ms": [1100.0], "first_ms_low": [600.0], "first_ms_high": [2100.0]}
    rows |= {"speedup": [1.1], "speedup_low": [1.05], "speedup_high": [1.2]}
    (row,) = rungs.add_cost(pd.DataFrame(rows), "total", "speedup").itertuples()
    assert (row.compile_ms, row.compile_ms_low, row.compile_ms_high) == (1000, 500, 2000)
    assert (row.saved_ms, row.soonest, row.latest) == pytest.approx((10, 25, 400))


def test_switches_have_words_also_one_that_is_gone():
    assert rungs.name_switches("fused") == "AdamW(fused=True)"
    assert rungs.name_switches("fused+gone+bf16") == "AdamW(fused=True), gone and bf16 autocast"


def test_the_plain_step_of_a_rung_is_its_baseline():
    case = {"size": "small", "context_length": 128, "batch_size": 4, "losses": False, "device": "cpu"}
    timed = {"tokens": 512, "paired_ms": 1000.0, "baseline_ms": 2000.0, "baseline_ms_low": 1600.0}
    moved = dict.fromkeys(
        ["forward_flops", "backward_flops", "forward_bytes", "backward_bytes", "optimizer_bytes"], 1.0
    )
    rung = case | timed | moved | {"baseline_ms_high": 2560.0, "switches": "fused", "speedup": 2.0, "first_step_s": 9.0}
    plain = rungs.take_plain(pd.DataFrame([rung]), "unheard-of").iloc[0]
    assert (plain["switches"], plain["rung"], plain["paired_ms"]) == ("plain", "plain", 2000)
    assert (plain["tokens_a_second"], plain["tokens_a_second_low"]) == (256, 200)
    assert math.isnan(plain["speedup"])
    assert math.isnan(plain["first_step_s"])


@pytest.mark.parametrize(("lows", "enough"), [([1, 9, 9, 9], 4), ([1, 3, 5, 30], 16), ([1, math.nan, 1, 1], 1)])
def test_more_sequences_are_enough_where_no_interval_is_above(lows, enough):
    batches = pd.DataFrame({"batch_size": [1, 4, 8, 16], "tokens_a_second_low": lows})
    batches["tokens_a_second_high"] = batches["tokens_a_second_low"] + 3
    assert list(rungs.choose_enough(batches)["batch_size"]) == [enough]
    assert rungs.choose_enough(batches[:0]).empty


def test_bars_of_other_rounds_become_the_plain_step_over_the_speedup():
    plain = {"paired_ms": 2600.0, "paired_ms_low": 2500.0, "paired_ms_high": 2700.0}
    rung = {"paired_ms": 1000.0, "speedup": 2.0, "speedup_low": 1.3, "speedup_high": 2.6}
    bars = rungs.add_common(pd.DataFrame([plain, rung])).filter(like="step_ms")
    assert bars.to_numpy().tolist() == [[2600, 2500, 2700], [1300, 1000, 2000]]
