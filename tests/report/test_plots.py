"""Figures draw the values of their frames, and their SVG is text in the page's ink."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest

from lib.report import plots
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval


def near(value: float) -> Interval:
    return Interval(value, value * 0.9, value * 1.2, 3)


@pytest.fixture
def times():
    rows = []
    for name, factor in (("naive", 4.0), ("sdpa", 1.0), ("own", 2.0)):
        for length in (256, 512, 1024):
            rows.append({"variant": name, "tokens": length, "ms": near(factor * length)})
    rows.append({"variant": "sdpa", "tokens": 2048, "ms": math.nan})
    return pd.DataFrame(rows)


@pytest.fixture
def steps():
    forward, optimizer = [near(10.0), near(8.0)], [near(5.0), math.nan]
    return pd.DataFrame({"label": ["plain", "fused"], "forward": forward, "optimizer": optimizer, "bound": [9, 7]})


def test_lines_go_through_the_values_of_each_variant(times):
    axes = plots.lines(times, "tokens", "ms", "variant").axes[0]
    drawn = {}
    for container in axes.containers:
        line = container.lines[0]
        drawn[line.get_color()] = list(zip(*line.get_data(), strict=True))
    known = times[times["ms"].notna()]
    expected = [[(row.tokens, row.ms.value) for row in rows.itertuples()] for _, rows in known.groupby("variant")]
    assert sorted(drawn.values()) == sorted(expected)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "512", "1,024"]


def test_lines_have_the_looks_of_the_catalogue_and_their_names_do_not_touch(times):
    figure = plots.lines(times, "tokens", "ms", "variant")
    names = {note.get_text(): note for note in figure.axes[0].texts}
    assert set(names) == {"naive", "sdpa", "own"}
    assert names["naive"].get_color() == plots.HUES["ink"]
    assert names["sdpa"].get_color() == plots.HUES["green"]
    figure.canvas.draw()
    boxes = sorted((note.get_window_extent() for note in names.values()), key=lambda box: box.y0)
    assert all(upper.y0 >= lower.y1 - 4 for lower, upper in itertools.pairwise(boxes))


def test_a_variant_of_two_experiments_has_the_look_of_the_one_that_has_the_others_too(times):
    times["variant"] = times["variant"].replace({"own": "fsdp", "sdpa": "torch_ddp"})
    figure = plots.lines(times, "tokens", "ms", "variant")
    hues = {note.get_text(): note.get_color() for note in figure.axes[0].texts}
    assert hues == {"naive": plots.HUES["purple"], "fsdp": plots.HUES["green"], "torch_ddp": plots.HUES["blue"]}
    dashes = [container.lines[0].get_linestyle() for container in figure.axes[0].containers]
    assert sorted(dashes) == ["-", "-", "--"]


def test_whiskers_end_where_the_intervals_do(times):
    axes = plots.lines(times, "tokens", "ms", "variant", log="").axes[0]
    (whiskers,) = axes.containers[1].lines[2]
    (low, high) = np.array(whiskers.get_segments()[0])[:, 1]
    assert (low, high) == pytest.approx((256 * 0.9, 256 * 1.2))


def test_bars_are_as_long_as_the_values_and_say_them(steps):
    figure = plots.bars(steps, "label", ["forward"], "ms", "bound")
    assert [patch.get_width() for patch in figure.axes[0].patches] == [10.0, 8.0]
    texts = re.findall(r"<text[^>]*>(.*?)</text>", plots.svg(figure, "x"))
    assert {"plain", "fused", "ms", "bound", "8.0"} <= set(texts)


def test_stacked_bars_add_up_and_leave_out_rows_without_a_first_part(steps):
    steps.loc[2] = ["not measured", math.nan, near(1.0), 3]
    axes = plots.bars(steps, "label", ["forward", "optimizer"], "ms").axes[0]
    ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
    assert ends == [10.0, 8.0, 15.0, 8.0]
    told = plots.bars(steps, "label", ["forward", "optimizer"], "ms", total="forward").axes[0]
    assert [[note.get_text() for note in drawn.texts] for drawn in (axes, told)] == [["15", "8.0"], ["10", "8.0"]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["plain", "fused"]


def test_ratios_tell_verdicts_by_word_and_by_a_hollow_mark():
    made = {"bf16": (2.0, "faster"), "fused": (1.1, "unclear"), "sdpa": (0.5, "slower"), "gone": (None, "")}
    cells = [Comparison(near(ratio), verdict) if ratio else math.nan for ratio, verdict in made.values()]
    axes = plots.ratios(pd.DataFrame({"switch": list(made), "comparison": cells}), "switch").axes[0]
    marks = [container.lines[0] for container in axes.containers]
    assert [mark.get_xdata()[0] for mark in marks] == [2.0, 1.1, 0.5]
    assert [mark.get_markerfacecolor() for mark in marks] == ["#009e73", "none", "#d55e00"]
    assert [note.get_text() for note in axes.texts] == ["faster", "unclear", "slower"]
    low, high = axes.get_xlim()
    assert low < 0.45 < 2.4 < high


def test_the_svg_is_text_in_the_ink_of_the_page(steps):
    drawn = plots.svg(plots.bars(steps, "label", ["forward", "optimizer"], "ms"), 'The "steps" & more')
    assert re.match(r'<svg role="img" aria-label="The &quot;steps&quot; &amp; more"', drawn)
    assert ">plain</text>" in drawn
    assert "currentColor" in drawn
    assert not re.search("#000000|#767676(?!\\))|#fefefe(?!\\))|<dc:|<image", drawn)
    assert not re.search(r"<svg[^>]* (width|height)=", drawn)
