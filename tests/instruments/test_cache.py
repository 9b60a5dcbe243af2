"""A flush reads what drives everything else out of the caches."""

from lib.instruments import cache


def test_a_flush_reads_more_than_the_cache_holds():
    assert cache.size_bytes("cpu") > 2**15
    assert cache.flush("cpu")() == 0  # the sum of what it has read
