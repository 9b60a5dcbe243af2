"""The chapter says which of the two steps is faster, with the version of the other library."""

import pytest

from lib.chapters import peers
from lib.records import results

CASE = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "program": "transformers",
    "device": "cpu",
}  # fmt: skip


@pytest.fixture
def records(save_record):
    """Records of three processes in which the peer took 1.2 times as long as ours in fp32, half as long in bf16."""
    for precision, ratio in (("fp32", 1.2), ("bf16", 0.5)):
        for round in (1, 2, 3):
            ours = [20.0 + 0.01 * round + 0.001 * i for i in range(8)]
            theirs = [ratio * ms for ms in ours]
            case, facts = CASE | {"precision": precision}, {"forward_flops": 1e9, "logits_error": [1e-7]}
            save_record("peers", case | {"program": "ours"}, round, total_ms=ours, **facts)
            pairs = {"paired_ms": theirs, "baseline_ms": ours, "peer_version": "5.23.0"}
            save_record("peers", case, round, total_ms=theirs, **pairs, **facts)
    return results.load("peers", "test-1c")


def test_each_precision_has_its_sentence_with_the_version(records):
    said = peers.answer(records)
    first, second = said.text.split(". ")
    assert first.startswith("At size tiny, 1 × 8 tokens, in fp32, our step is 1.20")
    assert "faster than transformers 5.23.0" in first
    assert second.startswith("At size tiny, 1 × 8 tokens, in bf16, our step takes 2.00")
    assert said.verdict == "faster, slower"


def test_a_row_has_both_times_and_the_ratio_of_the_pairs_which_are_printed(records, capsys):
    row = peers.pairs(records).iloc[0]
    assert row["ours_ms"].value == pytest.approx(20, rel=0.01)
    assert row["transformers_ms"].value == pytest.approx(24, rel=0.01)
    assert (row["ratio"].value, row["verdict"]) == (pytest.approx(1.2), "slower")
    assert peers.main([]) == 0
    shown = capsys.readouterr().out
    for words in ("transformers, ms", "5.23.0", "faster than transformers"):
        assert words in shown


def test_without_pairs_it_says_so(save_record, kept, capsys):
    save_record()
    assert peers.pairs(results.load("peers", "test-1c")).empty
    assert peers.main([]) == 1
    assert "`make peers` measures them" in capsys.readouterr().err
    assert peers.main(["--machine", "nowhere"]) == 2
