"""A timeline tells when memory was taken and freed, and by whom."""

import pytest
import torch

from lib import attention
from lib.instruments import memory_timeline
from lib.instruments.peak_memory import MIB

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_timeline_has_every_change_the_phases_and_the_largest_allocations():
    q, k, v = (torch.randn(1, 2, 64, 8, requires_grad=True) for _ in range(3))

    def iteration(mark):
        loss = attention.naive(q, k, v).sum()
        mark("forward")
        loss.backward()
        mark("backward")
        for x in (q, k, v):
            x.grad = None

    history = memory_timeline.follow(iteration)
    tables = history.record_tables(count=6)
    instants, live = tables["timeline"]["instant_us"], tables["timeline"]["live_mib"]
    assert max(live) == max(history.peaks().values()) / MIB
    assert live[0] == live[-1] == 3 * 4096 / MIB  # all that was made is freed
    assert len(instants) == len(live)
    assert instants == sorted(instants)
    assert tables["phases"]["phase"] == ["forward", "backward"]
    (start, again), (middle, end) = tables["phases"]["begin_us"], tables["phases"]["end_us"]
    assert 0 == start < middle == again < end

    largest = tables["largest"]
    assert set(largest["each_mib"]) == {4 * 2 * 64 * 64 / MIB}
    assert sum(largest["count"]) == 6
    made = set(zip(largest["function"], largest["operator"], largest["phase"], strict=True))
    assert made >= {
        ("attention._masked_scores", "aten::bmm", "forward"), ("attention.naive", "aten::_softmax", "forward"),
        ("BmmBackward0", "aten::bmm", "backward"),
    }  # fmt: skip


def test_a_thinned_series_keeps_its_ends_and_extremes():
    values = torch.randn(10_000).tolist()
    indices = memory_timeline.thinned_indices(values, 600)
    assert len(indices) <= 600
    assert {0, 9_999, values.index(max(values)), values.index(min(values))} <= set(indices)
    assert indices == sorted(indices)
