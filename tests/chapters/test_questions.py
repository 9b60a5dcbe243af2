"""Every question of the assignment has an answer from records, a place in the report, and a truthful status."""

import itertools
import re

import reference
from lib import notebooks
from lib.chapters import questions
from lib.chapters.questions import AT_SIZE, NOT_RUN, QUESTIONS, SMALLER
from lib.records import results
from lib.report import tables

MACHINE = "test-1c"


def test_a_question_leads_to_a_heading_that_there_is_and_asks_for_fields_of_its_experiment():
    for question in QUESTIONS:
        chapter, target = question.shown_in[0], re.search(r'href="#([^"]+)"', questions.link_to(*question.shown_in))[1]
        assert target in {tables.anchor(chapter, heading) for heading in questions.headings(chapter)}, question.name
        assert {*question.where, *question.asked} <= set(notebooks.fields(question.experiment)), question.name


def test_names_are_those_of_the_assignment_each_once():
    names = [question.name for question in QUESTIONS]
    assert len(names) == len(set(names))
    parts = {}
    for question in QUESTIONS:
        parts.setdefault(question.problem, []).append(question.part)
    assert parts["benchmarking_script"] == parts["benchmarking_mixed_precision"] == list("abc")
    assert parts["nsys_profile"] == parts["memory_profiling"] == list("abcde")
    assert parts["torch_compile"] == list("ab")


def test_the_status_compares_the_cases_run_with_those_asked(save_record):
    (question,) = (one for one in QUESTIONS if one.problem == "pytorch_attention")

    def status():
        return questions.status(question, questions.Machine(MACHINE))

    assert status() == NOT_RUN
    asked = list(itertools.product(question.asked["seq_len"], question.asked["d_head"]))
    for missing, (seq_len, d_head) in zip(reversed(range(len(asked))), asked, strict=True):
        ended = {"status": "oom"} if seq_len == asked[-1][0] else {"total_ms": [1.0]}
        save_record(case={"variant": "naive", "seq_len": seq_len, "d_head": d_head, "batch_size": 8}, **ended)
        if missing in (len(asked) - 1, 1):
            assert status() == SMALLER
    assert status() == AT_SIZE


def test_the_peaks_are_those_of_contexts_at_which_both_modes_were_measured(save_record):
    step = {"size": "small", "batch_size": 4, "precision": "fp32", "checkpoint": 0, "device": "cpu"}
    for mode, tokens, mib in (("train_step", 128, 20.0), ("forward", 128, 10.0), ("train_step", 256, 30.0)):
        save_record("memory", step | {"mode": mode, "context_length": tokens}, total_ms=[1.0] * 6, peak_mib=[mib])
    said = questions._peaks(questions.Machine(MACHINE)).text
    assert said == "At small and 128 tokens, a training step peaks at 20.00 MiB, a forward pass at 10.00."


def test_without_records_only_what_needs_none_is_answered(own_results):
    answers = questions.Answers(MACHINE)
    answered = [one.name for one, _, mark in answers.rows if mark != NOT_RUN]
    assert answered == [
        "memory_profiling (d)",
        *(f"communication_accounting ({part})" for part in "abcd"),
        "optimizer_state_sharding_accounting (c)",
    ]
    assert answers.summary().text.startswith(f"Of {len(QUESTIONS)} questions, 6 are answered at the size asked")
    assert answers._repr_html_().count("<dt>") == len(QUESTIONS)


def test_the_reference_answers_all_but_what_needs_a_gpu(own_results, rendered):
    section = re.search(r'<section id="12_questions".*?</section>', rendered.read_text(), re.DOTALL)[0]
    unanswered = [row.partition("</dt>")[0] for row in section.split("<dt>")[1:] if f"<b>{NOT_RUN}</b>" in row]
    assert len(unanswered) == 1
    assert "<small>flash_forward (Triton)</small>" in unanswered[0]
    assert "<data data-q=" in section
    around = results.read(results.files(reference.MACHINE)[0])["environment"]
    assert f"these answers are from {around['hardware']}." in section
