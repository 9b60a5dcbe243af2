"""Comparisons are listed by verdict, and the unclear ones get a sweep of their own."""

import math
import os

import pytest

from lib.records import results
from lib.report import __main__, compare, verdicts
from lib.stats.comparisons import PAIRS, Comparison
from lib.stats.intervals import Interval
from lib.sweep import __main__ as sweep
from lib.sweep import sweep_file
from reference import MACHINE

SHIFTS = {"fused": (0.49, 0.50, 0.51), "foreach": (1.0, 1.2, 1.1)}


def adam(variant, num_params=1):
    return {
        "variant": variant, "shapes": "equal", "num_params": num_params, "param_size": 16, "amsgrad": True,
        "cold": False, "device": "cpu",
    }  # fmt: skip


@pytest.fixture
def measured(save_record):
    def save(round, variants=SHIFTS):
        for variant in variants:
            for num_params in (1, 2):
                times = [SHIFTS[variant][round % 3] * (1 + i / 1000) for i in range(9)]
                save_record(
                    "adam", adam(variant, num_params), round, warmup_ms=[1.0], total_ms=times, paired_ms=times,
                    baseline_ms=[1.0] * 9, started=f"20{26 + 30 * (round > 3)}-01-01T00:00:00+00:00",
                )  # fmt: skip

    for round in (1, 2, 3):
        save(round)
    return save


def test_the_sweep_of_the_unclear_has_exactly_them_in_further_rounds_until_it_was_measured(
    measured, own_results, capsys
):
    assert __main__.main(["verdicts"]) == 0
    *_, unclear, said = capsys.readouterr().out.split("\n\n")
    assert unclear.startswith("unclear: 2\n")
    kernels = sweep_file.load("unclear")
    cases = {(case.variant, case.num_params) for kernel in kernels for case in kernel.cases}
    assert cases == {("foreach", 1), ("foreach", 2)}
    most = max(kernel.round for kernel in kernels)
    assert 6 <= most <= verdicts.MOST
    assert {kernel.parameters["pairs"] for kernel in kernels} == {8}  # nine, to a power of two
    new = [kernel for kernel in kernels if kernel.round > 3]
    seconds = sum(len(kernel.cases) for kernel in new)  # each record took one
    assert f"{math.ceil(seconds / 60)} min and the start of processes ({len(new)})" in said
    assert sweep.main(["unclear.yaml", "--dry"]) == 0
    text = (own_results.parent / "unclear.yaml").read_text()
    measured(4, ["foreach"])
    assert __main__.main(["verdicts"]) == 0
    assert "already measured" in capsys.readouterr().out
    assert (own_results.parent / "unclear.yaml").read_text() == text


def test_where_nothing_is_unclear_no_sweep_is_written(save_record, own_results, capsys):
    for round in (1, 2, 3):
        save_record("adam", adam("fused"), round, paired_ms=[0.5] * 9, baseline_ms=[1.0] * 9, total_ms=[0.5] * 9)
    assert __main__.main(["verdicts"]) == 0
    assert "nothing is unclear" in capsys.readouterr().out
    assert os.listdir(own_results.parent) == ["results"]


def test_cases_compared_by_medians_come_with_their_baselines_each_in_processes_of_its_own(save_record, own_results):
    for round in (1, 2, 3):
        for allocator, ms in (("keeps", 1.0), ("default", (0.9, 1.3, 1.0)[round - 1])):
            case = {"program": "naive_attention", "allocator": allocator, "device": "cpu"}
            save_record("allocator", case, round, total_ms=[ms * (1 + i / 1000) for i in range(9)])
    verdicts.write_unclear("test-1c", verdicts.tables("test-1c"))
    kernels = [kernel for kernel in sweep_file.load("unclear") if kernel.round == 4]
    assert sorted(case.allocator for kernel in kernels for case in kernel.cases) == ["default", "keeps"]
    assert len(kernels) == 2


@pytest.mark.parametrize(("ratio", "error", "rounds"), [(1.5, 0.2, 11), (1.04, 0.2, 12), (1.5, 0.05, 6)])
def test_as_many_rounds_as_the_ratio_needs(ratio, error, rounds):
    found = Comparison(Interval(ratio, math.nan, math.nan, 30, 3), error, 4.0, PAIRS)
    assert verdicts.rounds_needed(found) == rounds


def test_each_comparison_of_the_records_in_git_has_a_line_and_no_sweep(own_results, capsys, monkeypatch):
    records = results.load("adam", MACHINE)
    compared = compare.against_baselines(records)
    monkeypatch.setattr(verdicts, "tables", {MACHINE: {"adam": (records, compared)}}.__getitem__)
    assert __main__.main(["verdicts"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert sum(compare.PAIRS in line or compare.MEDIANS in line for line in lines) == len(compared) > 20
    assert "all its records come from git" in last
    assert not (own_results.parent / "unclear.yaml").exists()
