"""The least time of the module is the longer of two, and the published memory is accounted for."""

import math

import pandas as pd
import pytest

from lib.chapters import attention_module
from lib.experiments import cases
from lib.records import results
from lib.report import roofline, tidy
from lib.stats.intervals import Interval

CASE = {
    "d_model": 32, "context_length": 8, "batch_size": 2, "num_heads": 2, "precision": "fp32", "compiled": False,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture
def modules(save_record):
    (case,) = cases.grid("attention_module", **CASE)
    facts = case.setup().facts
    save_record("attention_module", CASE, total_ms=[2.0] * 6, **facts)
    return results.load("attention_module", "test-1c"), facts


@pytest.mark.parametrize("slower", ["products", "memory"])
def test_the_least_time_is_that_of_the_slower_of_products_and_memory(modules, slower):
    records, facts = modules
    rate, speed = (1e9, 1e15) if slower == "products" else (1e15, 1e9)
    products, memory = (Interval(limit, 0.9 * limit, limit / 0.9, 9, 3) for limit in (rate, speed))
    found = attention_module.with_least_time(records, {"fp32": products}, memory)
    amount = 3 * facts["forward_flops"] if slower == "products" else facts["forward_bytes"] + facts["backward_bytes"]
    assert found["least_ms"].iloc[0] == pytest.approx([1e3 * amount / 1e9] * 6)
    least = tidy.median(found, "least_percent")
    assert (least.low, least.high) == pytest.approx((0.9 * least.value, least.value / 0.9))
    share = 100 * 2 * 32 / (2 * 32 + 8)
    assert found["projections_percent"].iloc[0] == pytest.approx([share] * 6)
    masked = 4 * 2 * (8 * 8 - 8 * 9 // 2) * 32  # of both products
    assert attention_module.total_flops(pd.Series(CASE)) == 3 * (facts["forward_flops"] - masked)


def test_without_ceilings_there_is_no_least_time(modules):
    records, _ = modules
    found = attention_module.with_least_time(records, {}, roofline.UNKNOWN)
    assert found["least_ms"].iloc[0] is None or math.isnan(found["least_ms"].iloc[0])


def test_the_share_of_the_projections_is_said(modules):
    assert "88.9% to 88.9%" in attention_module.workload(modules[0]).text
