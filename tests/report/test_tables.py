"""A table comes as HTML, as a pipe table and as LaTeX, with what it shows and with every special character escaped."""

import pandas as pd
from markupsafe import Markup

from lib.report import tables, tidy
from lib.stats.intervals import Interval

SPECIAL = r"50% of $x_1$ & #2 {a} ~ ^ \z [b] <c> *d* `e` @f"


def latex(frame, **options):
    return tables.Table(frame, "A caption of 50%", **options)._repr_latex_()


def markdown(frame, **options):
    return tables.Table(frame, "A caption of *", **options)._repr_markdown_()


def test_values_stand_as_in_the_table_with_their_intervals_and_bold():
    frame = pd.DataFrame({"variant": ["naive", "tiled"], "time, ms": [Interval(2.7123, 2.66, 2.75, 9, 3), None]})
    frame["least"] = [tables.Bold(10.21, 10.1, 10.3, 9, 3), Interval(9.0, float("nan"), float("nan"), 1, 1)]
    text = latex(frame)
    assert r"naive & 2.71 (2.66–2.75) & \bfseries 10.21 (10.10–10.30) \\" in text
    assert r"tiled & – & 9.00 \\" in text
    assert r"\begin{tabular}{lrr}" in text
    assert r"\caption{A caption of 50\%}" in text
    assert "\u2007" not in text
    assert "| naive | 2.71 (2.66–2.75) | <b>10.21</b> (10.10–10.30) |" in markdown(frame)


def test_special_characters_are_escaped_in_cells_and_heads():
    frame = pd.DataFrame({SPECIAL: [SPECIAL]})
    expected = (
        r"50\% of \$x\_1\$ \& \#2 \{a\} \textasciitilde \space \textasciicircum \space \textbackslash z {[}b{]} "
        r"\textless{}c\textgreater{} *d* `e` @f"
    )
    assert latex(frame).count(expected) == 2
    assert markdown(frame).count(r"50% of \$x_1\$ &amp; #2 {a} \~ ^ \\z \[b\] &lt;c&gt; \*d\* \`e\` @f") == 2
    assert r"| x\|y |" in markdown(pd.DataFrame({"x|y": [1]}))
    assert r"</b> A caption of \*" in markdown(frame)


def test_a_reason_stands_where_the_values_would():
    frame = pd.DataFrame({"size": ["xl", "tiny"], "ms": [None, Interval(1.0, 0.9, 1.1, 9, 3)], "MiB": [None, None]})
    reasons = ["predicted not to fit", ""]
    assert r"xl & predicted not to fit &  \\" in latex(frame, reasons=reasons)
    assert "| xl | predicted not to fit |  |" in markdown(frame, reasons=reasons)


def test_links_are_words_in_latex_and_links_elsewhere():
    links = '<a href="#a-b">A_b</a>; <a href="#c">C</a>'
    frame = pd.DataFrame({"where": [Markup(links)]}, dtype=object)
    assert f'<td class="long">{links}</td>' in tables.Table(frame, "x")._repr_html_()
    assert r"A\_b; C \\" in latex(frame)
    assert f"| {links} |" in markdown(frame)


def test_a_table_without_rows_shows_nothing():
    empty = pd.DataFrame({"a": []})
    assert latex(empty) is None
    assert markdown(empty) == ""
    assert tables.Table(empty, "x")._repr_html_() == ""


def test_a_table_escapes_what_it_shows_and_heads_its_columns_with_units(records):
    table = tidy.medians(records, "forward_ms").assign(variant="<b>&")
    shown = tables.show(table, "variant seq_len forward_ms", "<script>")._repr_html_()
    assert "<script>" not in shown
    assert "<b>&" not in shown
    assert "forward, ms" in shown
    assert "n = 24" in shown


def test_numbers_of_frames_joined_as_objects_have_three_digits():
    joined = pd.DataFrame({"by formula": [1962.6683921813965, None], "ranks": [1024, 2]}, dtype=object)
    shown = tables.Table(joined, "x")._repr_html_()
    assert "1,960" in shown
    assert "1,024" in shown


def test_a_quantity_of_several_rows_is_named_by_their_words_and_by_no_computed_number():
    took = Interval(1.0, 0.9, 1.1, 9, 3)
    rows = {"operator": ["mm", "add"], "operators_percent": [60.5, 39.5], "spent_ms": [took, took]}
    frame = pd.DataFrame({"quantity": "box/step/tiny", "hardware": "a test", **rows})
    shown = tables.show(frame, "operator operators_percent spent_ms", "a caption")._repr_html_()
    assert shown.count('data-q="box/step/tiny/mm/spent_ms"') == shown.count('data-q="box/step/tiny/add/spent_ms"') == 1
