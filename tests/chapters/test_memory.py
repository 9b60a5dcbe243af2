"""Records of memory become tables, figures and sentences that say what they hold, and say so where there are none."""

import matplotlib.pyplot as plt
import pandas as pd

from lib.chapters import memory
from lib.instruments import memory_timeline
from lib.instruments.memory_timeline import Allocation, History
from lib.records import results
from lib.report import plots
from lib.report.published import published_table

CASE = {
    "size": "tiny", "context_length": 64, "batch_size": 4, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "fused", "mode": "train_step", "device": "cpu", "checkpoint": 0,
}  # fmt: skip
HISTORY = History()
HISTORY.began, HISTORY.older = 0, 2**20
HISTORY.events = [(1_000_000, 2**21), (2_000_000, 2**21), (3_000_000, -(2**22))]
HISTORY.allocations = [Allocation(2**21, "attention.naive", "aten::bmm", "forward", event) for event in (0, 1)]
HISTORY.marks = [("forward", 1_500_000, 1), ("backward", 2_500_000, 2), ("optimizer", 3_000_000, 3)]
FOLLOWED = HISTORY.tables(count=10)


def records(save_record, *changes, **metrics):
    metrics = {"peak_mib": [5.0], "formula_mib": [5.0], "scores_mib": [2.0], **FOLLOWED} | metrics
    for change in changes:
        own = {**metrics, **{name: value for name, value in change.items() if name.endswith("_mib")}}
        fields = {name: value for name, value in change.items() if name in CASE}
        save_record("memory", CASE | fields, **own)
    return results.load("memory", "test-1c")


def test_a_record_holds_the_timeline_its_phases_and_the_largest_alike_counted():
    assert FOLLOWED["timeline"] == {"instant_us": [0, 1000, 2000, 3000], "live_mib": [1, 3, 5, 1]}
    assert FOLLOWED["phases"]["end_us"] == [1500, 2500, 3000]
    assert FOLLOWED["largest"] == {
        "each_mib": [2.0], "count": [2], "function": ["attention.naive"], "operator": ["aten::bmm"],
        "phase": ["forward"],
    }  # fmt: skip


def test_a_thinned_series_keeps_its_ends_and_every_high_and_low():
    values = [i % 7 for i in range(5000)]
    values[1234], values[4321] = 100, -5
    kept = memory_timeline.thinned_indices(values, 60)
    assert len(kept) <= 60
    assert kept == sorted(set(kept))
    assert {0, 1234, 4321, 4999} <= set(kept)
    assert memory_timeline.thinned_indices([1, 2], 60) == [0, 1]


def test_the_kinds_of_bytes_differ_in_more_than_colour():
    hatches = [plots.HATCHES[colour] for colour in memory.KINDS.values()]
    assert len(set(hatches)) == len(memory.KINDS)


def test_kinds_of_bytes_are_told_by_their_modules():
    table = {
        "kind": ["parameters", *["activations"] * 5],
        "module": ["", "layers.*.attn.q_proj", "layers.*.ffn", "layers.*.ln1", "lm_head", "Global"],
        "part_mib": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    }
    found = memory.breakdown(pd.Series({"breakdown": table}))
    assert found["parameters"] == 1
    assert (found["attention"], found["feed-forward"], found["norms and residuals"]) == (2, 4, 8)
    assert found["embedding, head, loss"] == 48
    assert found["gradients"] == 0


def test_the_figure_of_a_timeline_shows_the_highest_point(save_record):
    ax = memory.timelines(records(save_record, {}))
    assert any(list(line.get_ydata()) == [5] and list(line.get_xdata()) == [2.0] for line in ax.lines)
    assert [text.get_text() for text in ax.texts] == ["forward", "backward", "optimizer"]
    plt.close(ax.figure)


def test_predictions_grow_with_the_context_and_a_published_peak_has_its_own_row():
    table = memory.predictions(["xl"], [128, 256])
    assert list(table["context_length"]) == [128, 128, 256, 256]
    assert (table["no_grad_gib"] < table["forward_gib"]).all()
    assert (table["forward_gib"] < table["train_step_gib"]).all()
    published = memory.beside_published()
    assert len(published) == len(published_table("memory"))
    assert published["published_percent"].between(1, 100).all()


def test_sentences_say_what_the_records_hold(save_record):
    phases = {"forward_peak_mib": [3.0], "backward_peak_mib": [5.0], "optimizer_peak_mib": [2.0]}
    ends = {"forward_end_mib": [3.0], "backward_end_mib": [1.0], "optimizer_end_mib": [1.0]}
    found = records(
        save_record, {**phases, **ends}, {"precision": "bf16", "peak_mib": [4.0]},
        {"context_length": 32, "peak_mib": [2.5]}, {"checkpoint": 2, "peak_mib": [4.0], "forward_end_mib": [1.5]},
    )  # fmt: skip
    assert "is in its backward" in memory.phases_told(found, CASE).text
    assert "falls by 2" in memory.phases_told(found, CASE).text
    assert "a step by -20.0%" in memory.narrower(found, CASE, {"train_step": "a step"}).text
    assert "an exponent of 1.00" in memory.growth(found, CASE, "the peak").text
    assert "32 tokens" not in memory.growth(found, CASE, "the peak").text
    (saved,) = memory.saved(found, CASE)
    assert "Groups of 2 save 50.0% of what is alive after the forward pass and 20.0% of the peak" in saved.text
    assert "The least peak is that of groups of 2" in memory.best_group(found, CASE).text
    assert "2 of the 2 largest allocations have just that, made by attention.naive" in memory.scores(found, CASE).text
    assert "the formula is at most 100% too high" in memory.agreement(found).text
    assert memory.residual("xl", 256).text.endswith("= 6.25 MiB.")
