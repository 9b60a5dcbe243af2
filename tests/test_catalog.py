"""The catalogue has one entry for each variant that a case class accepts, and its facts are those of the code."""

from dataclasses import fields, replace

import pytest

from lib import catalog, watched
from lib.catalog import CATALOG, Experiment, Variant
from lib.experiments import ladder
from lib.experiments.cases import case_class
from lib.parallel import ddp

WITH_VARIANTS = [name for name, entry in CATALOG.items() if entry.variants and name != "ladder"]


@pytest.mark.parametrize("experiment", WITH_VARIANTS)
def test_the_variants_are_the_names_that_the_field_of_the_case_accepts_in_one_order(experiment):
    entry = CATALOG[experiment]
    names = {field.name: field.metadata.get("names") for field in fields(case_class(experiment))}
    assert list(names[entry.axis]) == list(entry.variants)


def test_a_family_without_a_field_of_its_own_has_names_of_the_catalogue():
    assert set(ddp.VARIANTS) < set(CATALOG["parallel"].variants)
    assert set(ladder.WHOLE_MODES) < set(CATALOG["ladder"].variants)


@pytest.mark.parametrize("experiment", CATALOG)
def test_a_baseline_is_a_variant(experiment):
    variants = CATALOG[experiment].variants
    for variant in variants.values():
        assert variant.baseline in {"", *variants}
        assert set(variant.needs) < set(variants)


CASE = {"variant": "sdpa", "native": False, "precision": "fp32", "seq_len": 8}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"variant": "naive"}),
        ({"variant": "triton", "native": True}, {"variant": "sdpa"}),
        ({"variant": "naive", "native": True, "precision": "bf16"}, {"native": False}),
        ({"variant": "naive", "precision": "bf16"}, {"precision": "fp32"}),
        ({"variant": "gone", "precision": "bf16"}, {"precision": "fp32"}),
    ],
)
def test_a_baseline_differs_in_one_field(changes, expected):
    case = CASE | changes
    assert catalog.baseline("attention", case) == case | expected


def test_a_reference_has_no_baseline():
    assert catalog.baseline("attention", CASE | {"variant": "naive"}) is None
    assert catalog.baseline("calibration", {"check": "equal"}) is None


def digest_with(monkeypatch, experiment, **changes):
    """Digest an experiment after a change to the variant `fused` of adam."""
    variants = dict(CATALOG["adam"].variants)
    variants["fused"] = replace(variants["fused"], **changes)
    monkeypatch.setitem(CATALOG, "adam", replace(CATALOG["adam"], variants=variants))
    return watched.digest.__wrapped__(experiment)


@pytest.mark.parametrize("experiment", ["adam", "step"])
def test_what_changes_a_measurement_makes_records_stale_and_words_do_not(monkeypatch, experiment):
    today = watched.digest(experiment)
    assert digest_with(monkeypatch, experiment, words="fused AdamW") == today
    assert digest_with(monkeypatch, experiment, baseline="foreach") != today
    assert digest_with(monkeypatch, experiment, compiles=True) != today


def test_an_experiment_more_makes_no_record_of_others_stale(monkeypatch):
    today = watched.digest("adam")
    entry = Experiment(title="Softmaxes", fields=("variant",), variants={"one_call": Variant()})
    monkeypatch.setitem(CATALOG, "softmax", entry)
    assert watched.digest.__wrapped__("adam") == today
