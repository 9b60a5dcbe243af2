"""What fits by the formula does, and one token more does not."""

import pytest

from lib.chapters import capacity
from lib.records import results
from lib.report.published import published_table


@pytest.fixture
def records(save_record):
    save_record("memory", {"device": "cpu"}, environment={"memory_mib": 24 * 2**10}, peak_mib=[5.0])
    return results.load("memory", "test-1c")


def test_predictions_grow_with_the_context_and_a_published_peak_has_its_own_row():
    table = capacity.predictions(["xl"], [128, 256])
    assert list(table["context_length"]) == [128, 128, 256, 256]
    assert (table["no_grad_gib"] < table["forward_gib"]).all()
    assert (table["forward_gib"] < table["train_step_gib"]).all()
    published = capacity.beside_published()
    assert len(published) == len(published_table("memory"))
    assert published["published_percent"].between(1, 100).all()


def test_what_fits_does_and_one_token_more_does_not(records):
    row = capacity.table(records).set_index("size").loc["small"]
    usable, most = capacity.usable_bytes(records), int(row["most tokens"])
    assert capacity.step_bytes("small", most) <= usable < capacity.step_bytes("small", most + 1)
    assert "The largest step that fits here is large at 256 tokens" in capacity.answer(records).text
