"""Machines stand side by side by the cases that they share, each beside its own ceilings."""

import pytest

from lib import notebooks
from lib.chapters import machines
from lib.records import code_digest, results
from lib.report import __main__ as report
from lib.report.document import page
from reference import MACHINE

COPY = "test-9c"
SLOWER = 3  # times that the copy takes, in everything
KEPT = ("attention", "ceilings")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A machine made of the reference's records of some experiments, all of whose times are longer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", str(tmp_path_factory.mktemp("two") / "results"))
        for experiment in KEPT:
            for file in results.files(MACHINE, experiment):
                record = results.read(file)
                metrics = {
                    name: [SLOWER * ms for ms in value] if name.endswith("_ms") else value
                    for name, value in record["metrics"].items()
                }
                environment = record["environment"] | {"hardware": "a slower one", "machine": COPY}
                kept = {name: record[name] for name in ("experiment", "case", "round", "status", "started")} | {
                    "code": code_digest.code(experiment)
                }
                results.save(machine=COPY, metrics=metrics, environment=environment, seconds=1.0, **kept)
        yield machines.chosen(MACHINE, f"{MACHINE} {COPY}")


def test_each_machine_has_its_own_ceilings(second):
    table = machines.ceilings(second).set_index("machine")
    for name in ("fp32, TFLOP/s", "memory, GB/s"):
        assert table.loc[MACHINE, name] == pytest.approx(SLOWER * table.loc[COPY, name])
    assert len(set(table["ridge in fp32, FLOP a byte"].round(6))) == 1


def test_shared_cases_have_a_row_a_machine_and_the_share_of_its_own_ceiling(second):
    table = machines.shared(second, "attention")
    assert len(table) > 10
    for _, rows in table.groupby("case"):
        ours, theirs = rows["total_ms"]
        assert theirs.value == pytest.approx(SLOWER * ours.value)
        shares = [share.value for share in rows["ceiling_percent"]]
        assert shares[0] == pytest.approx(shares[1])


def test_the_share_of_the_ceiling_of_causal_attention_counts_the_scores_that_a_query_may_see(save_record):
    ceiling = {"operation": "matmul", "rows": 8, "columns": 8, "precision": "fp32", "device": "cpu"}
    for name in ("test-1c", "test-2c"):
        save_record("ceilings", ceiling, machine=name, total_ms=[1.0] * 6, flops=2 * 10**9)
        for causal in (True, False):
            case = {"variant": "sdpa", "seq_len": 64, "causal": causal, "precision": "fp32", "cold": False}
            facts = {"forward_flops": 10**9} | ({"causal_flops": 5 * 10**8} if causal else {})
            save_record("attention", case, machine=name, total_ms=[2.0] * 6, **facts)
    table = machines.shared(["test-1c", "test-2c"], "attention").set_index("case")
    shares = table["ceiling_percent"].map(lambda share: share.value)
    assert shares["causal"].tolist() == pytest.approx([37.5] * 2)
    assert sorted(set(shares.round(6))) == [37.5, 75]


def test_verdicts_are_given_machine_by_machine_on_the_same_case(second):
    table = machines.ratios(second)
    sdpa = table[table["pair"] == "sdpa to naive attention"]
    assert list(sdpa["machine"]) == [MACHINE, COPY]
    assert len(set(sdpa["case"])) == 1
    assert set(sdpa["verdict"]) == {"faster"}
    adam = table[table["pair"] == "fused to single_tensor"]
    assert list(adam["machine"]) == [MACHINE]


def test_only_shared_experiments_have_a_table(second):
    (sheet,) = machines.sheets(second)
    assert sheet.caption.startswith("Attention on each machine")
    assert machines.side_by_side(second).text.startswith(f"2 machines have records here: {MACHINE} and {COPY}.")


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


def test_the_report_follows_from_the_machines_too(second):
    assert page.inputs(MACHINE) != page.inputs(MACHINE, COPY)


def test_only_chapters_that_have_the_parameter_are_given_the_machines():
    having = [file.stem for file in notebooks.CHAPTERS.glob("*.ipynb") if "machines" in notebooks.parameters(file)]
    assert having == ["84_machines"]
