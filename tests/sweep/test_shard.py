"""A shard is locked by one supervisor; shards of another count wait for it to end."""

import pytest

from lib.sweep import shard
from lib.sweep.shard import Busy, Shard

pytestmark = pytest.mark.usefixtures("own_results")


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b"])
def test_a_shard_is_written_as_k_of_n_and_what_is_none_is_refused(text):
    assert shard.parse("2/8") == Shard(2, 8)
    with pytest.raises(ValueError, match="shard: got"):
        shard.parse(text)


def test_one_supervisor_a_shard_and_one_count_at_a_time():
    with shard.hold(Shard(1, 2)):
        assert Shard(1, 2).is_running()
        with pytest.raises(Busy, match="1/2"), shard.hold(Shard(1, 2)):
            pass
        for contender in (Shard(1, 3), Shard()):
            with pytest.raises(Busy, match="shard 1/2 of another sweep"), shard.hold(contender):
                pass
        with shard.hold(Shard(2, 2)):
            assert {Shard(1, 2), Shard(2, 2)} <= set(shard.known())
    assert not Shard(1, 2).is_running()
    with shard.hold(Shard()):
        pass
