"""The published tables name their sources and hardware, and their shares of a peak are plain arithmetic."""

import pandas as pd
import pytest

from lib.paths import PUBLISHED
from lib.report import published

TABLES = sorted({file.stem for file in PUBLISHED.glob("*.csv")} - {"datasheets", "sources"})
SOURCES = set(published.load("sources")["source"])
SHEETS = published.load("datasheets")


@pytest.mark.parametrize("name", TABLES)
def test_every_number_has_a_source_that_is_listed_and_a_hardware_that_is_known_or_named_as_unknown(name):
    table = published.load(name)
    assert set(table["source"]) <= SOURCES
    if name != "doubts":
        assert set(table["hardware"]) <= set(SHEETS["hardware"])


def test_a_peak_has_an_address_and_hardware_without_one_a_reason():
    has_peak = SHEETS["tflops"].notna()
    assert SHEETS.loc[has_peak, "source"].str.contains("https://").all()
    assert SHEETS.loc[has_peak, ["device", "precision", "memory_gb_per_s"]].notna().all(axis=None)
    assert SHEETS.loc[~has_peak, "convention"].notna().all()
    assert not SHEETS.duplicated(["hardware", "precision"]).any()


def test_the_share_of_the_peak_is_plain_arithmetic():
    steps = published.list_steps()
    # large on an A100, fp32: 36 layers, d_model 1280, d_ff 5120, 10,000 words, 4 x 512 tokens
    weights = 36 * (4 * 1280**2 + 3 * 1280 * 5120) + 10_000 * 1280
    flops = 6 * weights * 2048 + 3 * 36 * 4 * 4 * 512**2 * 1280
    (a100,) = steps.query("hardware == 'A100 40GB' and size == 'large' and context_length == 512").query(
        "precision == 'fp32'"
    )["utilisation_percent"]
    assert a100 == pytest.approx(100 * flops / 0.9929 / 19.5e12)
    # xl on two H100, fp32: 48 layers, d_model 1600, d_ff 6400, 16 x 128 tokens together
    weights = 48 * (4 * 1600**2 + 3 * 1600 * 6400) + 10_000 * 1600
    flops = 6 * weights * 2048 + 3 * 48 * 4 * 16 * 128**2 * 1600
    (ranks,) = steps.query("variant == 'flat' and batch_size == 16")["utilisation_percent"]
    assert ranks == pytest.approx(100 * flops / 0.52303 / (2 * 67e12))
    # AdamW for the 423 M parameters of medium
    parameters = 24 * (4 * 1024**2 + 3 * 1024 * 4096) + 2 * 10_000 * 1024 + 49 * 1024
    (optimizer,) = steps.query("phase == 'optimizer' and not compiled")["memory_percent"]
    assert optimizer == pytest.approx(100 * 28 * parameters / 0.02407 / 3350e9)


def test_a_write_up_has_the_name_of_its_repository_and_an_arithmetic_that_cannot_be_what_it_is_called():
    assert published.addresses() == {"write-up 004": "yyin-dev/cs336-a2"}
    steps = published.list_steps()
    renamed = steps[steps["called"] != ""]
    assert set(renamed["called"] + renamed["precision"] + renamed["source"]) == {"fp32tf32write-up 003"}


def test_attention_counts_the_scores_that_a_query_may_see():
    attention = published.list_attention().set_index("source")
    # 16 heads of size 64: two products forward, and five backward with those that flash computes again
    flops = 7 * 2 * 16 * (16384 * 16385 / 2) * 64
    best = attention.loc["course leaderboard 2025 best"]
    assert best["utilisation_percent"] == pytest.approx(100 * flops / 5.364e-3 / 989.5e12)
    assert attention.loc["ShibukiZero/assignment2-systems", "utilisation_percent"].isna().all()


def test_this_machine_has_the_peaks_of_its_datasheet_or_else_its_best_rates():
    h100 = published.own_peaks("unheard-of", "NVIDIA H100 80GB HBM3").set_index("precision")
    assert h100["tflops"].to_dict() == {"fp32": 67, "tf32": 494.5, "bf16": 989.5}
    xeon = published.own_peaks("xeon-2c-0e51", "Intel(R) Xeon(R) Processor, 2 cores").set_index("precision")
    assert 0 < xeon.loc["fp32", "tflops"] < xeon.loc["bf16", "tflops"]
    assert published.own_peaks("unheard-of", "").empty


def test_adamw_is_told_on_the_largest_list_of_each_source():
    steps = published.list_steps()
    own = pd.DataFrame({"variant": "fused", "shapes": "small", "moved_bytes": [1e9, 2e9], "total_ms": [1.0, 10.0]})
    adam = published.list_adam(steps, own, pd.DataFrame({"memory_gb_per_s": [400.0]})).set_index(["source", "variant"])
    mine = adam.loc[("here", "fused")]
    assert (mine["list"], mine["rate_gbs"], mine["memory_percent"]) == ("small", 200, 50)
    (fused,) = published.load("adam").query(
        "source == 'write-up 000' and variant == '_fused_adam' and num_params == 32 and param_size == 4194304"
    )["step_ms"]
    theirs = adam.loc[("write-up 000", "fused")]
    assert theirs["list"] == "32 × 4,194,304"
    assert theirs["rate_gbs"] == pytest.approx(36 * 32 * 4_194_304 / fused / 1e6)


def test_numbers_that_cannot_be_are_named():
    steps = published.list_steps()
    doubts = published.list_doubts(steps)
    ms = doubts[doubts["what"].str.startswith("ms of backward")].set_index("what")["printed"].round(2).to_dict()
    assert ms == {
        "ms of backward of small in tf32 on RTX PRO 6000 WK": -2.75,
        "ms of backward of medium in tf32 on RTX PRO 6000 WK": 0.21,
    }
    assert len(doubts) == 2 + len(published.load("doubts"))


def test_what_is_doubted_follows_from_the_tables():
    module = published.load("attention_module").query("d_model == 16384 and context_length == 128 and not compiled")
    rate = 4 * 2 * 8 * 128 * 16384**2 / module["forward_ms"].item() / 1e9
    kernels = published.load("kernels").query("phase == 'forward' and kernel.str.contains('sgemm')")
    steps = published.load("end_to_end").query("hardware == 'A100 40GB' and model == 'xl' and dtype == 'bfloat16'")
    eager = published.load("attention").query("source == 'write-up 004' and variant == 'eager' and batch_size == 8")
    lengths = eager.pivot_table("pass_ms", "d_model", "seq_len", aggfunc="sum")
    growth = lengths[8192] / lengths[256]
    adam = published.load("adam").query("source == 'write-up 000' and num_params == 1")
    adam = adam.pivot_table("step_ms", "param_size", "variant")
    computed = [rate, 4 * 256 * 1600 * 8 / 2**20, kernels["calls"].sum(), steps["context_length"].item(), growth.max()]
    computed += [adam.loc[16384, "_fused_adam"], adam.loc[2**20, "_single_tensor_adam"]]
    doubts = published.load("doubts")
    printed, expected = doubts["printed"], doubts["expected"]
    stated = [*printed[:3], *expected[3:]]
    assert computed == pytest.approx(stated, rel=0.02)
    assert expected[[1, 2]].tolist() == [4 * 256 * 1600 * 4 / 2**20, 7 * 48 + 1]
