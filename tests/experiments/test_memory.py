"""The memory of a step is that of the formula, and groups of layers keep less of it."""

from dataclasses import replace

import pytest

from lib import catalog
from plain import measured, one

TINY = one("memory", context_length=64)


def test_the_peak_and_what_is_kept_for_the_backward_pass_are_those_of_the_formula():
    metrics = measured(TINY)
    assert metrics["peak_mib"][0] == pytest.approx(metrics["formula_mib"][0], rel=1e-3)
    assert sum(metrics["saved"]["saved_mib"]) == pytest.approx(metrics["kept_formula_mib"][0], rel=0.01)
    assert "paired_ms" not in metrics


def test_groups_keep_less_and_run_in_pairs_with_none_where_there_is_a_backward_pass():
    case = replace(TINY, checkpoint=2)
    metrics = measured(case)
    assert metrics["forward_end_mib"][0] < measured(TINY)["forward_end_mib"][0]
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"])
    assert catalog.baseline("memory", vars(case)) == vars(TINY)
    assert "paired_ms" not in measured(replace(case, mode="no_grad"))
