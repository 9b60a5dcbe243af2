"""A column is called by its own wording, or by the words and the unit of its name."""

import pytest

from lib.report import headings
from lib.report.headings import heading, is_quantity


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("backward_ms", "backward, ms"),
        ("total_ms", "whole, ms"),
        ("own_width_mib", "own width, MiB"),
        ("num_heads", "heads"),
        ("single_tensor", "single_tensor"),
        ("2.7B", "2.7B"),
        ("case", "case"),
    ],
)
def test_a_name_is_worded_by_rule_or_by_exception_and_a_value_stays(name, said):
    assert heading(name) == said


def test_an_exception_says_something_else_than_the_rule(monkeypatch):
    exceptions = headings.HEADINGS
    monkeypatch.setattr(headings, "HEADINGS", {})
    assert not {name for name, said in exceptions.items() if heading(name) == said}


def test_a_quantity_has_a_unit_or_a_wording():
    assert is_quantity("peak_mib")
    assert is_quantity("out_error")
    assert not is_quantity("variant")
