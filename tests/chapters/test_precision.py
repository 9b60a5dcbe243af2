"""Narrow types do to sums, norms and tensors what arithmetic says, and the report says only what the records hold."""

import math

import pandas as pd
import pytest
import torch

from lib.chapters import precision
from lib.experiments import cases
from lib.experiments.precision import SUBJECTS
from lib.instruments import rounding
from lib.records import results


def one(subject, precision):
    (case,) = cases.grid("precision", subject=subject, precision=precision, device="cpu")
    return case


@pytest.fixture(scope="module")
def observed():
    """What every case observes, once."""
    pairs = [(subject, name) for subject in SUBJECTS for name in ("fp32", "fp16", "bf16")]
    return {pair: one(*pair).observe() for pair in pairs if not one(*pair).unavailable()}


@pytest.fixture
def records(save_record, observed):
    for (subject, name), metrics in observed.items():
        save_record("precision", {"subject": subject, "precision": name, "device": "cpu"}, **metrics)
    return results.load("precision", "test-1c")


def test_what_makes_no_sense_is_unavailable_and_says_why():
    assert "not a dtype" in one("toy", "tf32").unavailable()
    assert "include the loop in fp32" in one("accumulation", "fp32").unavailable()


def test_the_sums_are_those_of_the_assignment_and_their_error_has_two_parts(observed):
    table = pd.DataFrame(observed["accumulation", "fp16"]["loops"]).set_index("loop")
    assert table["sum"].round(4).to_dict() == {
        "fp32 += fp32": 10.0001, "fp16 += fp16": 9.9531, "fp32 += fp16": 10.0021, "fp32 += fp16 as fp32": 10.0021,
    }  # fmt: skip
    assert (table["stored_error"] + table["added_error"]).to_list() == pytest.approx(table["sum_error"].to_list())
    assert table.loc["fp16 += fp16", "stored_error"] == pytest.approx(1000 * (0.01000213623046875 - 0.01))


def test_a_sum_stalls_where_half_its_spacing_is_more_than_a_term(observed):
    table = pd.DataFrame(observed["accumulation", "bf16"]["loops"]).set_index("loop")
    row = table.loc["bf16 += bf16"]
    assert row["sum"] == 4.0 == precision.stalls_at(0.01, bits=8)
    assert row["stalls_after"] < 1000
    assert row["half_percent"] > 100
    assert table.loc["fp32 += bf16", "stalls_after"] == 1000
    assert precision.stalls_at(0.01, bits=24) == 262144.0


def test_autocast_narrows_products_and_neither_parameters_nor_gradients(observed):
    for name in ("fp32", "fp16", "bf16"):  # fp32 is without autocast
        found, model = (dict(zip(*observed[of, name]["dtypes"].values(), strict=True)) for of in ("toy", "transformer"))
        assert found["parameters"] == found["gradients of the parameters"] == "fp32"
        assert model["residual stream after a layer"] == "fp32"
        narrow = found["output of the first layer"], found["logits"], model["queries"], model["attention scores"]
        assert set(narrow) == {name}


@pytest.mark.parametrize("norm", rounding.NORMS)
def test_the_square_is_what_overflows_first_in_fp16_and_nothing_does_in_bf16(observed, norm):
    limits = pd.DataFrame(observed[norm, "fp16"]["norm_limits"])
    over = limits[(limits["what"] == "overflows") & (limits["offset"] == 0)].sort_values("scale")
    assert over.iloc[0]["step"] == "square"
    assert math.sqrt(torch.finfo(torch.float16).max) < 4 * over.iloc[0]["scale"]
    assert "overflows" not in observed[norm, "bf16"]["norm_limits"]["what"]
    errors = pd.DataFrame(observed[norm, "bf16"]["norm_errors"])
    assert errors["scale"].nunique() == len(rounding.SCALES)


def test_the_mean_is_what_layer_norm_loses_when_it_is_large(observed):
    errors = pd.DataFrame(observed["layer_norm", "bf16"]["norm_errors"]).set_index(["scale", "offset"])
    assert errors.loc[(1, 100), "relative_error"] > 10 * errors.loc[(1, 0), "relative_error"]


def test_rounding_one_step_alone_costs_less_than_rounding_all(observed):
    for name in ("fp16", "bf16"):
        every = pd.DataFrame(observed["layer_norm", name]["norm_errors"]).set_index(["scale", "offset"])
        alone = observed["layer_norm", name]["step_errors"]["relative_error"]
        assert 0 < max(alone) < every.loc[(1, 0), "relative_error"]


def test_the_sentences_say_what_the_records_hold(records):
    said = precision.sums(records).text
    assert "A bf16 sum of 0.01 stops at 4, after 350 of 1,000 terms; fp16 reaches 9.9531 and fp32 10.0001." in said
    assert "bf16 terms make 10.0098 and fp16 terms 10.0021." in said
    assert "every term is lost" in precision.reasons(records, "bf16").text
    assert "up to 39% of a term is lost" in precision.reasons(records, "fp16").text
    assert "square overflows" in precision.sensitive(records, "layer_norm", "fp16").text
    assert "nothing overflows" in precision.sensitive(records, "layer_norm", "bf16").text
    assert "parameters, loss and the parameters' gradients are in fp32" in precision.observed(records, "fp16").text
    assert precision.kernel(records, "fp16").verdict == "measured"
    assert list(precision.loops(records)["loop"])[:2] == ["fp32 += fp32", "fp16 += fp16"]
    assert list(precision.dtypes(records, "toy"))[:4] == ["tensor", "fp32", "fp16", "bf16"]


STEP = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip


def test_a_step_is_compared_at_the_largest_and_the_smallest_size(save_record):
    for size, count, ratio in (("small", 1, 1.2), ("large", 2, 0.6)):
        for round in (1, 2, 3):
            case, times = STEP | {"size": size}, [1 + 0.001 * (i + round) for i in range(12)]
            save_record("step", case, round, total_ms=times, parameters=count)
            pairs = {"paired_ms": [ratio * ms for ms in times], "baseline_ms": times}
            save_record("step", case | {"precision": "bf16"}, round, total_ms=times, parameters=count, **pairs)
        found = results.load("step", "test-1c")
        assert found["size"].nunique() == count == precision.trend(found).text.count("one in fp32")
        assert precision.by_size(found)["ratio"].iloc[-1].value == pytest.approx(ratio)
    assert precision.trend(found).text == (
        "At large, context 8, a training step in bf16 is 1.667× faster than one in fp32. "
        "At small, context 8, a training step in bf16 takes 1.200× the time of one in fp32."
    )


def test_published_ratios_are_of_one_source_and_hardware():
    said = precision.published_trend().text
    assert said.startswith("In write-up 003, on RTX PRO 6000 WK and without compiling")
    assert said.endswith("at small, medium, large, xl, and less time at 2.7B.")
