"""The programs of the allocator's experiment are cases of the others, each under one allocator."""

import pytest

from lib.experiments import cases, measure
from lib.experiments.allocator import PROGRAMS, Allocator
from lib.instruments import allocator
from lib.records import results
from lib.timing import Plan


def test_each_program_is_a_case_of_another_experiment():
    for case in cases.grid("allocator", program=list(PROGRAMS), allocator="keeps", device="cpu"):
        assert case.inner.device == "cpu"
        assert case.predicted_bytes() == case.inner.predicted_bytes() > 0


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
