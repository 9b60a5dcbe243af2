"""The programs of the allocator's experiment are cases of the others, each under one allocator."""

import pytest

from lib.experiments import cases, measure
from lib.experiments.allocator import PROGRAMS, Allocator
from lib.instruments import allocator
from lib.records import results
from lib.timing import Plan


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_is_a_case_of_another_experiment(program):
    (case,) = cases.grid("allocator", program=program, allocator="keeps", device="cpu")
    assert case.inner.device == "cpu"
    assert case.predicted_bytes() == case.inner.predicted_bytes() > 0


def test_unknown_values_are_refused():
    with pytest.raises(ValueError, match=r"program: got 'adam', .*nearest: "):
        Allocator("adam", "keeps", "cpu")
    with pytest.raises(ValueError, match=r"allocator: got 'keep', .*nearest: keeps"):
        Allocator("fused_adam", "keep", "cpu")


@pytest.mark.skipif(not allocator.can_keep(), reason="only glibc can keep freed memory")
def test_a_record_says_which_allocator_it_had_and_counts_page_faults(own_results, one_thread):
    case = Allocator("sdpa_attention", "keeps", "cpu")
    with measure.recording(case, 1) as record:
        work = record.setup()
        record.metrics |= measure.errors(work)
        record.metrics |= measure.times(work, Plan(1, 6))
    found = results.read(measure.record_path(case, 1))
    assert found["environment"]["allocator"] == "keeps"
    assert len(found["metrics"]["minor_faults"]) == 6
    assert "freed memory kept" in results.load("allocator", found["environment"]["machine"])["hardware"][0]
