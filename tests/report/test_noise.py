"""A record is noisy if the machine was slower beside it, or unsteady."""

import numpy as np
import pandas as pd

import by_hand
from lib.report import noise


def probed(middles, **row):
    steady = 1 + 0.001 * np.arange(10)
    return [{"variant": "fused", "noise_probe_ms": (middle * steady).tolist(), **row} for middle in middles]


def test_a_record_is_noisy_if_the_probe_was_slow_for_its_machine_or_unsteady():
    unsteady = {"variant": "fused", "noise_probe_ms": [1.0, 1.5] * 5}
    unknown = {"variant": "fused"}
    frame = by_hand.frame(
        *probed([1.0, 1.0, 1.0, 1.05, 1.3]), unsteady, unknown, *probed([3.0, 3.1, 3.9], machine="slower")
    )
    assert noise.find_noisy(frame).tolist() == [False] * 4 + [True, True, False] + [False, False, True]


def test_a_record_took_new_memory_if_most_of_its_samples_faulted_in_many_pages():
    faults = [{"variant": "fused", "minor_faults": each} for each in ([0, 20_000, 30_000], [0, 9_000, 90_000], None)]
    assert noise.find_new_memory(by_hand.frame(*faults)).tolist() == [True, False, False]
    assert not noise.find_new_memory(by_hand.frame({"variant": "fused"})).any()


def test_one_quick_probe_does_not_make_the_others_noisy():
    assert not noise.find_noisy(by_hand.frame(*probed([0.8] + [1.0] * 19))).any()
    assert not noise.find_noisy(by_hand.frame({"variant": "fused"})).any()


def test_noise_is_told_as_a_count_of_the_processes():
    assert noise.tell(pd.DataFrame({"noisy": [1, 0] * 700})) == "noise beside 700 of 1,400 records"
