"""A flush reads what drives everything else out of the caches."""

from lib.instruments import cache, device


def test_a_flush_reads_more_than_the_cache_holds(monkeypatch):
    assert cache.flushed_bytes("cpu") >= 4 * device.on("cpu").cache_bytes() > 2**17
    monkeypatch.setattr(device.Cpu, "cache_bytes", lambda _: 2**20)
    assert cache.flushed_bytes("cpu") == 256 * 2**20
    assert cache.flush("cpu")() == 0  # the sum of what it has read
