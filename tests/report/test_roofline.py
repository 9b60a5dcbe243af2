"""Ceilings bound what is computed from them, and rooflines hold their points and labels that can be read."""

import itertools
import math

import pandas as pd
import pytest

from lib.chapters import profiles
from lib.records import results
from lib.report import plots, roofline, tidy
from lib.stats import digits
from lib.stats.intervals import Interval
from reference import MACHINE

pytestmark = pytest.mark.usefixtures("closed_figures")


def save_products(save_record, rows, *medians_ms, count=5):
    for round, ms in enumerate(medians_ms, 1):
        case = {"operation": "matmul", "rows": rows, "precision": "fp32"}
        save_record(experiment="ceilings", case=case, round=round, total_ms=[ms] * count, flops=1000 * rows)


def test_a_ceiling_is_the_case_of_the_largest_median_over_processes(save_record):
    save_products(save_record, 64, 199.0, 200.0, 201.0)
    save_products(save_record, 128, 300.0, 500.0, 10_000.0)  # faster, but not in all processes
    ceilings = results.load("ceilings", "test-1c")
    found = roofline.ceiling(ceilings, "matmul", "flops")["fp32"]
    assert found.value == pytest.approx(64000 / 200e-3, rel=1e-4)
    assert (found.rounds, found.n) == (3, 15)
    assert found.low < found.value < found.high
    assert roofline.limits(ceilings)[0] == {"fp32": found.value}
    assert roofline.limit_intervals(ceilings)[0] == {"fp32": found}
    assert math.isnan(roofline.limits(ceilings)[1])


def test_a_share_of_a_ceiling_has_the_ceilings_error(save_record):
    for round, ms in enumerate((9.9, 10.0, 10.1), 1):
        fields = {"forward_flops": 1e9, "backward_flops": 2e9, "forward_bytes": 1, "backward_bytes": 1}
        save_record(
            experiment="step", case={"size": "tiny", "precision": "fp32"}, round=round, total_ms=[ms] * 6,
            optimizer_bytes=1, **fields,
        )  # fmt: skip
    steps, exact = results.load("step", "test-1c"), {"fp32": 6e11}
    rough = {"fp32": Interval(6e11, 5e11, 7.2e11, 15, 3)}
    found = [
        tidy.medians(roofline.with_percent_of(steps, "mfu_percent", "forward_flops", limit, times=3), "mfu_percent")
        for limit in (exact, rough)
    ]
    narrow, wide = (table["mfu_percent"][0] for table in found)
    assert narrow.value == wide.value == pytest.approx(50, rel=1e-4)
    assert wide.log_error == pytest.approx(math.hypot(narrow.log_error, math.log(1.2)))
    least = roofline.with_least_time(steps, rough, 1e12)
    least = tidy.medians(least, "least_ms", "least_percent").iloc[0]
    assert least["least_percent"].log_error == pytest.approx(wide.log_error, rel=1e-6)
    assert least["least_ms"].log_error == pytest.approx(math.log(1.2), rel=1e-6)


def test_the_least_time_of_a_step_is_its_flops_and_bytes_at_the_ceilings(save_record):
    save_record(
        experiment="step", case={"size": "tiny", "precision": "fp32"}, total_ms=[8.0] * 6, forward_flops=1e9,
        backward_flops=2e9, forward_bytes=1e6, backward_bytes=2e6, optimizer_bytes=3e6,
    )  # fmt: skip
    steps = roofline.with_least_time(results.load("step", "test-1c"), {"fp32": 1e12}, 6e9)
    row = tidy.medians(steps, "least_ms", "least_percent").iloc[0]
    assert row["least_ms"].value == pytest.approx(3 + 1)
    assert row["least_percent"].value == pytest.approx(50)
    rough = roofline.with_least_time(results.load("step", "test-1c"), {"fp32": 1e12}, Interval(6e9, 5e9, 7.2e9, 9, 3))
    row = tidy.medians(rough, "least_ms").iloc[0]
    assert row["least_ms"].log_error == pytest.approx(math.log(1.2) / 4)
    unknown = roofline.with_least_time(results.load("step", "test-1c"), {"fp32": 1e12}, float("nan"))
    assert tidy.medians(unknown, "least_ms")["least_ms"].isna().all()


