"""A table holds what its frame holds, in HTML and as a pipe table."""

import math

import bs4
import pandas as pd
import pytest

from lib.report.tables import table
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval


def near(value: float) -> Interval:
    return Interval(value, value * 0.95, value * 1.05, 3)


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "variant": ["naive", "sdpa <|> x"],
            "time, ms": [near(81.0), near(4.0)],
            "gain": [math.nan, Comparison(near(3.3), "faster")],
            "elements": [8, 1_048_576],
            "share": [0.25, math.nan],
            "causal": [True, False],
        }
    )


def test_the_html_has_the_rows_of_the_frame(frame):
    parsed = bs4.BeautifulSoup(table(frame, "A & B", "n = 30")._repr_html_(), "html.parser")
    heads, *rows = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in parsed.find_all("tr")]
    assert heads == list(frame.columns)
    assert [row[0] for row in rows] == ["naive", "sdpa <|> x"]
    assert [row[3] for row in rows] == ["8", "1,048,576"]
    assert [row[5] for row in rows] == ["yes", "no"]
    assert parsed.figcaption.get_text() == parsed.find(tabindex="0")["aria-label"] == "A & B"
    assert parsed.find("p", class_="note").get_text() == "n = 30"


def test_a_cell_has_its_value_over_its_range_with_the_digits_that_the_interval_prints(frame):
    shown = table(frame, "Times")._repr_html_()
    value, _, ends = f"{near(81.0)}".rstrip(")").partition(" (")
    assert f">{value}" in shown
    assert f"<small>{ends.replace(' to ', '–')}</small>" in shown
    assert ">3.3× faster <small>" in shown


def test_numbers_are_flush_right_and_texts_are_not(frame):
    shown = table(frame, "Times")._repr_html_()
    assert '<th scope="col" class="text">variant</th>' in shown
    for column in ("time, ms", "gain", "elements", "share"):
        assert f'<th scope="col" class="number">{column}</th>' in shown


def test_what_is_missing_is_a_dash(frame):
    frame["gone"] = [None, Interval(math.nan, math.nan, math.nan, 0)]
    rows = table(frame, "Times")._repr_markdown_().splitlines()
    assert rows[4].endswith("| – |")
    assert rows[5].endswith("| – | no | – |")


def test_markdown_is_a_caption_a_pipe_table_and_a_note(frame):
    lines = table(frame, "Times of `x`", "n = 30")._repr_markdown_().splitlines()
    assert lines[0] == "**Times of \\`x\\`**"
    assert lines[2] == "| variant | time, ms | gain | elements | share | causal |"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | --- |"
    assert lines[4].startswith(f"| naive | {near(81.0)} | – | 8 | ")
    assert f"| sdpa \\<\\|> x | {near(4.0)} | {Comparison(near(3.3), 'faster')} | 1,048,576 | – | no |" in lines
    assert lines[-1] == "n = 30"


def test_more_than_eight_columns_are_refused():
    with pytest.raises(ValueError, match="columns: got 9, expected at most 8"):
        table(pd.DataFrame([range(9)]), "Nine")
