"""Names have colours, and figures are SVG: text in the page's ink."""

import re

import pandas as pd

from lib.parallel import timeline
from lib.report import plots


def test_each_name_has_a_colour_of_its_own_and_none_is_ink():
    names = pd.Series(["naive", "sdpa", "sdpa_flash", "sdpa_cudnn", "own", "naive"])
    hues = plots.palette(names)
    assert list(hues) == ["naive", "sdpa", "sdpa_flash", "sdpa_cudnn", "own"]
    assert len(set(hues.values())) == 5
    assert set(hues.values()) < set(plots.HUES.values()) - {plots.HUES["ink"]}


def test_the_svg_is_text_in_the_ink_of_the_page():
    figure = plots.blank(2.0)
    figure.axes[0].barh(["plain", "fused"], [10, 8], color=plots.HUES["ink"])
    drawn = plots.svg(figure, 'The "steps" & more')
    assert re.match(r'<svg role="img" aria-label="The &quot;steps&quot; &amp; more"', drawn)
    assert ">plain</text>" in drawn
    assert "currentColor" in drawn
    assert not re.search("#000000|#767676(?!\\))|#fefefe(?!\\))|<dc:|<image", drawn)
    assert not re.search(r"<svg[^>]* (width|height)=", drawn)


def test_a_timeline_has_a_lane_for_each_way_and_all_reduces_below_its_parts():
    events = pd.DataFrame({
        "way": ["flat", "flat", "naive"], "part": ["forward", "all-reduce", "forward"], "start_ms": [0.0, 2.0, 0.0],
        "end_ms": [2.0, 3.0, 4.0],
    })  # fmt: skip
    (lanes,) = plots.timelines(events).axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["flat", "naive"]
    corners = {(round(bar.get_x(), 1), round(bar.get_y(), 1), round(bar.get_width(), 1)) for bar in lanes.patches}
    assert corners == {(0.0, -0.2, 2.0), (2.0, 0.2, 1.0), (0.0, 0.8, 4.0)}
    (lanes,) = plots.timelines(events[:2].drop(columns="way").assign(size="tiny")).axes
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["step of tiny", "all-reduce"]
    assert [round(bar.get_y(), 1) for bar in lanes.patches] == [-0.2, 0.8]
    assert set(plots.MESSAGES) == set(timeline.MESSAGES)


def test_speedups_are_lines_with_their_intervals_in_the_order_of_x():
    rows = pd.DataFrame({
        "tokens": [512, 128, 256], "variant": ["tiled"] * 3, "speedup": [16.0, 0.5, 1.0],
        "speedup_low": [15.0, 0.4, 0.9], "speedup_high": [20.0, 0.7, 1.1],
    })  # fmt: skip
    axes = plots.speedups(rows, "tokens", "variant", "tokens", "speedup").axes[0]
    one, line = axes.get_lines()
    assert set(one.get_ydata()) == {1}
    assert line.get_xydata().tolist() == [[128, 0.5], [256, 1.0], [512, 16.0]]
    (bars,) = axes.collections
    assert [segment[:, 1].round(2).tolist() for segment in bars.get_segments()] == [[0.4, 0.7], [0.9, 1.1], [15, 20]]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    words = rows[:2].assign(tokens=["tiny", "small"], speedup=1.0, most=2.0)
    axes = plots.speedups(words, "tokens", "variant", "", "speedup", "most").axes[0]
    assert [line.get_linestyle() for line in axes.get_lines()] == ["-", "-", "--"]
    assert axes.get_ylim()[0] == 0
