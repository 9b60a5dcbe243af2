"""Rooflines hold their ceilings, and labels that can be read."""

import itertools

import pandas as pd
import pytest

from lib.chapters import profiles
from lib.records import results
from lib.report import plots, roofline, tidy
from lib.stats import digits
from reference import MACHINE

pytestmark = pytest.mark.usefixtures("closed_figures")


@pytest.fixture(scope="module")
def shown():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        profiled = results.load("kernels", MACHINE)
        yield profiles.points(profiled, profiles.headline_case(profiled))


@pytest.fixture(scope="module")
def limits():
    return tidy.limits(results.load("ceilings", MACHINE))


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
