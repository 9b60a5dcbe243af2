"""Claims: each kind gives each verdict, on data that has been made to bear it out, to deny it, or to say nothing."""

import math
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from lib.chapters import write_ups
from lib.records import results
from lib.records.frame import Frame
from lib.report import claims, tidy
from lib.report.claims import CONTRADICTED, LESS, MORE, NOT_COMPARABLE, SAME, SUPPORTED, Claim, about
from lib.report.published import PUBLISHED, published_table
from lib.report.sentences import NO_DATA
from lib.stats.comparisons import UNCLEAR
from reference import MACHINE

LENGTHS = (1024, 2048)
pytestmark = pytest.mark.usefixtures("own_results")  # so that what git keeps is read, whatever was measured here


def attention(ratio=1.0, noise=0.01, rounds=3, exponent=2.0, seed=0, pairs=12):
    """Records of naive and compiled attention at two lengths: the second takes `ratio` of the time of the first."""
    random_ = np.random.default_rng(seed)
    rows = []
    for round_ in range(1, rounds + 1):
        for variant, factor in (("naive", 1.0), ("compiled", ratio)):
            for length in LENGTHS:
                base = 10 * (length / LENGTHS[0]) ** exponent
                shift = math.exp(noise * random_.normal())
                times = {
                    name: [float(base * f * shift * math.exp(noise * x)) for x in random_.normal(size=pairs)]
                    for name, f in (("total_ms", factor), ("paired_ms", factor), ("baseline_ms", 1.0))
                }
                if variant == "naive":
                    times = {"total_ms": times["total_ms"]}
                case = {"variant": variant, "seq_len": length, "d_head": 64, "batch_size": 8, "causal": True,
                        "precision": "fp32", "cold": False, "device": "cpu"}  # fmt: skip
                rows.append(
                    case | times | {"round": round_, "status": "ok", "code": "one", "machine": "m", "hardware": "h"}
                    | {"environment": {}, "share_percent": [100 * ratio / 2] * 6}
                )  # fmt: skip
    return Frame(rows).with_origin(fields=list(case), experiment="attention")


def compiled(within):
    def find(data):
        of = {"variant": "compiled", "seq_len": LENGTHS[-1]}
        return claims.ratios(data["attention"], "total_ms", of, {"variant": "naive"}, within, "at {seq_len} tokens")

    return find


def growth(data):
    return claims.exponent(data["attention"], "total_ms", "seq_len", (1.8, 2.2), "is it", variant="naive")


def ordering(data):
    """Compiled against naive at both lengths."""
    return claims.ratios(
        data["attention"], "total_ms", {"variant": "compiled"}, {"variant": "naive"}, LESS, "at {seq_len} tokens"
    )


def share(within):
    def find(data):
        return claims.medians(data["attention"], "share_percent", within, "%", variant="compiled", seq_len=2048)

    return find


def theory(data):
    """Compiled should take a half."""
    return compiled(about(0.5, 0.05))(data)


def claim(find, least=1):
    return Claim("a", "004", "attention", "it says so", find, "a rule", "it is so", "it is not so", least)


def verdict(find, data, least=1):
    (found,) = claims.judge([claim(find, least)], {"attention": data})
    return found


CASES = {  # kind: the finder, data that bears it out, data that denies it by a tenth
    "ratio": (compiled(LESS), {"ratio": 0.9}, {"ratio": 1.1}),
    "more": (compiled(MORE), {"ratio": 1.1}, {"ratio": 0.9}),
    "ordering": (ordering, {"ratio": 0.9}, {"ratio": 1.1}),
    "exponent": (growth, {"exponent": 2.0}, {"exponent": 2.4}),
    "share": (share(about(40)), {"ratio": 0.8}, {"ratio": 1.1}),
    "bound": (share((0, 50)), {"ratio": 0.9}, {"ratio": 1.1}),
    "theory": (theory, {"ratio": 0.5}, {"ratio": 0.58}),
}


@pytest.mark.parametrize("kind", CASES)
def test_flipped_data_flips_verdict_and_sentence(kind):
    find, true, false = CASES[kind]
    bears, denies = (verdict(find, attention(**data)) for data in (true, false))
    assert (bears.verdict, denies.verdict) == (SUPPORTED, CONTRADICTED)
    assert bears.statement.text.startswith("It is so: ")
    assert denies.statement.text.startswith("It is not so: ")
    assert bears.statement.records == denies.statement.records != ()


