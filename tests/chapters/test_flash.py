"""Ours is told from both rivals by length, its limit follows from the ceilings, and tiles from the mask."""

import numpy as np
import pytest
import torch

from lib.chapters import flash as chapter
from lib.cost import memory
from lib.records import results
from lib.report import published, tidy
from lib.stats.comparisons import FASTER, UNCLEAR
from lib.stats.intervals import Interval

CASE = {
    "variant": "tiled", "seq_len": 2048, "d_head": 64, "num_heads": 1, "causal": True, "precision": "fp32",
    "device": "cpu",
}  # fmt: skip
PEAK, SPEED = Interval(2e11, 1.9e11, 2.1e11, 9, 3), Interval(1e10, 0.9e10, 1.1e10, 9, 3)
LIMITS = {"fp32": PEAK}, SPEED


@pytest.fixture
def flash(save_timed):
    """Ours takes twice sdpa's time; naive less than ours at 128 tokens, more at 2,048."""
    factors = {("sdpa", 128): 1, ("sdpa", 2048): 1, ("naive", 128): 1.2, ("naive", 2048): 6}
    factors |= {("tiled", 128): 2, ("tiled", 2048): 2}
    for (variant, tokens), factor in factors.items():
        saved = memory.attention_saved_bytes(variant, 1, tokens, 64, True, "fp32") / 2**20
        facts = {"causal_flops": 4 * tokens * (tokens + 1) // 2 * 64, "saved_mib": [saved]}
        sdpa_ms, case = tokens**2 / 1e5, CASE | {"variant": variant, "seq_len": tokens}
        records = save_timed("flash", case, factor * sdpa_ms, variant != "sdpa" and sdpa_ms, **facts)
    return chapter.with_limits(records, *LIMITS)


def test_the_answer_compares_the_longest_case_of_ours_with_both_rivals_and_the_limit(flash):
    case = chapter.headline_case(flash)
    assert case == CASE
    said = chapter.answer(flash, case)
    assert "tiled takes 2.0" in said.text
    assert "the time of sdpa" in said.text
    assert "tiled is 3.0" in said.text
    assert "faster than naive attention" in said.text
    least_ms = 1e3 * max(12 * 64 * 2048 * 2049 / 2 / PEAK.value, 12 * 4 * 2048 * 64 / SPEED.value)
    row = tidy.medians(tidy.select(flash, **case), "limit_percent", "total_ms").iloc[0]
    assert row["limit_percent"].value == pytest.approx(100 * least_ms / row["total_ms"].value, rel=0.01)
    assert row["limit_percent"].low < 0.96 * row["limit_percent"].value  # as uncertain as the ceiling


def test_what_triton_did_comes_first(flash, save_record):
    save_record("flash", CASE | {"variant": "triton", "precision": "bf16", "seq_len": 128}, total_ms=[1.0])
    assert chapter.headline_case(results.load("flash", "test-1c"))["variant"] == "triton"


def test_lengths_are_named_by_their_verdicts_in_the_map_and_what_is_kept_by_both(flash):
    found = chapter.outcomes(flash, CASE)
    assert len(found) == 4
    text = chapter.turning(found, flash, CASE).text
    assert "Tiled against sdpa: slower from 128 to 2,048 tokens." in text
    assert "Tiled against naive: slower at 128, faster at 2,048 tokens." in text
    assert chapter.kept(flash, CASE).text == (
        "For the backward pass of 2,048 tokens tiled keeps 2.008 MiB, naive attention 21.50."
    )


def test_short_sequences_are_limited_by_bytes_and_long_ones_by_flops():
    short, long = ({**CASE, "seq_len": tokens} for tokens in (16, 4096))
    assert chapter.least_ms(short, PEAK, SPEED).value == pytest.approx(12e3 * 4 * 16 * 64 / SPEED.value)
    assert chapter.least_ms(long, PEAK, SPEED).value == pytest.approx(12e3 * 64 * 4096 * 4097 / 2 / PEAK.value)
    assert chapter.least_ms(short, PEAK, SPEED).log_error == pytest.approx(SPEED.log_error)


@pytest.mark.parametrize("tokens", [1, 128, 300])
def test_tiles_under_the_mask_are_those_that_the_program_visits(tokens):
    from lib.flash import blocks as program

    drawn, q_XTD = chapter.tiles(tokens), torch.empty(1, tokens, 8)
    visited = np.zeros_like(drawn, dtype=bool)
    for keys, rows, _ in program._blocks(q_XTD, q_XTD, True, memory.TILE):
        visited[rows.start // memory.TILE :, keys.start // memory.TILE] = True
    assert program.BLOCK == memory.TILE
    assert (visited == (drawn != chapter.SKIPPED)).all()
    seen = np.tril(np.ones((tokens, tokens)))
    for (row, column), kind in np.ndenumerate(drawn):
        at = tuple(slice(n * memory.TILE, (n + 1) * memory.TILE) for n in (row, column))
        assert kind == (chapter.WHOLE if seen[at].all() else chapter.MASKED if seen[at].any() else chapter.SKIPPED)


def test_scores_are_cheaper_to_compute_again_where_the_machine_computes_more_than_it_moves():
    again = chapter.recomputation(CASE, PEAK.value, SPEED.value)
    scores = 2048 * 2049 // 2
    assert list(again["least_ms"]) == [1e3 * 8 * scores / SPEED.value, 1e3 * 128 * scores / PEAK.value]
    assert ", less than the" in chapter.cheaper(CASE, PEAK.value, SPEED.value).text
    assert ", more than the" in chapter.cheaper(CASE, PEAK.value, 1e3 * SPEED.value).text


def test_public_times_stand_below_what_was_measured_or_that_it_was_not(flash, save_record):
    public = published.published_flash()
    assert public["forward_ms"].min() == 4.04
    (best,) = tidy.select(public, num_heads=16)["total_ms"]
    assert best == 5.364
    beside = chapter.beside_public(flash)
    assert len(beside) == len(public) + 2
    assert list(tidy.select(beside, source="this report")["why"]) == ["not measured here"] * 2
    leader = CASE | {"variant": "triton", "num_heads": 16, "seq_len": 16384, "precision": "bf16"}
    save_record("flash", leader, total_ms=[5.0] * 8, causal_flops=1e12)
    own = tidy.select(chapter.beside_public(results.load("flash", "test-1c")), source="this report", variant="triton")
    assert [why for why in own["why"] if not why]


@pytest.mark.usefixtures("closed_figures")
@pytest.mark.parametrize("missing", [[], ["naive"]])
def test_both_panels_of_the_map_have_the_same_lengths_and_gaps_stay_blank(flash, missing):
    found = chapter.outcomes(flash, CASE)
    found = found[~((found["rival"] == "naive") & (found["seq_len"] == 2048)) & ~found["rival"].isin(missing)]
    panels = chapter.draw_map(found).figure.axes
    ratios = {rival: [f"{ratio.value:.2f}" for ratio in rows["ratio"]] for rival, rows in found.groupby("rival")}
    assert [text.get_text() for text in panels[0].texts] == ratios["sdpa"]
    assert [text.get_text() for text in panels[1].texts if text.get_text()] == ratios.get("naive", [])
    assert [text.get_text() for text in panels[0].get_yticklabels()] == ["128", "2,048"]


@pytest.mark.usefixtures("closed_figures")
def test_the_map_puts_unclear_ratios_in_brackets(flash):
    found = chapter.outcomes(flash, CASE)
    decided, unclear = (chapter.draw_map(found.assign(verdict=verdict)).figure.axes for verdict in (FASTER, UNCLEAR))
    for before, after in zip(decided, unclear, strict=True):
        assert [text.get_text() for text in after.texts] == [f"({text.get_text()})" for text in before.texts]
