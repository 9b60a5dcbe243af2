"""What warm-ups would have changed is read from the first steps of each process."""

import re

import pytest

from lib.chapters import warmup
from lib.records import results

CASE = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip


@pytest.fixture
def starts(save_record):
    """Three cold processes of which the first step takes eleven times as long as the others, and a warm one."""
    for round, earlier in ((1, 0), (2, 0), (3, 0), (4, 1)):
        later = [1 + 0.001 * round + 0.002 * (i % 2) for i in range(29)]
        forward = [11 if earlier == 0 else 99.0, *later]
        parts = {"first_forward_ms": forward, "first_backward_ms": [1.0] * 30, "first_optimizer_ms": [0.5] * 30}
        totals = [sum(step) for step in zip(*parts.values(), strict=True)]
        save_record("warmup", CASE, round, **parts, first_total_ms=totals, earlier_cases=earlier, forward_flops=1)
    return warmup.cold(results.load("warmup", "test-1c"))


def test_means_and_deviations_of_cold_processes_follow_so_many_warm_ups(starts):
    assert list(starts["round"]) == [1, 2, 3]
    table = warmup.after_warmups(starts).set_index(["phase", "warmups"])
    forward = table.loc["forward"]
    assert forward["mean_ms"][0].value == pytest.approx(2.0, rel=5e-3)
    assert forward["deviation_percent"][0].value == pytest.approx(warmup.outlier_percent(11), rel=1e-2)
    assert forward["mean_ms"][1].value == pytest.approx(1.003, rel=1e-3)
    assert forward["ratio"][1].value == pytest.approx(1, abs=1e-3)
    assert forward["ratio"][0].known
    assert table.loc["forward and backward"]["mean_ms"][5].value == pytest.approx(2.003, rel=1e-3)
    assert table.loc["whole step"]["mean_ms"][5].value == pytest.approx(2.503, rel=1e-3)


def test_where_a_process_is_steady_and_where_its_first_step_was_long(starts):
    (row,) = warmup.steady(starts).to_dict("records")
    assert row["steady_from"] == "2, 2, 2"
    assert row["first_ratio"].value == pytest.approx(12.5 / 2.503, rel=1e-2)
    assert warmup.where_it_goes(starts, CASE).text == "Of the first step's extra time, 100% is in the forward pass."
    line = warmup.first_line(starts).text
    assert line == (
        "At tiny, context 8, the first step takes 4.996× (4.991 to 5.001) as long as later ones, steady from step 2: "
        "discard five."
    )
    assert warmup.answer(starts).text.startswith(f"{line} After five warm-up steps, times vary by 0.0")
    assert warmup.without(starts, CASE).text.endswith("after one, 0.0421% after two and 0.0421% after five.")


def test_the_sentence_says_how_many_processes_settle_and_what_to_discard():
    some = "steady from step 2 at the earliest and 4 at the latest in 2 of 3 processes: discard five"
    assert warmup._settled([4, None, 2]) == some
    assert warmup._settled([8, 8, 9]) == "steady from step 8 at the earliest and 9 at the latest: discard 7"
    assert warmup._settled([None, None]) == "and times never settle: discard five"


def test_steps_that_vary_throughout_are_noise_and_no_long_start(starts):
    def said(early, late, count=30):
        times = [1 + (early if i < 15 else late) * (i % 2) for i in range(count)]
        return warmup.noise(starts.assign(first_total_ms=[times] * len(starts)), CASE).text

    assert "that is noise" in said(0.2, 0.2)
    assert "the start lasts longer" in said(0.2, 0.0)
    few = said(0.2, 0.2, count=15)  # ten steps are not compared with themselves
    assert re.fullmatch(r"After five warm-up steps, times vary by [^;]*\.", few)


def test_one_warm_up_is_called_the_same_as_five_only_where_it_is(starts):
    assert warmup.equivalence(starts).verdict == "same"
    slow = starts.copy()
    slow["first_total_ms"] = [
        [ms * (2 if i < 5 else 1) for i, ms in enumerate(times)] for times in slow["first_total_ms"]
    ]
    said = warmup.equivalence(slow)
    assert said.verdict == "slower"
    assert said.text.endswith("as long as after five (longer).")


def test_published_means_are_relative_to_their_own_source():
    table = warmup.published()
    assert (table[table["warmups"] == 5]["ratio"] == 1).all()
    small = table[(table["source"] == "write-up 002") & (table["size"] == "small") & (table["context_length"] == 128)]
    cold = small[(small["warmups"] == 0) & (small["phase"] == "forward")].iloc[0]
    assert cold["ratio"] == pytest.approx(105.1 / 37.73)
    assert cold["deviation_percent"] == pytest.approx(100 * 209.74 / 105.1)
    assert set(table["phase"]) == {"forward", "forward and backward"}
