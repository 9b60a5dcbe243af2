"""What is looked up in records is what plain pandas finds."""

import numpy as np
import pandas as pd
import pytest

import by_hand
from lib.records import NotMeasured
from lib.report import tidy

RANDOM = np.random.default_rng(1)


def times(middle):
    return (middle * RANDOM.lognormal(0, 0.02, (3, 9))).tolist()


@pytest.fixture
def frame():
    """Two variants in three rounds here, one of them also elsewhere, and a case that could not be measured."""
    return by_hand.frame(
        *by_hand.of_rounds(times(4.0), variant="foreach", num_params=8, elements=64),
        *by_hand.of_rounds(times(2.0), variant="fused", num_params=8, elements=64),
        {"variant": "fused", "num_params": 512, "status": "crashed"},
        {"variant": "fused", "num_params": 512, "status": "oom", "round": 2},
        *by_hand.of_rounds(times(9.0), variant="fused", num_params=8, elements=64, machine="other", hardware="else"),
    )


def test_without_records_of_the_first_machine_nothing_is_told(frame):
    frame.attrs["machine"] = "other"
    assert set(tidy.told(frame)["machine"]) == {"other"}
    frame.attrs["machine"] = "without-records"
    with pytest.raises(NotMeasured):
        tidy.told(frame)


def test_the_first_machine_is_told_and_its_fields_are_the_axes_of_the_notebook(frame):
    assert tidy.fields(frame) == ["variant", "num_params"]
    pd.testing.assert_frame_equal(tidy.told(frame), frame.query("machine == 'test-1c'"))
    for look_up in (tidy.fields, tidy.told):
        with pytest.raises(NotMeasured):
            look_up(frame[:0])


def test_only_keeps_rows_by_a_value_or_by_one_of_several(frame):
    pd.testing.assert_frame_equal(tidy.only(frame, variant="foreach"), frame.query("variant == 'foreach'"))
    both = tidy.only(frame, variant=["foreach", "fused"], num_params=8)
    pd.testing.assert_frame_equal(both, frame.query("num_params == 8"))


def test_what_is_missing_is_named(frame):
    with pytest.raises(NotMeasured, match="a case with variant compiled"):
        tidy.only(frame, variant="compiled")
    with pytest.raises(NotMeasured, match="unheard of"):
        tidy.only(frame, unheard_of=1)


def test_fresh_records_of_a_case_take_the_place_of_its_stale_ones():
    frame = by_hand.frame(
        {"variant": "fused", "round": 1, "stale": True},
        {"variant": "fused", "round": 2},
        {"variant": "foreach", "round": 1, "stale": True},
        {"variant": "fused", "round": 1, "stale": True, "machine": "other"},
        {"variant": "compiled", "status": "crashed"},
    )
    assert tidy.ok(frame).index.tolist() == [1, 2, 3]


def probed(middles, **row):
    steady = 1 + 0.001 * np.arange(10)
    return [{"variant": "fused", "noise_probe_ms": (middle * steady).tolist(), **row} for middle in middles]


def test_a_record_is_noisy_if_the_probe_was_slow_for_its_machine_or_unsteady():
    unsteady = {"variant": "fused", "noise_probe_ms": [1.0, 1.5] * 5}
    unknown = {"variant": "fused"}
    frame = by_hand.frame(
        *probed([1.0, 1.0, 1.0, 1.05, 1.3]), unsteady, unknown, *probed([3.0, 3.1, 3.9], machine="slower")
    )
    assert tidy.noisy(frame).tolist() == [False] * 4 + [True, True, False] + [False, False, True]


def test_one_quick_probe_does_not_make_the_others_noisy(frame):
    assert not tidy.noisy(by_hand.frame(*probed([0.8] + [1.0] * 19))).any()
    assert not tidy.noisy(frame).any()
