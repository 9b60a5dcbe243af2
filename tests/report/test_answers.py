"""An answer is shown, kept in the output, collected by key, and quoted."""

import pytest
from nbformat import v4

from lib.records import NotMeasured
from lib.report import answers
from small_report import MACHINE

SVG = '<svg role="img" aria-label="A line &amp; a point"><path d="M 0 0"/></svg>'


@pytest.fixture
def notebook(displayed):
    """A notebook whose cell has the outputs displayed so far."""
    return v4.new_notebook(cells=[v4.new_code_cell("", outputs=displayed), v4.new_markdown_cell("text")])


def test_an_answer_is_shown_in_bold_and_collected(notebook):
    answers.answer("adam", "Fused is fastest.")
    answers.answer("step", "It has **bold** words of its own.")
    shown = [output.data["text/markdown"] for output in notebook.cells[0].outputs]
    assert shown == ["**Fused is fastest.**", "It has **bold** words of its own."]
    assert answers.collect(notebook)["adam"] == "Fused is fastest."


def test_an_answer_that_is_not_shown_is_collected_all_the_same(notebook):
    answers.answer("adam", "4.2 ms", shown=False)
    assert notebook.cells[0].outputs[0].data == {}
    assert answers.collect(notebook) == {"adam": "4.2 ms"}


def test_a_figure_with_a_key_is_collected_as_svg_and_one_without_is_not(notebook):
    answers.figure(SVG, "ladder")
    answers.figure(SVG)
    assert answers.collect(notebook) == {"figure:ladder": SVG}
    assert [output.data["text/plain"] for output in notebook.cells[0].outputs] == ["A line & a point"] * 2


def test_quoting_what_no_notebook_answered_is_not_measured():
    assert answers.quote({"adam": "Fused."}, "adam") == "Fused."
    with pytest.raises(NotMeasured, match="the answer 'step'"):
        answers.quote({"adam": "Fused."}, "step")


@pytest.mark.usefixtures("in_report")
def test_the_answers_of_the_last_report_are_loaded():
    assert answers.saved()["adam"] == answers.saved(MACHINE)["adam"] == "Fused AdamW is fastest."
    assert answers.saved("plain-3c") == {}
