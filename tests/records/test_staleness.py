"""A stale record is shown as that, and no comparison uses it; what git keeps is never called stale."""

from importlib import metadata

import pytest

from lib.chapters import machines, method
from lib.chapters import records as appendix
from lib.records import __main__, code_digest, long_form, results, staleness
from lib.report import compare, published, sentences, tables, tidy
from lib.report.document import title

CASE = {"variant": "naive", "seq_len": 64, "precision": "fp32"}
OTHER = CASE | {"variant": "sdpa"}
TIMES = {"total_ms": [2.0, 2.1, 2.2, 2.0, 2.1, 2.2]}
OLD = "0" * 16
AROUND = {"commit": "abc", "uncommitted": False}
ANOTHER_TORCH = AROUND | {"torch": "1.0.0+cu999"}


def saved(save_record, **stale):
    """Three rounds of a case and its baseline, those of the case measured so that they are stale."""
    for round in (1, 2, 3):
        save_record(case=CASE, round=round, environment=AROUND | {"torch": staleness.installed()}, **TIMES)
        pairs = {"paired_ms": [1.0, 1.1, 1.2] * 4, "baseline_ms": [2.0, 2.1, 2.2] * 4}
        save_record(case=OTHER, round=round, **TIMES, **pairs, **stale)
    return results.load("attention", "test-1c")


def test_a_record_of_this_code_and_torch_is_not_stale(save_record):
    version = staleness.public(metadata.version("torch"))
    for build in ("", "+cpu", "+cu130"):
        record = results.read(save_record(case=CASE, environment={"torch": version + build}, **TIMES))
        assert staleness.reason(record) == ""
    assert results.load("attention", "test-1c")["total_ms"].iloc[0] == TIMES["total_ms"]


@pytest.mark.parametrize(
    ("stale", "why"),
    [
        ({"code": OLD}, "measured by other code"),
        ({"environment": ANOTHER_TORCH}, "measured with PyTorch 1.0.0"),
        ({"code": OLD, "environment": ANOTHER_TORCH}, "measured by other code and measured with PyTorch 1.0.0"),
    ],
)
def test_what_is_stale_says_why_and_keeps_its_values_to_itself(save_record, stale, why):
    records = saved(save_record, **stale)
    row = tidy.select(records, **OTHER).iloc[0]
    assert (row["stale"], row["status"]) == (why, "stale")
    assert tidy.samples(tidy.select(records, **OTHER), "total_ms") == {}
    assert set(tidy.select(records, **CASE)["stale"]) == {""}
    whole = tidy.select(results.load("attention", "test-1c", whole=True), **OTHER)
    assert list(whole["total_ms"]) == [TIMES["total_ms"]] * 3


def test_no_comparison_uses_a_stale_record(save_record):
    fresh = compare.against_baselines(saved(save_record))
    assert len(fresh) == 1
    records = saved(save_record, code=OLD)
    assert compare.comparison(records, "total_ms", OTHER, CASE) is None
    compared = compare.against_baselines(records)
    assert compared.empty
    assert compare.contrasts(records, "variant", "naive").empty
    own = tidy.medians(records, "total_ms")
    rows = published.same_cases(own, [own.assign(source="another")], list(CASE))
    assert set(rows["variant"]) == {"naive"}


def test_a_stale_baseline_leaves_the_pairs_that_it_ran_in(save_record):
    records = saved(save_record)
    ratio = compare.comparison(records, "total_ms", OTHER, CASE).ratio.value
    for round in (1, 2, 3):
        save_record(case=CASE, round=round, code=OLD, **TIMES)
    records = results.load("attention", "test-1c")
    assert compare.comparison(records, "total_ms", OTHER, CASE).ratio.value == ratio


