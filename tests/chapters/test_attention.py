"""Where memory ends is found by formula and by record, and which limit is nearer by the shares of both."""

import pytest

from lib.chapters import attention
from lib.cost import memory
from lib.records import results
from lib.report import published, sentences, tidy

CASE = {
    "variant": "naive", "seq_len": 1024, "d_head": 16, "batch_size": 8, "causal": True, "precision": "fp32",
    "cold": False,
}  # fmt: skip


def test_the_account_adds_up_to_the_peak():
    case = {"batch_size": 8, "seq_len": 16384, "d_head": 16, "causal": True}
    table = attention.account(case)
    *parts, total = table["bytes"]
    assert sum(parts) == total == sum(memory.attention_peak_bytes(8, 16384, 16, True).values())
    assert table.set_index("part")["product"]["weights"] == "4 × 8 × 16,384²"
    for product, size in zip(table["product"][:-1], parts, strict=True):
        assert eval(product.replace("×", "*").replace(",", "").replace("²", "**2")) == size


def test_the_sentence_tells_what_did_not_fit_from_what_would_not(save_record, monkeypatch):
    monkeypatch.setattr(attention, "memories", lambda records, machine: {"a test": 24 * 2**30})
    save_record(case=CASE)
    records = results.load("attention", "test-1c")
    fit = attention.out_of_memory(records, "test-1c").text
    assert "All sizes measured here fit" in fit
    assert "16,384 tokens" in fit
    assert attention.accounted(records, 60 * 2**30)["seq_len"] == 32768  # all of the assignment's lengths would fit
    refused = {"status": "too_large", "predicted_bytes": 3 * 2**30, "available_bytes": 2**30}
    for seq_len in (16384, 8192):  # of which the smaller is told
        save_record(case=CASE | {"seq_len": seq_len}, **refused)
    said = attention.out_of_memory(results.load("attention", "test-1c"), "test-1c")
    assert "8,192 tokens with heads of 16 is predicted not to fit" in said.text
    assert "1.0 GiB" in said.evidence


def test_the_memory_of_a_published_gpu_is_the_one_in_its_name(own_results):
    memory = attention.memories(results.load("attention", "no machine"), "no machine")
    assert memory["H100 80GB"] == 80 * 2**30
    assert "H200" not in memory


def test_what_fits_names_the_first_length_of_the_grid_that_does_not(own_results):
    table = attention.fitting({"small": 5 * 2**30, "large": 100 * 2**30})
    most = int(table["most tokens, head size 128"][0])
    assert attention.peak_bytes(most, 128) <= 5 * 2**30 < attention.peak_bytes(most + 1, 128)
    first = table["first of the grid that does not fit, 16"]
    assert first[0] == 8192
    assert first.isna()[1]


@pytest.fixture
def two_variants(save_timed):
    """Naive attention, and sdpa in a fifth of the time and an eighth of the memory, at three lengths."""
    for length in (256, 512, 1024):
        ms, alike = length**2 / 1e4, CASE | {"seq_len": length, "d_head": 64}
        save_timed("attention", alike, ms, causal_flops=4e6, forward_end_mib=[length])
        sdpa = alike | {"variant": "sdpa"}
        records = save_timed("attention", sdpa, ms / 5, ms, causal_flops=4e6, forward_end_mib=[length / 8])
    return records


def test_the_answer_names_the_fastest_variant_its_factor_and_what_it_keeps(two_variants):
    said = attention.answer(two_variants, attention.longest_case(two_variants))
    assert said.text.startswith("At 1,024 tokens sdpa is 5.0")
    assert said.text.endswith("faster than naive attention, forward and backward, and keeps 128 MiB for the backward "
                              "pass instead of 1,024.")  # fmt: skip
    assert said.verdict == "faster"
    line = attention.first_line(two_variants)
    assert line.text.startswith("1,024 tokens, forward and backward: naive 105")
    assert line.text.endswith("× faster, 128 MiB.")
    assert [one._repr_html_().count("data-q=") for one in (said, line)] == [3, 4]
    grown = attention.growth(two_variants, {"variant": "naive", "d_head": 64}).text
    assert "grows about as T² (exponent 2.0" in grown
    assert "from 256 to 1,024 tokens" in grown


def test_rates_count_the_flops_of_the_scores_that_a_query_may_see(two_variants):
    rated = attention.with_rates(two_variants, {"fp32": 1e12})
    one = tidy.select(rated, variant="naive", seq_len=1024)
    row = tidy.medians(one, "causal_gflops", "causal_percent", "total_ms").iloc[0]
    assert row["causal_gflops"].value == pytest.approx(3 * 4e6 / row["total_ms"].value / 1e6, rel=0.01)
    assert row["causal_percent"].value == pytest.approx(row["causal_gflops"].value / 1e3 * 100, rel=0.01)


def test_the_kernels_that_sdpa_ran_are_named_with_their_precisions(save_record):
    for precision, kernel in (("bf16", "flash"), ("fp16", "flash"), ("fp32", "efficient"), ("tf32", "efficient")):
        save_record(case=CASE | {"variant": "sdpa", "precision": precision}, total_ms=[1.0], sdpa_backend=kernel)
    save_record(case=CASE, total_ms=[1.0])
    said = attention.sdpa_kernels(results.load("attention", "test-1c"))
    assert said.text == "Of PyTorch's kernels sdpa ran flash in bf16 and fp16; efficient in fp32 and tf32."
    assert len(said.records) == 4


def test_published_attention_has_its_memory_and_stands_beside_the_formula():
    rows = published.published_attention()
    naive = attention.with_kept(tidy.select(rows, variant="naive", seq_len=16384, d_head=16))
    assert naive["forward_end_mib"].iloc[0] == 16761.5
    assert naive["by_formula"].iloc[0] == sum(memory.attention_kept_bytes("naive", 8, 16384, 16, True).values()) / 2**20
    assert (rows["total_ms"] == rows["forward_ms"] + rows["backward_ms"]).all()
    compiled = attention.with_kept(tidy.select(rows, variant="compiled", seq_len=16384, d_head=16))
    assert compiled["by_formula"].isna().all()


def test_several_values_are_one_sentence_or_none(save_record):
    save_record(case=CASE, forward_ms=[1.0] * 8, backward_ms=[2.0] * 8)
    records = results.load("attention", "test-1c")
    assert sentences.values(records, CASE, "{} and {}.", "forward_ms", "backward_ms").text == "1.000 and 2.000."
    assert sentences.values(records, CASE, "{} and {}.", "forward_ms", "no_ms").verdict == sentences.NO_DATA
