"""Cases are compared with their baselines by interleaved pairs, and one verdict is given for each."""

import numpy as np
import pytest

from lib import notebooks
from lib.catalog import CATALOG
from lib.records import baselines, results
from lib.report import compare, sentences, tables, tidy
from lib.stats import comparisons
from lib.stats.comparisons import PAIRS

CASE = {"variant": "naive", "seq_len": 64, "compiled": False}
NAIVE = CASE | {"precision": "fp32"}
TILED = NAIVE | {"variant": "tiled"}
BASE = [1.0 + 0.001 * i for i in range(12)]


def verdict(found):
    return comparisons.verdicts([found])[0]


def pairs(ratio, base=BASE, prefix=""):
    """Return the times of a case in pairs with its baseline, of that ratio."""
    return {f"{prefix}paired_ms": [float(ratio) * ms for ms in base], f"{prefix}baseline_ms": base}


def paired_records(save_record, ratio=0.8):
    """Tiled attention beside naive, its baseline: pairs of that ratio, though its own samples say the opposite."""
    for round in (1, 2, 3):
        save_record(case=NAIVE, round=round, total_ms=BASE)
        base = [1.0 + 0.002 * i + 0.1 * round for i in range(12)]
        save_record(case=TILED, round=round, total_ms=[ms / ratio for ms in BASE], **pairs(ratio, base))
    return results.load("attention", "test-1c")


def test_a_variant_and_its_baseline_are_compared_by_the_pairs_that_ran_in_turns(save_record):
    records = paired_records(save_record)
    found = compare.comparison(records, "total_ms", TILED, NAIVE)
    assert found.ratio.value == pytest.approx(0.8, rel=0.01)
    assert (verdict(found), found.ratio.rounds, found.ratio.n) == ("faster", 3, 36)
    back = compare.comparison(records, "total_ms", NAIVE, TILED)
    assert back.ratio.value == pytest.approx(1.25, rel=0.01)
    assert verdict(back) == "slower"


def test_rows_stand_beside_their_baselines_which_have_no_ratio(save_record):
    records = paired_records(save_record)
    table = compare.beside_baselines(tidy.medians(records, "total_ms"), records)
    naive, tiled = (table[table["variant"] == name].iloc[0] for name in ("naive", "tiled"))
    assert (naive["ratio"], naive["verdict"]) == (None, "–")
    assert (tiled["baseline"], tiled["verdict"]) == ("naive", "faster")
    assert tables.show(table, "variant total_ms ratio verdict", "x")._repr_html_().count("data-verdict") == 1
    assert compare.against_baselines(tidy.select(records, variant="naive")).empty


def test_a_phase_is_compared_by_its_own_times_in_the_pairs(save_record):
    for round in (1, 2, 3):
        save_record(case=NAIVE, round=round, forward_ms=BASE, total_ms=[3.0] * 8)
        halved = {"paired_forward_ms": [0.5 * ms for ms in BASE], "baseline_forward_ms": BASE}
        save_record(case=TILED, round=round, total_ms=[9.0] * 8, **pairs(1.5), **halved)
    records = results.load("attention", "test-1c")
    (forward,) = compare.against_baselines(records, "forward_ms").to_dict("records")
    (whole,) = compare.against_baselines(records).to_dict("records")
    assert forward["ratio"].value == pytest.approx(0.5, rel=0.01)
    assert (forward["verdict"], whole["verdict"]) == ("faster", "slower")


def test_a_sentence_says_what_the_table_says(save_record):
    records = paired_records(save_record, 0.95)
    alone = sentences.compare(records, TILED, NAIVE, "tiled", "naive")
    back = sentences.compare(records, NAIVE, TILED, "naive", "tiled")
    assert (alone.verdict, back.verdict) == ("faster", "slower")
    for extra in range(20):  # so many comparisons that show nothing, that the one is no longer shown among them
        for round in (1, 2, 3):
            where = {"seq_len": 100 + extra}
            save_record(case=NAIVE | where, round=round, total_ms=BASE)
            unclear = {"paired_ms": [1.0, 1.2 + 0.3 * round] * 6, "baseline_ms": [1.1] * 12}
            save_record(case=TILED | where, round=round, total_ms=BASE, **unclear)
    wide = results.load("attention", "test-1c")
    among = sentences.compare(wide, TILED, NAIVE, "tiled", "naive")
    assert among.verdict == tidy.select(compare.against_baselines(wide), **TILED)["verdict"].iloc[0] == "unclear"


@pytest.mark.parametrize(
    ("ratios", "said"),
    [((0.8,), ("faster", "within one process")), ((0.8, 1.1), ("unclear", "across 2 processes"))],
)
def test_one_process_decides_and_two_that_disagree_do_not(save_record, ratios, said):
    for round, ratio in enumerate(ratios, start=1):
        save_record(case=NAIVE, round=round, total_ms=BASE)
        save_record(case=TILED, round=round, total_ms=BASE, **pairs(ratio))
    found = compare.comparison(results.load("attention", "test-1c"), "total_ms", TILED, NAIVE)
    assert (verdict(found), found.ratio.scope) == said


def test_variants_with_the_same_baseline_are_compared_through_it(save_record):
    paired_records(save_record)
    sdpa = NAIVE | {"variant": "sdpa"}
    for round in (1, 2, 3):
        base = [3.0 + 0.1 * round + 0.001 * i for i in range(12)]  # the machine was slower then
        save_record(case=sdpa, round=round, total_ms=base, **pairs(0.4, base))
    records = results.load("attention", "test-1c")
    found = compare.comparison(records, "total_ms", sdpa, TILED)
    assert found.ratio.value == pytest.approx(0.5, rel=0.01)
    assert found.by == "interleaved pairs with one baseline"
    assert compare.ranked(records) == ["sdpa", "tiled", "naive"]