def test_equal_programs_are_shown_to_be_equal_and_few_processes_show_nothing():
    same = verdict(compiled(LESS), attention(ratio=1.0, noise=0.002))
    assert same.verdict == SAME
    assert "no difference is beyond 3%" in same.statement.text
    open_ = verdict(compiled(LESS), attention(ratio=1.0, noise=0.1))
    assert open_.verdict == UNCLEAR
    assert open_.statement.text.startswith("It is unclear whether it is so: ")


def test_without_the_rows_there_is_no_number():
    data = attention(ratio=0.8)
    for gone in (data["variant"] == "compiled", data["variant"] != "none"):
        left = data[~gone]
        found = verdict(ordering, left)
        assert found.verdict == NO_DATA
        assert not re.search(r"\d", found.statement.text)
    assert verdict(ordering, data, least=3).verdict == NO_DATA


def test_numbers_without_noise_are_decided_by_themselves():
    said = claim(lambda _: [claims.exact("sum", 10.0, (9.9, 10.1)), claims.exact("sum", 9.0, (9.9, 10.1))])
    assert claims.judge([said], {})[0].verdict == CONTRADICTED
    said = claim(lambda _: [claims.between("%", 84.8, 95.5, (85, 100))])
    assert claims.judge([said], {})[0].verdict == UNCLEAR
    said = claim(lambda _: [claims.between("%", 86.0, 95.5, (85, 100))])
    assert claims.judge([said], {})[0].verdict == SUPPORTED


def shuffled(seed):
    """Records of one length, whose labels compiled and naive were dealt by chance, pair by pair, whatever the ratio."""
    chance = random.Random(seed)
    data = tidy.select(attention(ratio=0.9, noise=0.05, seed=seed), seq_len=LENGTHS[-1])
    for _, row in data[data["variant"] == "compiled"].iterrows():
        for i in range(len(row["paired_ms"])):
            if chance.random() < 0.5:
                row["paired_ms"][i], row["baseline_ms"][i] = row["baseline_ms"][i], row["paired_ms"][i]
    return data


def test_shuffled_labels_are_seldom_a_finding():
    found = [verdict(compiled(LESS), shuffled(seed)).verdict for seed in range(40)]
    assert found.count(SUPPORTED) <= 0.05 * len(found)
    assert found.count(UNCLEAR) > 0.8 * len(found)


def test_planted_contradictions_are_caught():
    """Fifty claims of every kind, each held against data that is otherwise by at least a tenth."""
    chance, caught = random.Random(1), 0
    for seed in range(50):
        off = chance.uniform(1.1, 2.0)
        kind = chance.choice(["less", "more", "exponent", "share", "theory"])
        find, data = {
            "less": (compiled(LESS), {"ratio": off}), "more": (compiled(MORE), {"ratio": 1 / off}),
            "exponent": (growth, {"exponent": 2.2 + off / 2}), "share": (share((0, 50)), {"ratio": off}),
            "theory": (theory, {"ratio": 0.5 * 1.05 * off}),
        }[kind]  # fmt: skip
        caught += verdict(find, attention(noise=0.01, seed=seed, **data)).verdict == CONTRADICTED
    assert caught >= 49


def test_one_of_many_claims_that_show_nothing_needs_more():
    def equal(seed):
        return lambda _: compiled(LESS)({"attention": attention(ratio=1.0, noise=0.1, seed=seed)})

    data = {"attention": attention(ratio=0.97, noise=0.008, seed=4)}
    alone = claims.judge([claim(compiled(LESS))], data)[0]
    among = claims.judge([claim(compiled(LESS)), *(claim(equal(seed)) for seed in range(20))], data)[0]
    assert alone.verdict == SUPPORTED
    assert among.verdict == UNCLEAR
    assert "as one of 21 claims" in among.statement.evidence


# What the write-ups say


def test_every_published_claim_is_encoded_once():
    assert [one.id for one in write_ups.published()] == list(published_table("claims")["id"])
    assert all(one.question.endswith("?") and one.rule and one.holds != one.fails for one in write_ups.published())


