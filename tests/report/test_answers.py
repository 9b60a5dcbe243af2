"""An answer is shown; `test_page` has how they are collected, loaded and quoted."""

from unittest.mock import Mock

from lib.report import answers


def test_an_answer_is_shown_in_bold_unless_it_has_bold_words_of_its_own_or_is_not_to_be_shown(monkeypatch):
    display = Mock()
    monkeypatch.setattr(answers, "display", display)
    answers.answer("adam", "Fused is fastest.")
    answers.answer("step", "It has **bold** words of its own.")
    answers.answer("adam_ms", "4.2", shown=False)
    shown = [call.args[0].get("text/markdown") for call in display.call_args_list]
    assert shown == ["**Fused is fastest.**", "It has **bold** words of its own.", None]


def test_two_sentences_are_quoted_the_first_one_marked_and_tables_and_the_rest_are_apart():
    texts = {"step": "It takes 1 ms.", "step.parts": "**Parts**\n\n| part |", "step.bound": "Half is its bound."}
    texts["step.more"] = "More."
    assert answers.quote(["gone", *texts], texts, "**") == (
        "**It takes 1 ms.** Half is its bound.",
        [texts["step.parts"]],
        ["More."],
    )
    assert answers.quote(["step", "step.more"], texts | {"step": "a" * 500})[0] == "a" * 500 + "\n\nMore."
    assert answers.quote([], texts, "**") == ("", [], [])
    assert answers.fold("Parts", "| part |") == "<details><summary>Parts</summary>\n\n| part |\n\n</details>"
