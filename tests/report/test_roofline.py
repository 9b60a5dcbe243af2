"""Rooflines hold their ceilings, and labels that can be read."""

import itertools

import pandas as pd
import pytest

from lib.chapters import attention, kernels, step
from lib.records import results
from lib.report import plots, roofline, tidy

MACHINE = "epyc-2c"
pytestmark = pytest.mark.usefixtures("closed_figures")


@pytest.fixture(scope="module")
def points():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        steps = tidy.select(results.load("step", MACHINE), mode="train_step")
        cases = tidy.select(results.load("attention", MACHINE), precision="fp32", causal=True, d_head=64)
        profiled = results.load("kernels", MACHINE)
        parts = kernels.points(profiled, kernels.head(profiled))
        limits = tidy.limits(results.load("ceilings", MACHINE))
        yield {"steps": step.points(steps), "attention": attention.points(cases), "parts": parts}, limits


@pytest.mark.parametrize("name", ["steps", "attention", "parts"])
def test_points_stand_below_a_labelled_roof(points, name):
    (shown, (products, bandwidth)) = points[0][name], points[1]
    for _, point in shown.iterrows():
        roof = min(products[point["precision"]], bandwidth * point["intensity"]) / 1e9
        assert point["gflops"].low <= roof
    ax = roofline.draw(shown, products, bandwidth, joined=name == "attention")
    said = " ".join(text.get_text() for text in ax.texts)
    assert "memory, 51.2 GB/s" in said
    assert "products in fp32, 204 GFLOP/s; ridge at 3.99" in said
    assert {text.get_text() for text in ax.texts} >= set(shown["label"]) - {""}


@pytest.mark.parametrize("name", ["steps", "attention", "parts"])
def test_labels_of_a_roofline_cover_neither_each_other_nor_a_point(points, name):
    shown = points[0][name]
    ax = roofline.draw(shown, *points[1], joined=name == "attention")
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    places = [ax.transData.transform((x, y.value)) for x, y in zip(shown["intensity"], shown["gflops"], strict=True)]
    assert not any(box.contains(*place) for box in boxes for place in places)


def test_labels_have_the_same_places_each_time(points):
    axes = [roofline.draw(points[0]["steps"], *points[1]) for _ in range(2)]
    first, second = ([text.get_position() for text in ax.texts] for ax in axes)
    assert first == second


def test_the_intensity_of_the_optimizer_is_its_flops_over_its_bytes(points):
    optimizer = points[0]["steps"].query("name == 'optimizer'")
    assert set(optimizer["intensity"]) == {14 / 28}


def test_without_records_a_roofline_is_empty():
    ax = roofline.draw(pd.DataFrame(columns=roofline.COLUMNS), {}, float("nan"))
    assert plots.show(ax, "nothing", "nothing", pd.DataFrame(columns=roofline.COLUMNS)).svg == ""
