"""A flush reads what drives everything else out of the caches."""

from lib.instruments import cache, device


def test_a_flush_reads_more_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(device.Cpu, "cache_bytes", lambda _: 2**20)
    monkeypatch.setattr(cache, "LEAST_BYTES", 2**10)
    read = cache.flush("cpu")
    assert read() == 0
    assert read.__self__.nbytes == 4 * 2**20
