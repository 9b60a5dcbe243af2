"""Figures can be read without their colours, and hold their intervals and their labels."""

import itertools
import re

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lib.records import results
from lib.report import plots, tidy
from lib.report.document import page
from lib.stats.intervals import Interval
from wcag import contrast

pytestmark = pytest.mark.usefixtures("closed_figures")

FAMILIES = {  # what stands in one figure
    "attention": ("naive", "tiled", "sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "flex", "compiled"),
    "adam": ("single_tensor", "foreach", "fused", "compiled_single_tensor", "compiled_foreach"),
    "precisions": ("fp32", "tf32", "bf16", "fp16"),
    "phases": ("forward", "backward", "optimizer", "whole"),
    "parts": ("scores", "softmax", "values"),
    "contexts": ("T=16", "T=32", "T=64", "T=128", "T=256", "T=512", "T=1024"),
}
BARS = {
    "phases": ("forward", "backward", "optimizer"),
    "classes": ("matrix_product", "attention", "elementwise", "reduction", "copy", "overhead", "optimizer", "other"),
}


def test_the_lines_and_the_bars_of_a_figure_differ_in_more_than_colour():
    for names in FAMILIES.values():
        assert len({(plots.MARKERS[plots.COLOURS[name]], plots.dash_of(name)) for name in names}) == len(names)
    for names in BARS.values():
        assert len({plots.bar(plots.COLOURS[name])["hatch"] for name in names}) == len(names)


def test_variants_of_one_family_share_a_hue_and_differ_in_dashes():
    families = (("naive", "compiled"), ("sdpa", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn"))
    hues = [{plots.COLOURS[name] for name in family} for family in families]
    assert [len(hue) for hue in hues] == [1, 1]
    assert hues[0] != hues[1]
    assert [len({plots.dash_of(name) for name in family}) for family in families] == [2, 4]


def test_lines_and_the_legend_have_the_dash_of_their_name():
    names = ["sdpa bf16", "sdpa_flash bf16", "sdpa_cudnn bf16"]
    (ax,) = plots.axes()
    plots.lines(ax, lines(names), "param_size", "total_ms", "variant", [])
    plots.legend(ax, names)
    (legend,) = ax.figure.legends
    wanted = [plots.dash_of(name) for name in names]
    assert wanted == ["-", plots.DASHES["sdpa_flash"], plots.DASHES["sdpa_cudnn"]]
    dashes = [key._unscaled_dash_pattern[1] for key in legend.get_lines()]
    drawn = [container.lines[0]._unscaled_dash_pattern[1] for container in ax.containers]
    assert dashes == drawn == [None, *(dash[1] for dash in wanted[1:])]


def table(**columns):
    rows = len(next(iter(columns.values())))
    return pd.DataFrame({"hardware": ["a test"] * rows, "noisy": [""] * rows, **columns})


def interval(value):
    return Interval(value, 0.9 * value, 1.1 * value, 9, 3)


def lines(names):
    sizes = [16384, 1048576] * len(names)
    times = [interval(x) for x in (1.0, 9.0) * len(names)]
    return table(variant=[name for name in names for _ in range(2)], param_size=sizes, total_ms=times)


def test_equal_lines_are_named_apart_and_inside_the_figure():
    ax = plots.lines(*plots.axes(), lines(["naive", "tiled", "sdpa"]), "param_size", "total_ms", "variant")
    ax.figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert {text.get_text() for text in ax.texts} == {"naive", "tiled", "sdpa"}
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert all(box.x1 <= ax.figure.bbox.x1 for box in boxes)


def test_every_line_of_panels_is_named_also_where_the_last_panel_lacks_it():
    both = pd.concat([lines(["fused", "foreach"]).assign(num_params=1), lines(["fused"]).assign(num_params=8)])
    figure = plots.panels(both, "num_params", "param_size", "total_ms", "variant").figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fused", "foreach"]


def test_marks_and_text_stand_out_from_the_page_in_both_schemes():
    schemes = (page.TEMPLATE / "report.css").read_text().split("prefers-color-scheme: dark")
    hues = set(plots.COLOURS.values()) - {plots.INK, plots.QUIET}
    for scheme in schemes[:2]:
        shades = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", scheme))
        assert min(contrast(hue, shades["page"]) for hue in hues) >= 3
        assert min(contrast(shades[f"text-{hue[1:].lower()}"], shades["page"]) for hue in hues) >= 4.5


def test_all_text_has_nine_pixels_where_a_phone_shows_a_figure():
    figure = plots.lines(*plots.axes(), lines(["naive", "tiled"]), "param_size", "total_ms", "variant")
    shown = plots.show(figure, "a figure", "a figure", "a note").svg
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: ?([0-9.]+)px", shown)]
    width = float(re.search(r'viewBox="0 0 ([0-9.]+)', shown)[1])
    assert min(sizes) * 349 / width >= 9


def test_panels_stand_two_to_a_row():
    grid = plots.axes(3, 2.0)
    assert [ax.get_subplotspec().rowspan.start for ax in grid] == [0, 0, 1]
    assert len(grid[0].figure.axes) == 3


def test_ticks_are_the_measured_sizes_and_intervals_are_drawn():
    ax = plots.lines(*plots.axes(), lines(["naive"]), "param_size", "total_ms", "variant")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["16 Ki", "1 Mi"]
    ((_, _, (bars,)),) = ax.containers
    assert [list(segment[:, 1]) for segment in bars.get_segments()] == [[0.9, 1.1], [8.1, pytest.approx(9.9)]]
    low, high = ax.get_ylim()
    assert low < 0.9 < 9.9 < high


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.8, 1.05), (2.1, 9.9), (1.01, 1.02), (900, 1500), (2.1, 190), (0.02, 30), (1e-3, 1e6)],
)
def test_a_log_axis_has_a_few_round_ticks_also_within_a_decade(low, high):
    (ax,) = plots.axes()
    ax.set(xscale="log", xlim=(low, high))
    plots.round_ticks(ax.xaxis)
    shown = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert 3 <= len(shown) <= 7
    texts = [text.get_text() for text in ax.get_xticklabels() if low <= text.get_position()[0] <= high]
    assert [float(text.replace(",", "")) for text in texts] == pytest.approx(shown)
    assert max(len(text.replace(",", "").strip("0.").replace(".", "")) for text in texts) <= 4
    assert not len(ax.xaxis.get_minorticklocs())