@pytest.mark.parametrize("name", list(published_table("claims")["id"]))
def test_every_published_claim_turns_with_its_numbers(name):
    """Numbers where the claim has them bear it out, and numbers elsewhere deny it, in its own words each time."""
    (whole,) = [one for one in write_ups.published() if one.id == name]
    said = {}
    for value in (1.0, 3.0):
        numbers = [claims.exact("in a test", value, (0.5, 2.0))] * whole.least
        said[value] = claims.judge([replace(whole, find=lambda _, numbers=numbers: numbers)], {})[0]
    assert (said[1.0].verdict, said[3.0].verdict) == (SUPPORTED, CONTRADICTED)
    assert said[1.0].statement.text[1:].startswith(whole.holds[1:])
    assert said[3.0].statement.text[1:].startswith(whole.fails[1:])
    fewer = claims.judge([replace(whole, find=lambda _: numbers[1:])], {})[0]
    assert fewer.verdict == NO_DATA
    assert whole.question in fewer.statement.evidence


OWN = {one.claim.id: one for one in write_ups.on_own_tables()}


CONTRADICTING = (
    "compiled-adam-fastest", "compiled-adam-large", "compiled-adam-small", "attention-superlinear",
    "compile-speeds-step", "residual-12-5-mb",
)  # fmt: skip
BEARING_OUT = (
    "compiled-adam-many", "compile-speeds-attention", "tf32-speeds-large", "mixed-memory-not-always",
    "mixed-slower-small", "top-kernel-same",
)  # fmt: skip


def test_a_claim_comes_out_as_its_own_table_has_it():
    assert {name: OWN[name].verdict for name in CONTRADICTING} == dict.fromkeys(CONTRADICTING, CONTRADICTED)
    assert {name: OWN[name].verdict for name in BEARING_OUT} == dict.fromkeys(BEARING_OUT, SUPPORTED)


@pytest.fixture(scope="module")
def ledger():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", "/nowhere")
        return write_ups.Ledger(MACHINE)


def test_a_published_claim_without_its_records_has_no_number(ledger):
    for whole in (here for _, here in ledger.rows if here.statement.records):
        frame = results.load(whole.claim.experiment, MACHINE)
        rest = frame[[name not in whole.statement.records for name in claims.names(frame)]]
        left = claims.judge([whole.claim], {whole.claim.experiment: rest})[0]
        assert left.verdict in (NO_DATA, UNCLEAR) or left.statement.records
        assert not set(left.statement.records) & set(whole.statement.records)


def test_without_any_records_only_a_formula_gives_a_number():
    assert [one.id for one in write_ups.published() if one.find({})] == ["residual-12-5-mb"]


def test_the_ledger_has_a_row_a_claim_and_a_column_a_source(ledger):
    text = ledger._repr_html_()
    assert text.count('<th scope="row">') == len(write_ups.published())
    assert list(ledger.frame)[2:] == [write_ups.OWN, write_ups.HERE]
    assert text.count('data-verdict="contradicted"') == sum(
        one.verdict == CONTRADICTED for row in ledger.rows for one in row
    )
    assert "record-adam-compiled-single-tensor" in text
    assert list(ledger.frame[write_ups.OWN]).count(CONTRADICTED) == len(CONTRADICTING) + 1
    assert "contradict 7." in ledger.summary().text


def test_a_cpu_contradicts_no_statement_about_a_gpu(ledger):
    bound = replace(claim(compiled(LESS)), about="a GPU")
    data = {"attention": attention(ratio=1.25)}
    judged = [claims.judge([bound], data, comparable=comparable)[0] for comparable in (True, False)]
    assert [one.verdict for one in judged] == [CONTRADICTED, NOT_COMPARABLE]
    assert judged[1].statement.text.startswith("The statement is about a GPU; here it is not so: 1.2")
    free = claims.judge([claim(compiled(LESS))], data, comparable=False)[0]
    assert free.verdict == CONTRADICTED
    here = {one.claim.id: one.verdict for _, one in ledger.rows}
    assert here["matmul-85-of-forward"] == NOT_COMPARABLE
    assert here["residual-12-5-mb"] == CONTRADICTED


def test_every_source_of_a_published_table_is_described():
    known = {name.partition("<br>")[0] for name in write_ups.sources()["source"]}
    used = {name for file in PUBLISHED.glob("*.csv") for name in pd.read_csv(file).get("source", [])}
    assert {name for name in used if not name[0].isdigit()} <= known