def test_the_reader_is_told_how_many_why_and_what_measures_them_again(save_record):
    records = saved(save_record, code=OLD, environment=AROUND | {"torch": staleness.installed()})
    said = f"3 of 6 records are stale (measured by other code) and left out; {staleness.AGAIN} measures them again."
    row = tables.show(tidy.medians(records, "total_ms"), "variant seq_len total_ms", "Times")
    assert said in row._repr_html_()
    assert "stale: measured by other code" in row._repr_html_()
    assert said.replace("6", "3", 1) in sentences.values(records, OTHER, "It takes {}.", "total_ms").text
    assert said in sentences.compare(records, OTHER, CASE, "sdpa", "naive").text
    either = dict.fromkeys(OTHER)  # each record counts once where both cases may be any
    assert said in sentences.compare(records, either, {"variant": OTHER["variant"]}, "one", "other").text
    assert title.facts("test-1c")["Stale"] == said
    environments = method.environments([records]).set_index("what")["value"]
    assert environments["stale"] == said
    assert said in machines.side_by_side(["test-1c", "test-2c"]).text


def test_the_lists_show_a_stale_record_whole_and_marked(save_record, kept, capsys):
    saved(save_record, code=OLD)
    assert __main__.main(["list", "--experiment", "attention"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("measured by other code" in line for line in lines) == 3
    assert __main__.main(["list"]) == 0
    assert "stale" in capsys.readouterr().out
    whole = results.load("attention", "test-1c", whole=True)
    shown = appendix.listing({"attention": whole}).data
    assert shown.count("ok, stale: measured by other code") == 3
    assert set(long_form.long({"attention": whole})["stale"]) == {"", "measured by other code"}


def test_of_a_case_measured_anew_in_part_what_is_stale_makes_room(save_record):
    for round in (1, 2, 3):
        save_record(case=CASE, round=round, code=OLD if round > 1 else "", **TIMES)
    records = results.load("attention", "test-1c")
    assert list(records["round"]) == [1]
    assert set(records["stale"]) == {""}


def kept_rounds(save_record, keep, **more):
    for round in (1, 2, 3):
        for case in (CASE, OTHER):
            keep(save_record(case=case, round=round, **TIMES, **more))


def test_what_git_keeps_is_of_older_code_and_not_stale(save_record, keep):
    kept_rounds(save_record, keep, code=OLD, environment=ANOTHER_TORCH)
    records = results.load("attention", "test-1c")
    assert set(records["stale"]) == {""}
    assert compare.comparison(records, "total_ms", OTHER, CASE) is not None
    facts = title.facts("test-1c")
    assert "Stale" not in facts
    assert facts["Code"] == "Older code or another PyTorch measured 6 of 6 records"


def test_records_kept_of_two_versions_of_the_code_are_not_pooled(save_record, keep):
    kept_rounds(save_record, keep, code=OLD)
    keep(save_record(case=CASE, round=4, code="1" * 16, started="2026-02-01T00:00:00+00:00", total_ms=[1.0] * 8))
    records = results.load("attention", "test-1c")
    assert list(tidy.select(records, **CASE)["round"]) == [4]
    assert compare.comparison(records, "total_ms", OTHER, CASE) is None


def test_a_stale_probe_is_no_measure_of_a_quiet_machine(save_record):
    save_record(case=CASE, noise_probe_ms=[2.0] * 20, **TIMES)
    save_record(case=OTHER, noise_probe_ms=[1.0] * 20, environment=ANOTHER_TORCH, **TIMES)
    assert results.quietest("test-1c") == 2.0


def test_one_moment_at_a_higher_clock_rate_is_no_measure_of_a_quiet_machine(save_record):
    for round in range(1, 31):
        save_record(case=CASE, round=round, noise_probe_ms=[0.5 if round == 1 else 2.0] * 20, **TIMES)
    assert results.quietest("test-1c") == 2.0


def test_records_copied_from_another_processor_keep_the_torch_of_its_machine(save_record):
    record = results.read(save_record(case=CASE, environment=ANOTHER_TORCH | {"processor": "of another"}, **TIMES))
    assert staleness.reason(record) == ""


def test_without_torch_installed_its_version_makes_nothing_stale(save_record, monkeypatch):
    monkeypatch.setattr(staleness, "installed", lambda: "")
    record = results.read(save_record(case=CASE, environment=ANOTHER_TORCH, **TIMES))
    assert staleness.reason(record) == ""
    assert staleness.reason(record | {"code": OLD}) == "measured by other code"


def test_a_record_is_held_against_the_code_of_its_own_experiment(save_record):
    record = results.read(save_record(case=CASE, code=code_digest.code("ceilings"), **TIMES))
    assert staleness.reason(record)
