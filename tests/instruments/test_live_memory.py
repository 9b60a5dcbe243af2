"""Memory belongs to the first owner that holds it, once."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from lib.instruments import memory_timeline
from lib.instruments.live_memory import held_bytes

pytestmark = pytest.mark.usefixtures("little_garbage")


def test_views_share_a_storage_and_the_rest_is_other():
    before = held_bytes({}, "cpu")["all"]
    whole, stranger = torch.zeros(1000), torch.zeros(10)
    found = held_bytes({"first": [whole[:10], whole], "second": [whole]}, "cpu")
    assert (found["first"], found["second"]) == (4000, 0)
    assert found["all"] == before + 4000 + stranger.nbytes == found["first"] + found["other"]


def test_a_tensor_around_others_holds_what_they_hold():
    around = TwoTensor(torch.zeros(100), torch.ones(100))
    assert held_bytes({"around": [around]}, "cpu")["around"] == 800
    live = memory_timeline.follow(lambda mark: (torch.add(around, 1), mark("add")))
    assert live.peaks()["add_peak"] <= 2 * 800
