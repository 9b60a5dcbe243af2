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


@pytest.fixture
def second(save_record):
    """Two machines, of which the second takes longer, measured a longer case too, and has no records of AdamW."""
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
            for seq_len, causal in ((256, True), (256, False), (1024, True), *[(4096, True)] * (machine == COPY)):
                facts = {"forward_flops": 10**10 if seq_len == 4096 else 10**9} | (
                    {"causal_flops": 5 * 10**8} if causal else {}
                )
                case = {"seq_len": seq_len, "causal": causal, "precision": "fp32", "cold": False, "device": "cpu"}
                naive = [4 * ms for ms in own]
                save_record("attention", {"variant": "naive"} | case, round, machine, total_ms=naive, **facts)
                pairs = {"paired_ms": own, "baseline_ms": naive}
                save_record("attention", {"variant": "sdpa"} | case, round, machine, total_ms=own, **facts, **pairs)
    return machines.chosen(FIRST, f"{FIRST} {COPY}")


def test_machines_are_compared_case_by_case_each_beside_its_own_ceilings(second):
    """The share of a ceiling counts the scores alone that a query may see."""
    ceilings = machines.ceilings(second).set_index("machine")
    for name in ("fp32, TFLOP/s", "memory, GB/s"):
        assert ceilings.loc[FIRST, name] == pytest.approx(SLOWER * ceilings.loc[COPY, name])
    assert len(set(ceilings["ridge in fp32, FLOP a byte"].round(6))) == 1
    shared = machines.shared(second, "attention")
    assert len(shared) == 2 * 6
    for case, rows in shared.groupby("case"):
        ours, theirs = rows["total_ms"]
        assert theirs.value == pytest.approx(SLOWER * ours.value)
        expected = (75 if "sdpa" in case else 18.75) * (1 if "causal" in case else 2)
        assert [share.value for share in rows["ceiling_percent"]] == pytest.approx([expected] * 2)
    ratios = machines.ratios(second)[["pair", "machine", "verdict", "case"]].to_numpy().tolist()
    sdpa, adam = "sdpa to naive attention", "fused to single_tensor"
    assert [row[:3] for row in ratios] == [[sdpa, FIRST, "faster"], [sdpa, COPY, "faster"], [adam, FIRST, "faster"]]
    assert ratios[0][3] == ratios[1][3]


def test_the_chapter_has_a_table_of_each_shared_experiment(second, monkeypatch):
    said, *_, sheet = shown(notebooks.CHAPTERS / "84_machines.ipynb", machine=FIRST, machines=" ".join(second))
    assert said.text.startswith(f"2 machines have records here: {FIRST} and {COPY}.")
    assert sheet.caption.startswith("Attention on each machine")
    monkeypatch.setattr(results, "REFERENCE", results.folder() / "none")
    assert page.inputs(FIRST) != page.inputs(FIRST, COPY), "the report follows from them too"


def test_one_machine_alone_shows_nothing(own_results):
    shows = shown(notebooks.CHAPTERS / "84_machines.ipynb", machine=MACHINE)
    assert {one._repr_html_() for one in shows} == {""}


def test_an_unknown_machine_is_refused_with_the_nearest_name(own_results, capsys):
    with pytest.raises(ValueError, match=f"machines: got '{MACHINE[:-1]}', expected one of .*nearest: {MACHINE}"):
        machines.chosen(MACHINE, MACHINE[:-1])
    assert report.main(["--machines", MACHINE, MACHINE[:-1]]) == 2
    assert f"nearest: {MACHINE}" in capsys.readouterr().err
