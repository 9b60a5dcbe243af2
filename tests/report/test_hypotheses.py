"""What theory predicts is computed, and the verdict on it follows from the interval of what was measured."""

import math

import pandas as pd
import pytest

from lib.chapters import adam, attention, attention_module, compile, kernels, memory, precision, step, warmup
from lib.cost import flops
from lib.records import results
from lib.report import hypotheses, tidy
from lib.report.hypotheses import LEAST, MOST, Hypothesis
from lib.stats.intervals import Interval

MACHINE, NOBODY = "epyc-2c", "no-machine"


def measured(low, high, n=9):
    return Interval((low + high) / 2, low, high, n, 3)


@pytest.mark.parametrize(
    ("low", "high", "limit", "verdict"),
    [
        (1.9, 2.1, "", "agrees"), (1.5, 2.6, "", "too uncertain to test"), (2.1, 2.2, "", "above"),
        (1.8, 1.9, "", "below"),
        (2.1, 2.2, LEAST, "kept"), (1.8, 1.9, LEAST, "broken"), (1.9, 2.1, LEAST, "open"),
        (2.1, 2.2, MOST, "broken"), (1.8, 1.9, MOST, "kept"), (1.9, 2.1, MOST, "open"),
    ],
)  # fmt: skip
def test_the_interval_decides(low, high, limit, verdict):
    assert Hypothesis("a ratio", "theory", 2.0, measured(low, high), limit).verdict == verdict


def test_without_interval_measurement_or_ceiling_nothing_is_decided():
    unknown = Interval(2.0, math.nan, math.nan, 3, 1)
    assert Hypothesis("a ratio", "theory", 2.0, unknown).verdict == "no interval"
    assert Hypothesis("a ratio", "theory", 2.0, None).verdict == "not measured"
    assert Hypothesis("a ratio", "theory", math.nan, measured(1, 2)).verdict == "no ceiling"


@pytest.mark.parametrize(("off", "verdict"), [(1.0, "agrees"), (1.0005, "agrees"), (1.01, "above"), (0.99, "below")])
def test_a_count_agrees_within_a_thousandth(off, verdict):
    assert Hypothesis("bytes", "a formula", 100.0, hypotheses.counted(100 * off)).verdict == verdict


def test_an_exponent_is_that_of_the_ratio():
    found = hypotheses.power(measured(4.0, 16.0), 2)
    assert (found.low, found.high) == (2.0, 4.0)
    assert hypotheses.power(None, 2) is None


def chapters(machine):
    """The hypotheses of each chapter by its experiment."""
    of = {name: results.load(name, machine) for name in results_needed()}
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


def results_needed():
    return (
        *("step", "warmup", "kernels", "precision", "memory", "attention", "attention_module", "compile", "adam"),
        "ceilings",
    )


@pytest.fixture(scope="module")
def reference():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        yield chapters(MACHINE)


def test_every_chapter_has_a_few_hypotheses_and_the_reference_decides_them(reference):
    for name, found in reference.items():
        assert 3 <= len(found) <= 6, name
        assert not {one.verdict for one in found} & {"no interval", "not measured", "no ceiling"}, name


def test_without_records_every_hypothesis_is_said_not_to_be_measured(own_results):
    for name, found in chapters(NOBODY).items():
        assert {one.verdict for one in found} == {"not measured"}, name
        shown = hypotheses.table(found, pd.DataFrame({"hardware": []}))._repr_html_()
        assert shown.partition("<details")[0].count("not measured") == len(found)
        assert "nan" not in shown


def test_predictions_are_those_of_the_formulas(reference):
    assert reference["step"][0].predicted == 2
    single, foreach, fused, amsgrad, exponent = reference["adam"]
    assert single.predicted == foreach.predicted == fused.predicted > 0
    assert (amsgrad.predicted, exponent.predicted) == (36 / 28, 1)
    naive, compiled = (
        flops.attention_moved_bytes(name, 8, 1024, 64, True, "fp32")["forward"] for name in ("naive", "compiled")
    )
    assert reference["compile"][0].predicted == compiled / naive
