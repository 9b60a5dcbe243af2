"""Memory belongs to the first owner that holds it, once."""

import pytest
import torch

from lib.instruments.live_memory import held_bytes

pytestmark = pytest.mark.usefixtures("little_garbage")


def test_views_share_a_storage_and_the_rest_is_other():
    before = held_bytes({}, "cpu")["all"]
    whole, stranger = torch.zeros(1000), torch.zeros(10)
    found = held_bytes({"first": [whole[:10], whole], "second": [whole]}, "cpu")
    assert (found["first"], found["second"]) == (4000, 0)
    assert found["all"] == before + 4000 + stranger.nbytes == found["first"] + found["other"]
