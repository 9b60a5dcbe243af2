"""Every question of the assignment leads to a place in the report, and its answer is counted from records."""

import re

import pytest

from lib import notebooks
from lib.chapters import questions
from lib.chapters.questions import QUESTIONS
from lib.report import tables


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_a_question_leads_to_headings_that_there_are(question):
    assert question.answered_in
    for where in question.answered_in:
        target = re.search(r'href="#([^"]+)"', questions.link_to(*where))[1]
        headings = questions.headings(where[0])
        assert target in {tables.anchor(where[0], heading) for heading in headings}


def test_a_heading_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="got 'Nowhere', expected one of its headings"):
        questions.link_to("02_step", "Nowhere")


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_the_cases_of_a_question_are_of_an_experiment_and_its_fields(question):
    assert set(question.where) <= set(notebooks.fields(question.experiment))


def test_names_are_those_of_the_assignment_each_once():
    names = [question.name for question in QUESTIONS]
    assert len(names) == len(set(names))
    parts = {}
    for question in QUESTIONS:
        parts.setdefault(question.problem, []).append(question.part)
    assert parts["benchmarking_script"] == parts["benchmarking_mixed_precision"] == list("abc")
    assert parts["nsys_profile"] == parts["memory_profiling"] == list("abcde")
    assert parts["torch_compile"] == list("ab")


def test_answers_are_counted_from_records_and_missing_ones_named(save_record):
    for seq_len, status in ((64, "ok"), (128, "ok"), (256, "timeout")):
        case = {"variant": "naive", "seq_len": seq_len}
        save_record(case=case, status=status, **({"total_ms": [1.0]} if status == "ok" else {}))
    save_record(case={"variant": "tiled", "seq_len": 64}, status="timeout")
    frame = questions.table("test-1c").frame
    said = {re.search(r"<small>(.+?)</small>", row.question)[1]: row.said for row in frame.set_axis(
        ["question", "places", "said"], axis=1).itertuples()}  # fmt: skip
    assert said["pytorch_attention"] == "answered, from 2 cases"
    assert said["flash_forward, flash_backward"] == f"{questions.ABSENT}: took longer than its time limit"
    assert said["Adam, in two write-ups"] == questions.ABSENT