@pytest.mark.parametrize(
    ("experiment", "case", "expected"),
    [
        ("step", {"compiled": True, "precision": "bf16"}, {"compiled": False, "precision": "bf16"}),
        ("step", {"compiled": False, "precision": "bf16"}, {"compiled": False, "precision": "fp32"}),
        ("step", {"mode": "no_grad"}, {"mode": "forward"}),
        ("step", {"mode": "forward"}, None),
        ("attention", {"variant": "naive", "precision": "fp32"}, None),
        ("ceilings", {"operation": "copy"}, None),
    ],
)
def test_a_baseline_is_plainer_by_one_thing(experiment, case, expected):
    assert baselines.of(experiment, case) == expected


def test_a_case_with_several_switches_has_a_plain_one_too(save_record):
    plain = {"size": "tiny", "compiled": False, "attention": "naive", "optimizer": "single_tensor", "precision": "fp32",
             "mode": "train_step"}  # fmt: skip
    one, both = plain | {"attention": "sdpa"}, plain | {"attention": "sdpa", "optimizer": "fused"}
    assert [baselines.plain("step", case) for case in (plain, one, both)] == [None, None, plain]
    assert baselines.plain("attention", {"variant": "sdpa", "precision": "bf16"}) is None
    for round in (1, 2, 3):
        save_record("step", both, round, total_ms=BASE, **pairs(0.9), **pairs(0.5, prefix="plain_"))
    records = results.load("step", "test-1c")
    assert compare.comparison(records, "total_ms", both, plain).ratio.value == pytest.approx(0.5)
    assert compare.comparison(records, "total_ms", plain, both) is None  # it has no records of its own
    (row,) = compare.against_plain(records).to_dict("records")
    assert (row["baseline"], row["verdict"]) == ("naive, single_tensor", "faster")


def test_every_reference_of_a_family_is_a_value_of_its_field():
    for experiment, entry in CATALOG.items():
        assert set(entry.baseline) <= set(notebooks.fields(experiment))


def test_contrasts_are_judged_together(save_record):
    random = np.random.default_rng(0)
    for seq_len in range(1, 21):
        for round in (1, 2, 3):
            for causal in (True, False):
                ms = (1.2 if causal and seq_len == 1 else 1) * random.lognormal(0, 0.05)
                save_record(case=CASE | {"seq_len": seq_len, "causal": causal}, round=round, total_ms=[ms] * 6)
    records = results.load("attention", "test-1c")
    table = compare.contrasts(records, "causal", False).set_index("seq_len")
    assert len(table) == 20
    assert table["verdict"].value_counts().to_dict().get("slower") == 1
    case = CASE | {"seq_len": 1, "causal": True}
    said = sentences.compare(records, case, {"causal": False}, "one", "other")
    assert said.verdict == table["verdict"][1] == "slower"


def test_few_processes_borrow_from_the_other_comparisons_of_the_experiment(save_record):
    """Three processes that differ by a fifth show nothing alone, and much beside thirty that differ by a percent."""
    random = np.random.default_rng(0)

    def save(seq_len, ratios):
        for round, ratio in enumerate(ratios, start=1):
            save_record(case=TILED | {"seq_len": seq_len}, round=round, total_ms=BASE, **pairs(ratio))
            save_record(case=NAIVE | {"seq_len": seq_len}, round=round, total_ms=BASE)

    def compared(seq_len):
        records = results.load("attention", "test-1c")
        return compare.comparison(records, "total_ms", *(case | {"seq_len": seq_len} for case in (TILED, NAIVE)))

    save(1, (1.04, 1.05, 1.09))
    assert verdict(compared(1)) == "unclear"
    for seq_len in range(2, 32):
        save(seq_len, 0.7 * random.lognormal(0, 0.01, 3))
    assert verdict(compared(1)) == "slower"
    prior = compare.prior("attention", "test-1c", "total_ms", PAIRS, results.version("test-1c"))
    assert 0.005 < prior.variance(1.0) ** 0.5 < 0.02
    through = compare._prior_of(results.load("attention", "test-1c"), "total_ms", compare.THROUGH)
    assert through.variance(1.0) == pytest.approx(2 * prior.variance(1.0))  # of a ratio that two pairs make
    save(99, (0.7,))
    one = compared(99)
    assert one.by == "interleaved pairs, one process"
    assert verdict(one) == "faster"


def test_medians_are_compared_within_one_gpu(save_record):
    for round, gpu, ms in ((1, "a", 1.0), (2, "a", 1.0), (3, "b", 9.0)):
        save_record("step", CASE, round, total_ms=[ms] * 8, environment={"gpu": gpu})
    for round in (1, 2, 3):
        save_record("step", CASE | {"seq_len": 128}, round, total_ms=[2.0] * 8, environment={"gpu": "a"})
    records = results.load("step", "test-1c")
    found = compare.comparison(records, "total_ms", {"seq_len": 128}, {"seq_len": 64})
    assert found.ratio.value == pytest.approx(2.0)
    assert found.ratio.rounds == 2


def test_cases_that_different_versions_of_the_code_measured_are_not_compared(save_record, keep):
    for round in (1, 2, 3):
        for case, code in ((NAIVE, "a" * 16), (TILED, "b" * 16)):
            keep(save_record(case=case, round=round, code=code, total_ms=BASE))
    records = results.load("attention", "test-1c")
    assert len(records) == 6
    assert compare.comparison(records, "total_ms", TILED, NAIVE) is None
