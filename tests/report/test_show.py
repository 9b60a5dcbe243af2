"""Numbers in tables have the digits that their intervals warrant."""

import math

import bs4
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from lib.report.show import note, show
from lib.validate import BadInput


@pytest.fixture
def frame():
    return pd.DataFrame(
        {
            "variant": ["naive", "sdpa <|> x"],
            "seq_len": [512, 1_048_576],
            "total_ms": [81.0, 4.0],
            "total_ms_low": [77.0, 3.8],
            "total_ms_high": [85.0, 4.2],
            "peak_mib": [12.0, math.nan],
            "saved_mib": math.nan,
            "speedup": [math.nan, 3.3],
            "speedup_low": [math.nan, 3.1],
            "speedup_high": [math.nan, 3.5],
            "causal": [True, False],
            "status": "",
        }
    )


def test_the_html_has_one_cell_for_a_value_and_its_ends_and_no_empty_column(frame):
    parsed = bs4.BeautifulSoup(show(frame, "A & B", "n = 30")._repr_html_(), "html.parser")
    heads, first, second = [[cell.get_text() for cell in row.find_all(["th", "td"])] for row in parsed.find_all("tr")]
    assert heads == ["variant", "seq len", "total, ms", "peak, MiB", "speedup", "causal"]
    assert first == ["naive", "512", "81 (77–85)", "12", "–", "yes"]
    assert second == ["sdpa <|> x", "1,048,576", "4.00 (3.80–4.20)", "–", "3.30× (3.10–3.50)", "no"]
    assert [part.get_text() for part in parsed.find_all("small")] == ["(77–85)", "(3.80–4.20)", "(3.10–3.50)"]
    assert [cell["class"][0] for cell in parsed.find_all("th")] == ["text", *["number"] * 4, "text"]
    assert parsed.figcaption.get_text() == parsed.find(tabindex="0")["aria-label"] == "A & B"
    assert parsed.find("p", class_="note").get_text() == "n = 30"


def test_the_markdown_is_a_caption_a_pipe_table_and_a_note(frame):
    lines = show(frame, "Times of `x`", "n = 30")._repr_markdown_().splitlines()
    assert lines[0] == "**Times of \\`x\\`**"
    assert lines[2:4] == [
        "| variant | seq len | total, ms | peak, MiB | speedup | causal |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    assert lines[5] == "| sdpa \\<\\|> x | 1,048,576 | 4.00 (3.80–4.20) | – | 3.30× (3.10–3.50) | no |"
    assert lines[-1] == "n = 30"


def test_a_table_with_a_key_is_an_answer_unless_it_is_empty(frame):
    formatter = InteractiveShell.instance().display_formatter
    keyed = show(frame, "Times", key="attention.times")
    data, metadata = formatter.format(keyed)
    assert data["text/html"] == keyed._repr_html_()
    assert metadata == {"answer": "attention.times", "text": keyed._repr_markdown_()}
    for without_answer in (show(frame, "Times"), show(frame[:0], "Times", key="attention.times")):
        data, metadata = formatter.format(without_answer)
        assert data["text/markdown"] == without_answer._repr_markdown_()
        assert not metadata


def test_named_columns_bring_their_ends_and_none_that_is_missing(frame):
    columns = ["variant", "total_ms", "unheard_of_ms"]
    named = show(frame, "Times", columns=columns)
    assert f"{named}" == f"{show(frame[['variant', 'total_ms', 'total_ms_low', 'total_ms_high']], 'Times')}"


@pytest.mark.parametrize(
    ("rates", "head", "shown"), [([0.377, 0.41], "GFLOP/s", "377"), ([0.377, 1.41], "TFLOP/s", "0.377")]
)
def test_rates_that_are_all_below_one_tflops_are_in_gflops(rates, head, shown):
    lines = show(pd.DataFrame({"rate_tflops": rates, "name": "a"}), "Rates")._repr_markdown_().splitlines()
    assert lines[2] == f"| rate, {head} | name |"
    assert lines[4] == f"| {shown} | a |"


def test_what_was_not_measured_is_one_line(frame):
    for nothing in (frame[:0], frame[["variant", "saved_mib"]], frame[["saved_mib"]]):
        shown = show(nothing, "Kept <memory>")
        assert shown._repr_html_() == '<p class="missing">Kept &lt;memory&gt;: not measured by this sweep</p>'
        assert shown._repr_markdown_() == "Kept \\<memory>: not measured by this sweep\n"
    failed = show(frame[["variant", "saved_mib"]].assign(status="out of memory"), "Kept")
    assert "out of memory" in failed._repr_markdown_()


def test_a_note_says_what_the_rows_come_from():
    table = pd.DataFrame(
        {
            "rounds": [3, 5, 0], "samples": [9, 4, 0], "hardware": "a test", "interval": ["", "between processes", ""],
            "noisy": [1, 1, 0], "stale": [False, True, False], "new_memory": 0, "paired_rounds": [3, 0, 0],
            "builds": 1,
        }
    )  # fmt: skip
    expected = "3 to 5 rounds a case, at least 4 samples a round. a test"
    assert note(table) == f"{expected}. 2 of 8 records noisy. Some records are stale: older code measured them."
    assert note(table[1:2].assign(noisy=0, stale=False)) == "5 rounds a case, at least 4 samples a round. a test."
    assert note(table[2:]) == ""
    scarce = note(table[:1].assign(noisy=0, new_memory=2, paired_rounds=1, builds=2))
    assert "a test. 2 took new memory in each sample. Ratios of fewer rounds: 1, of at least 1. Rounds of sev" in scarce
    by_hand = note(table[:1].assign(interval="within one process", samples=0, rounds=1))
    assert by_hand == "1 round a case. a test. Intervals are those within one process. 1 of 1 records noisy."


def test_more_than_eight_columns_are_refused():
    with pytest.raises(BadInput, match="columns: got 9, expected at most 8"):
        show(pd.DataFrame([range(9)]), "Nine")