def test_a_size_of_zero_has_no_tick_on_a_log_axis():
    """The parameters of a model count as no parameter of no size."""
    sizes = table(param_size=[0, 64], variant=["fused"] * 2, total_ms=[interval(2.0)] * 2)
    ax = plots.lines(*plots.axes(), sizes, "param_size", "total_ms", "variant")
    assert list(ax.get_xticks()) == [64]


def test_a_bar_has_the_phases_that_were_measured(save_record):
    for mode, phases in (("forward", {"forward_ms": [2.0]}), ("both", {"forward_ms": [2.0], "backward_ms": [4.0]})):
        save_record(experiment="step", case={"mode": mode}, **phases)
    table = tidy.medians(results.load("step", "test-1c"), "forward_ms", "backward_ms", "optimizer_ms")
    ax = plots.phases(*plots.axes(), tidy.labelled(table, ["mode"]), "ms", "time, ms")
    widths = sorted(bar.get_width() for bar in ax.patches)
    assert widths == [0.0, 0.0, 0.0, 2.0, 2.0, 4.0]
    plt.close(ax.figure)


def test_figures_hold_page_ink_alternative_text_and_unique_ids(records):
    table, open_before = tidy.medians(records, "total_ms"), plt.get_fignums()
    first, second = (
        plots.show(plots.lines(*plots.axes(), table, "seq_len", "total_ms", "variant"), "caption", alt, table)
        for alt in ("one", "two")
    )
    assert 'aria-label="one"' in first._repr_html_()
    assert "currentColor" in first.svg
    assert plots.INK not in first.svg
    ids = [{part.split('"')[0] for part in figure.svg.split(' id="')[1:]} for figure in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
    assert plt.get_fignums() == open_before


def test_a_figure_without_data_shows_nothing(records):
    table = tidy.medians(records, "total_ms").iloc[:0]
    ax = plots.lines(*plots.axes(), table, "seq_len", "total_ms", "variant")
    assert plots.show(ax, "caption", "alt", table)._repr_html_() == ""
