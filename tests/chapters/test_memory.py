"""Records of memory become tables, figures and sentences that say what they hold, and say so where there are none."""

import pandas as pd
import pytest

from lib.chapters import memory
from lib.instruments import memory_timeline
from lib.instruments.memory_timeline import Allocation, History
from lib.records import results
from lib.report import plots

pytestmark = pytest.mark.usefixtures("closed_figures")

CASE = {
    "size": "tiny", "context_length": 64, "batch_size": 4, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "fused", "mode": "train_step", "device": "cpu", "checkpoint": 0,
}  # fmt: skip
HISTORY = History()
HISTORY.began, HISTORY.older = 0, 2**20
HISTORY.events = [(1_000_000, 2**21), (2_000_000, 2**21), (3_000_000, -(2**22))]
HISTORY.allocations = [Allocation(2**21, "attention.naive", "aten::bmm", "forward", event) for event in (0, 1)]
HISTORY.marks = [("forward", 1_500_000, 1), ("backward", 2_500_000, 2), ("optimizer", 3_000_000, 3)]
PARTS = {  # of the peak: weights, gradients, moments and all else in MiB
    "kind": ["parameters", "gradients", "optimizer states", "activations", "temporaries"],
    "module": [""] * 5, "part_mib": [1.0, 1.0, 2.0, 0.5, 0.5],
}  # fmt: skip


@pytest.fixture
def records(save_record):
    """Steps and inference in fp32 and bf16, and a step with groups of checkpointed layers."""
    peaks = [
        ({}, 5.0), ({"precision": "bf16"}, 4.0), ({"mode": "no_grad"}, 2.0),
        ({"mode": "no_grad", "precision": "bf16"}, 2.5), ({"checkpoint": 2}, 4.0),
    ]  # fmt: skip
    for change, mib in peaks:
        save_record(
            "memory", CASE | change, peak_mib=[mib], formula_mib=[5.0], scores_mib=[2.0], forward_end_mib=[3.0],
            parameters=2**20 // 4, breakdown=PARTS, environment={"memory_mib": 24 * 2**10}, **HISTORY.tables(count=10),
        )  # fmt: skip
    return results.load("memory", "test-1c")


def test_a_thinned_series_keeps_its_ends_and_every_high_and_low():
    values = [i % 7 for i in range(5000)]
    values[1234], values[4321] = 100, -5
    kept = memory_timeline.thinned_indices(values, 60)
    assert len(kept) <= 60
    assert kept == sorted(set(kept))
    assert {0, 1234, 4321, 4999} <= set(kept)
    assert memory_timeline.thinned_indices([1, 2], 60) == [0, 1]


def test_the_four_parts_of_the_peak_add_up_and_their_bars_differ_in_more_than_colour():
    record = pd.Series({"breakdown": PARTS})
    assert list(memory.parts(record).values()) == [1, 1, 2, 1]
    assert len({plots.HATCHES[hue] for _, hue, _ in memory.PARTS.values()}) == len(memory.PARTS)
    ax = memory.bars(plots.axes()[0], record)
    assert [text.get_text() for text in ax.texts] == ["1 MiB, 20%", "1 MiB, 20%", "2 MiB, 40%", "1 MiB, 20%"]
    assert memory.parts(pd.Series(dtype=object)) == {}


def test_the_figure_of_a_timeline_shows_the_highest_point(records):
    ax = memory.timelines(records.head(1))
    assert any(list(line.get_ydata()) == [5] and list(line.get_xdata()) == [2.0] for line in ax.lines)
    assert [text.get_text() for text in ax.texts] == ["forward", "backward", "optimizer"]


def test_sentences_say_what_the_records_hold(records):
    said = memory.answer(records, CASE).text
    assert said.startswith("A step of tiny peaks at 5.000 MiB (0 M parameters, 4 × 64 tokens, fp32)")
    assert said.endswith("16 bytes per parameter make up 80% of that.")
    assert memory.narrower(records, CASE).text == (
        "bf16 lowers a training step's peak by 20% but raises inference's by 25% (tiny, 64 tokens); by the formula it "
        "halves scores and the arrays of SwiGLU and adds half-precision copies of the weights."
    )
    saved = "Checkpointing in groups of 2 layers lowers the peak by 20% (tiny, 64 tokens)."
    assert memory.saved(records, CASE).text == saved
    made = "2 of the 2 largest allocations have just that, made by attention.naive"
    assert made in memory.scores(records, CASE).text
    assert "the formula predicts the peaks of 5 cases to within 150%" in memory.agreement(records).text
    assert memory.residual("xl", 256).text.endswith("= 6.25 MiB.")
    line = memory.first_line(records)
    assert line.text == (
        "5.000 MiB (tiny, 64 tokens) = weights 1 + gradients 1 + Adam 2 + other 1; on tiny at 64 tokens bf16 −20%, "
        "checkpointing −20%. The largest step that fits here, by formula: large at 256 tokens."
    )
    assert [one.shown for one in line.quantities] == ["5.000", "1", "1", "2", "1", "20%", "20%"]
