"""Figures have the looks of the catalogue, and their SVG is text in the page's ink."""

import re

import pandas as pd

from lib.report import plots


def test_names_have_the_looks_of_the_catalogue_and_others_a_free_hue():
    names = pd.Series(["naive", "sdpa", "sdpa_flash", "own", "naive"])
    hues = plots.palette(names)
    known = {"naive": plots.HUES["ink"], "sdpa": plots.HUES["green"], "sdpa_flash": plots.HUES["green"]}
    assert hues == known | {"own": hues["own"]}
    assert hues["own"] not in known.values()
    assert plots.dashes(names)["sdpa_flash"] == plots.DASHES["dashed"]
    # a variant of two experiments has the look of the one that has the others, too
    assert plots.palette(pd.Series(["naive", "fsdp"])) == {"naive": plots.HUES["purple"], "fsdp": plots.HUES["green"]}


def test_the_svg_is_text_in_the_ink_of_the_page():
    figure = plots.blank(2.0)
    figure.axes[0].barh(["plain", "fused"], [10, 8], color=plots.HUES["ink"])
    drawn = plots.svg(figure, 'The "steps" & more')
    assert re.match(r'<svg role="img" aria-label="The &quot;steps&quot; &amp; more"', drawn)
    assert ">plain</text>" in drawn
    assert "currentColor" in drawn
    assert not re.search("#000000|#767676(?!\\))|#fefefe(?!\\))|<dc:|<image", drawn)
    assert not re.search(r"<svg[^>]* (width|height)=", drawn)
