"""What is published is what sweeps measured here, under the name of one machine's hardware."""

import pytest

from lib.records import damaged, results
from lib.report import __main__, publish
from resealed import reseal


def test_records_of_sweeps_are_copied_and_those_by_hand_or_damaged_are_not(save_record, kept):
    good = save_record(total_ms=[1.0])
    save_record(round=results.BY_HAND, total_ms=[2.0])
    save_record(round=2, total_ms=[3.0]).write_text("{")
    assert publish.publish("test-1c") == 1
    assert [file.name for file in kept.glob("*/*/*.json")] == [good.name]


def test_the_records_of_an_experiment_replace_those_kept_of_it_and_of_no_other(save_record, kept):
    other = save_record(experiment="adam", case={"variant": "fused"}, total_ms=[1.0])
    former = save_record(round=7, total_ms=[1.0])
    assert publish.publish("test-1c") == 2
    other.unlink()
    former.unlink()
    new = save_record(total_ms=[2.0])
    assert publish.publish("test-1c") == 1
    assert {file.name for file in kept.glob("*/*/*.json")} == {other.name, new.name}


def test_with_records_by_hand_alone_nothing_is_published_and_nothing_kept_changes(save_record, kept):
    good = save_record(total_ms=[1.0])
    publish.publish("test-1c")
    good.unlink()
    save_record(round=results.BY_HAND, total_ms=[2.0])
    assert publish.publish("test-1c") == 0
    assert len(list(kept.glob("*/*/*.json"))) == 1


def test_records_of_other_hardware_under_the_same_name_are_refused(save_record, kept):
    publish.publish(save_record(total_ms=[1.0]).parts[-3])
    other = save_record(round=2, total_ms=[2.0])
    reseal(other, environment=results.read(other)["environment"] | {"hardware": "another"})
    with pytest.raises(ValueError, match="a test and another"):
        publish.publish("test-1c")


def test_what_was_set_aside_is_no_machine_and_is_not_published(save_record, kept, capsys):
    save_record(total_ms=[1.0])
    save_record(round=2, total_ms=[2.0]).write_text("{")
    assert damaged.clean_store(alone=True) == 1
    assert __main__.main(["publish"]) == 0
    assert [entry.name for entry in kept.iterdir()] == ["test-1c"]
    assert len(list(kept.glob("*/*/*.json"))) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1
