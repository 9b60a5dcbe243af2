"""Machines stand side by side by the cases that they share, each beside its own ceilings."""

import pytest

from executed import shown
from lib import notebooks
from lib.chapters import machines
from lib.records import results
from lib.report import __main__ as report
from lib.report.document import page
from reference import MACHINE

FIRST, COPY = "test-1c", "test-2c"
SLOWER = 3  # times that the copy takes, in everything
ATTENTION = {"precision": "fp32", "cold": False, "device": "cpu"}


@pytest.fixture
def second(save_record):
    """Two machines, of which the second takes longer in everything and has no records of AdamW."""
    for round in (1, 2, 3):
        times = [1 + 0.001 * round + 0.0001 * i for i in range(8)]
        fused = {"variant": "fused", "shapes": "equal", "amsgrad": True, "cold": False, "device": "cpu"}
        save_record(
            "adam", fused, round, total_ms=times, paired_ms=times, baseline_ms=[4 * ms for ms in times], moved_bytes=1
        )
        for machine, slower in ((FIRST, 1), (COPY, SLOWER)):
            own = [slower * ms for ms in times]
            ceiling = {"rows": 8, "columns": 8, "precision": "fp32", "device": "cpu"}
            for operation, work in (("matmul", {"flops": 2 * 10**9}), ("copy", {"moved_bytes": 10**7})):
                save_record("ceilings", {"operation": operation} | ceiling, round, machine, total_ms=own, **work)
            for seq_len, causal in ((256, True), (256, False), (1024, True)):
                facts = {"forward_flops": 10**9} | ({"causal_flops": 5 * 10**8} if causal else {})
                case = {"seq_len": seq_len, "causal": causal, **ATTENTION}
                naive = [4 * ms for ms in own]
                save_record("attention", {"variant": "naive"} | case, round, machine, total_ms=naive, **facts)
                pairs = {"paired_ms": own, "baseline_ms": naive}
                save_record("attention", {"variant": "sdpa"} | case, round, machine, total_ms=own, **facts, **pairs)
    return machines.chosen(FIRST, f"{FIRST} {COPY}")


def test_each_machine_has_its_own_ceilings(second):
    table = machines.ceilings(second).set_index("machine")
    for name in ("fp32, TFLOP/s", "memory, GB/s"):
        assert table.loc[FIRST, name] == pytest.approx(SLOWER * table.loc[COPY, name])
    assert len(set(table["ridge in fp32, FLOP a byte"].round(6))) == 1


def test_shared_cases_have_a_row_a_machine_and_the_share_of_its_own_ceiling(second):
    """The share counts the scores alone that a query may see."""
    table = machines.shared(second, "attention")
    assert len(table) == 2 * 6
    for case, rows in table.groupby("case"):
        ours, theirs = rows["total_ms"]
        assert theirs.value == pytest.approx(SLOWER * ours.value)
        expected = (75 if "sdpa" in case else 18.75) * (1 if "causal" in case else 2)
        assert [share.value for share in rows["ceiling_percent"]] == pytest.approx([expected] * 2)


def test_verdicts_are_given_machine_by_machine_on_the_same_case(second):
    table = machines.ratios(second)
    sdpa = table[table["pair"] == "sdpa to naive attention"]
    assert list(sdpa["machine"]) == [FIRST, COPY]
    assert len(set(sdpa["case"])) == 1
    assert set(sdpa["verdict"]) == {"faster"}
    adam = table[table["pair"] == "fused to single_tensor"]
    assert list(adam["machine"]) == [FIRST]


def test_the_chapter_has_a_table_of_each_shared_experiment(second):
    chapter = notebooks.CHAPTERS / "84_machines.ipynb"
    said, *_, sheet = [one for one in shown(chapter, machine=FIRST, machines=" ".join(second)) if one is not None]
    assert said.text.startswith(f"2 machines have records here: {FIRST} and {COPY}.")
    assert [one.caption for one in machines.sheets(second)] == [sheet.caption]
    assert sheet.caption.startswith("Attention on each machine")


def test_one_machine_alone_shows_nothing(own_results):
    assert machines.chosen(MACHINE, "") == [MACHINE]
    assert machines.side_by_side([MACHINE]).verdict == "no data"
    assert machines.sheets([MACHINE]) == []
    assert machines.ceilings([MACHINE]).empty
    assert machines.ratios([MACHINE]).empty


def test_an_unknown_machine_is_refused_with_the_nearest_name(own_results, capsys):
    with pytest.raises(ValueError, match=f"machines: got '{MACHINE[:-1]}', expected one of .*nearest: {MACHINE}"):
        machines.chosen(MACHINE, MACHINE[:-1])
    assert report.main(["--machines", MACHINE, MACHINE[:-1]]) == 2
    assert f"nearest: {MACHINE}" in capsys.readouterr().err


def test_the_report_follows_from_the_machines_too(second, monkeypatch):
    monkeypatch.setattr(results, "REFERENCE", results.folder() / "none")
    assert page.inputs(FIRST) != page.inputs(FIRST, COPY)


def test_only_chapters_that_have_the_parameter_are_given_the_machines():
    having = [file.stem for file in notebooks.CHAPTERS.glob("*.ipynb") if "machines" in notebooks.parameters(file)]
    assert having == ["84_machines"]