def test_a_step_whose_own_products_were_measured_takes_their_rate(save_record):
    for tokens, precision in itertools.product((512, 1024), ("fp32", "bf16")):
        save_record(
            experiment="step", case={"size": "tiny", "context_length": tokens // 4, "precision": precision},
            total_ms=[80.0] * 6, tokens=tokens, forward_flops=1e9, backward_flops=2e9, forward_bytes=1e6,
            backward_bytes=2e6, optimizer_bytes=3e6,
        )  # fmt: skip
    for round, ms in enumerate((99.0, 100.0, 101.0), 1):
        case = {"operation": "products", "rows": 512, "columns": 128, "precision": "fp32"}
        save_record(experiment="ceilings", case=case, round=round, total_ms=[ms] * 6, flops=1e10)
    save_record(experiment="ceilings", case=case | {"rows": 1024}, status="oom")
    save_record(experiment="ceilings", case=case | {"operation": "matmul"}, total_ms=[1.0] * 6, flops=64e6)
    ceilings = results.load("ceilings", "test-1c")
    own = roofline.own_products(ceilings)
    ((key, rate),) = own.items()
    assert key == ("fp32", 128, 512)
    assert (rate.value, rate.rounds) == (pytest.approx(1e11, rel=1e-3), 3)
    assert roofline.limits(ceilings)[0] == {"fp32": pytest.approx(6.4e10)}  # the own products are no ceiling
    known = roofline.with_least_time(results.load("step", "test-1c"), {"fp32": 1e12}, 6e9, own)
    table = tidy.medians(known, "least_ms", "limit_of").set_index(["precision", "context_length"])
    assert list(table.loc[[("fp32", 128), ("fp32", 256)], "limit_of"]) == [roofline.OWN, roofline.BEST]
    assert table.loc[("fp32", 128), "least_ms"].value == pytest.approx(30 + 1, rel=1e-3)
    assert table.loc[("fp32", 128), "least_ms"].log_error == pytest.approx(30 / 31 * rate.log_error, rel=1e-3)
    assert table.loc[("fp32", 256), "least_ms"].value == pytest.approx(3 + 1)
    assert table.loc["bf16", ["least_ms", "limit_of"]].isna().all(axis=None)


@pytest.fixture(scope="module")
def shown():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        profiled = results.load("kernels", MACHINE)
        yield profiles.points(profiled, profiles.headline_case(profiled))


@pytest.fixture(scope="module")
def limits():
    return roofline.limits(results.load("ceilings", MACHINE))


@pytest.fixture(scope="module")
def drawn(shown, limits):
    return roofline.draw(shown, *limits)


def test_points_stand_below_a_labelled_roof(shown, limits, drawn):
    products, bandwidth = limits
    for _, point in shown.iterrows():
        roof = min(products[point["precision"]], bandwidth * point["intensity"]) / 1e9
        assert point["gflops"].low <= roof
    said = " ".join(text.get_text() for text in drawn.texts)
    assert f"memory, {digits.number(bandwidth / 1e9)} GB/s" in said
    level, ridge = digits.number(products["fp32"] / 1e9), digits.number(products["fp32"] / bandwidth)
    assert f"fp32: {level} GFLOP/s, ridge at {ridge}" in said
    assert {text.get_text() for text in drawn.texts} >= set(shown["label"]) - {""}


def test_labels_of_a_roofline_cover_neither_each_other_nor_a_point_and_have_the_same_places_each_time(
    shown, limits, drawn
):  # fmt: skip
    drawn.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in drawn.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    places = [drawn.transData.transform((x, y.value)) for x, y in zip(shown["intensity"], shown["gflops"], strict=True)]
    assert not any(box.contains(*place) for box in boxes for place in places)
    again = roofline.draw(shown, *limits)
    assert [text.get_position() for text in again.texts] == [text.get_position() for text in drawn.texts]


def test_without_records_a_roofline_is_empty():
    ax = roofline.draw(pd.DataFrame(columns=roofline.COLUMNS), {}, float("nan"))
    assert plots.show(ax, "nothing", "nothing", pd.DataFrame(columns=roofline.COLUMNS)).svg == ""
