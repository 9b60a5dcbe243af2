"""A table comes as LaTeX and Typst, with what it shows and with every special character escaped."""

import html
import re

import pandas as pd
from markupsafe import Markup

from lib.report import tables, typeset
from lib.stats.intervals import Interval

SPECIAL = r"50% of $x_1$ & #2 {a} ~ ^ \z [b] <c> *d* `e` @f"


def shown(frame, **options):
    """The two texts that the page holds for a table."""
    page = tables.Table(frame, "A caption of 50%", **options)._repr_html_()
    return [html.unescape(text) for text in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)]


def test_values_stand_as_in_the_table_with_their_intervals_and_bold():
    frame = pd.DataFrame({"variant": ["naive", "tiled"], "time, ms": [Interval(2.7123, 2.66, 2.75, 9, 3), None]})
    frame["least"] = [tables.Bold(10.21, 10.1, 10.3, 9, 3), Interval(9.0, float("nan"), float("nan"), 1, 1)]
    latex, typst = shown(frame)
    assert r"naive & 2.71 (2.66–2.75) & \textbf{10.21 (10.10–10.30)} \\" in latex
    assert "[naive], [2.71 (2.66–2.75)], [*10.21 (10.10–10.30)*]," in typst
    assert r"tiled & – & 9.00 \\" in latex
    assert r"\begin{tabular}{lrr}" in latex
    assert r"\caption{A caption of 50\%}" in latex
    assert "\u2007" not in latex + typst


def test_special_characters_are_escaped_in_cells_heads_and_captions():
    latex, typst = shown(pd.DataFrame({SPECIAL: [SPECIAL]}))
    expected = (
        r"50\% of \$x\_1\$ \& \#2 \{a\} \textasciitilde{} \textasciicircum{} \textbackslash{}z {[}b{]} "
        r"\textless{}c\textgreater{} *d* \textasciigrave{}e\textasciigrave{} @f"
    )
    assert latex.count(expected) == 2
    assert typst.count(r"[50% of \$x\_1\$ & \#2 {a} \~ ^ \\z \[b\] \<c\> \*d\* \`e\` \@f]") == 2


def test_a_reason_stands_where_the_values_would():
    frame = pd.DataFrame({"size": ["xl", "tiny"], "ms": [None, Interval(1.0, 0.9, 1.1, 9, 3)], "MiB": [None, None]})
    latex, _ = shown(frame, reasons=["predicted not to fit", ""])
    assert r"xl & predicted not to fit &  \\" in latex


def test_links_are_words_there_and_links_in_the_page_and_in_markdown():
    table = tables.Table(
        pd.DataFrame({"where": [Markup('<a href="#a-b">A_b</a>; <a href="#c">C</a>')]}, dtype=object), "x"
    )
    assert '<td class="long"><a href="#a-b">A_b</a>; <a href="#c">C</a></td>' in table._repr_html_()
    assert r"A\_b; C \\" in html.unescape(table._repr_html_())
    assert "[A_b](#a-b) ; [C](#c)" in table._repr_markdown_()


def test_what_is_no_markup_is_escaped_in_the_page():
    page = tables.Table(pd.DataFrame({"a": ["<b>x</b>"], "b": ["<script>"]}), "x")._repr_html_()
    assert "&lt;b&gt;x&lt;/b&gt;</td>" in page
    assert "<script" not in page


def test_a_table_without_rows_has_no_text():
    assert typeset.disclosure([], ["a"], [False], "x") == ""
