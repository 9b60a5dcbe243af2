"""What theory predicts is computed, and the verdict on it follows from the interval of what was measured."""

import math
import random
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib.chapters import adam, attention, attention_module, compile, kernels, memory, precision, step, warmup
from lib.cost import flops
from lib.records import results
from lib.report import hypotheses, tidy
from lib.report.hypotheses import LEAST, MOST, Hypothesis
from lib.stats.intervals import Interval
from reference import MACHINE

NOBODY = "no-machine"
EXPERIMENTS = (
    "step", "warmup", "kernels", "precision", "memory", "attention", "attention_module", "compile", "adam", "ceilings",
)  # fmt: skip


@pytest.mark.parametrize(
    ("low", "high", "limit", "verdict"),
    [
        (1.9, 2.1, "", "agrees"), (1.5, 2.6, "", "too uncertain to test"), (2.1, 2.2, "", "above"),
        (1.8, 1.9, "", "below"),
        (2.1, 2.2, LEAST, "kept"), (1.8, 1.9, LEAST, "broken"), (1.9, 2.1, LEAST, "open"),
        (2.1, 2.2, MOST, "broken"), (1.8, 1.9, MOST, "kept"), (1.9, 2.1, MOST, "open"),
        (2.001, 2.001, "", "agrees"), (2.01, 2.01, "", "above"), (math.nan, math.nan, "", "no interval"),
    ],
)  # fmt: skip
def test_the_interval_decides_and_a_count_agrees_within_a_thousandth(low, high, limit, verdict):
    measured = Interval((low + high) / 2, low, high, 9, 3)
    assert Hypothesis("a ratio", "theory", 2.0, measured, limit).verdict == verdict


def test_the_error_of_a_prediction_widens_the_interval():
    measured, ceiling = Interval(2.2, 2.15, 2.25, 9, 3), Interval(2.0, 1.8, 2.3, 9, 3)
    assert Hypothesis("a time", "bytes", 2.0, measured, LEAST).verdict == "kept"
    assert Hypothesis("a time", "bytes", ceiling, measured, LEAST).verdict == "open"
    assert Hypothesis("a time", "bytes", ceiling, Interval(2.4, 2.35, 2.45, 9, 3), LEAST).verdict == "kept"


def test_without_measurement_or_ceiling_nothing_is_decided():
    assert Hypothesis("a ratio", "theory", 2.0, None).verdict == "not measured"
    assert Hypothesis("a ratio", "theory", math.nan, hypotheses.counted(2.0)).verdict == "no ceiling"


LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def growing(save_record, power, rounds=3, spread=0.01, lengths=(256, 512, 1024, 2048), **one_off):
    """Save times that grow as a power of the length, with noise between rounds and one_off[length] times as long."""
    chance = random.Random(power)
    for length in lengths:
        for round in range(1, rounds + 1):
            ms = (length / 256) ** power * math.exp(chance.gauss(0, spread)) * one_off.get(f"of_{length}", 1)
            save_record(case={"variant": "naive", "seq_len": length}, round=round, total_ms=[ms] * 8, kept_mib=[length])
    return results.load("attention", "test-1c")


def test_an_exponent_is_fitted_over_the_whole_range_and_one_disturbed_length_moves_it_little(save_record):
    records = growing(save_record, 1.8, of_2048=1.5)
    found = hypotheses.exponent(records, "total_ms", "seq_len", {"variant": "naive", "seq_len": 256})
    assert found.value == pytest.approx(1.8, abs=0.12)
    two = math.log(1.5 * 2**1.8) / math.log(2)  # what the two longest alone would say
    assert two > 2.3
    exact = hypotheses.exponent(records, "kept_mib", "seq_len", {})
    assert (exact.value, exact.low, exact.high) == (1, 1, 1)
    calm = hypotheses.exponent(growing(save_record, 1.8), "total_ms", "seq_len", {})
    assert calm.low < 1.8 < calm.high
    assert calm.high - calm.low < 0.05


def test_an_exponent_has_sens_interval(save_record):
    noisy = {f"of_{length}": factor for length, factor in zip(LENGTHS, (1.3, 0.9, 1.2, 1.0, 1.1, 0.8), strict=True)}
    records = growing(save_record, 1, rounds=1, spread=0, lengths=LENGTHS, **noisy)
    found = hypotheses.exponent(records, "total_ms", "seq_len", {})
    times = [statistics.median(ms) for ms in records.sort_values("seq_len")["total_ms"]]
    expected = stats.theilslopes(np.log(times), np.log(LENGTHS), 0.95)
    assert (found.value, found.low, found.high) == pytest.approx((expected[0], *expected[2:4]))
    four = tidy.select(records, seq_len=list(LENGTHS[:4]))
    assert not hypotheses.exponent(four, "total_ms", "seq_len", {}).known


def test_an_exponent_of_too_few_points_has_no_interval_and_of_one_length_is_none(save_record):
    records = growing(save_record, 2, rounds=2, lengths=(256, 512))
    assert not hypotheses.exponent(records, "total_ms", "seq_len", {}).known
    assert hypotheses.exponent(records, "total_ms", "seq_len", {"variant": "tiled"}) is None
    assert hypotheses.exponent(tidy.select(records, seq_len=256), "total_ms", "seq_len", {}) is None


def chapters(machine):
    """The hypotheses of each chapter by its experiment."""
    of = {name: results.load(name, machine) for name in EXPERIMENTS}
    steps = tidy.select(of["step"], mode="train_step")
    return {
        "step": step.theory(of["step"], of["ceilings"]),
        "warmup": warmup.theory(warmup.cold(of["warmup"])),
        "kernels": kernels.theory(of["kernels"], of["ceilings"]),
        "precision": precision.theory(of["precision"], steps, of["ceilings"]),
        "memory": memory.theory(of["memory"]),
        "attention": attention.theory(of["attention"], of["ceilings"]),
        "attention_module": attention_module.theory(of["attention_module"], of["ceilings"]),
        "compile": compile.theory(of["compile"]),
        "adam": adam.theory(of["adam"], of["ceilings"]),
    }


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        yield chapters(MACHINE)


def test_every_chapter_has_a_few_hypotheses_and_the_reference_decides_them(reference):
    for name, found in reference.items():
        assert 3 <= len(found) <= 6, name
        assert not {one.verdict for one in found} & {"not measured", "no ceiling"}, name
        uncertain = [one.quantity for one in found if one.verdict == "no interval"]  # four points have none
        assert all(quantity.startswith("exponent") for quantity in uncertain), name


def test_without_records_every_hypothesis_is_said_not_to_be_measured(own_results):
    for name, found in chapters(NOBODY).items():
        assert {one.verdict for one in found} == {"not measured"}, name
        shown = hypotheses.table(found, pd.DataFrame({"hardware": []}))._repr_html_()
        assert shown.partition("<details")[0].count("not measured") == len(found)
        assert "nan" not in shown


def test_predictions_are_those_of_the_formulas(reference):
    assert reference["step"][0].predicted == 2
    single, foreach, fused, amsgrad, exponent = reference["adam"]
    assert single.predicted == foreach.predicted == fused.predicted
    assert 0 < fused.predicted.low < fused.predicted.value
    assert (amsgrad.predicted, exponent.predicted) == (36 / 28, 1)
    tokens = int(results.load("compile", MACHINE).query("model == 'attention'")["seq_len"].max())
    naive, compiled = (
        flops.attention_moved_bytes(name, 8, tokens, 64, True, "fp32")["forward"] for name in ("naive", "compiled")
    )
    assert reference["compile"][0].predicted == compiled / naive
