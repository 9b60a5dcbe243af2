"""The first screen answers in a row each, and leaves out what has no data."""

from lib.chapters.summary import screen
from lib.report.sentences import NO_DATA, Statement


def test_an_answer_without_data_has_no_row_and_the_others_are_escaped():
    without, some = Statement("Not here.", NO_DATA, "x"), Statement("Use <fused>.", "measured", "x")
    shown = screen({"One step": without, "A & B": some}).data
    assert "One step" not in shown
    assert "<dt>A &amp; B</dt>" in shown
    assert "Use &lt;fused&gt;." in shown
    assert screen({"One step": without}).data == ""
