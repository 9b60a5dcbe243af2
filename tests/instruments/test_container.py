"""The tightest limit counts, whichever control group sets it, in both versions of the system's interface."""

import math

import pytest

from lib.instruments import container

GIB = 2**30


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    """Pretend that this process is in these control groups, with files of these contents."""

    def grouped(own, files):
        (tmp_path / "own").write_text(own)
        monkeypatch.setattr(container, "OWN", tmp_path / "own")
        monkeypatch.setattr(container, "ROOT", tmp_path / "fs")
        for name, text in files.items():
            file = tmp_path / "fs" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return grouped


NESTED = {
    "pod/box/memory.max": "max", "pod/box/memory.current": "1000", "pod/box/memory.stat": "inactive_file 0",
    "pod/memory.max": 4 * GIB, "pod/memory.current": 3 * GIB, "pod/memory.stat": f"anon 5\ninactive_file {GIB}\nfile 9",
    "memory.max": 8 * GIB, "memory.current": 7 * GIB, "memory.stat": "inactive_file 0",
    "pod/box/cpu.max": "max 100000", "pod/cpu.max": "250000 100000", "cpu.max": "800000 100000",
}  # fmt: skip


def test_a_limit_of_any_group_above_binds(grouped):
    grouped("0::/pod/box\n", NESTED)
    assert container.memory_bytes() == (4 * GIB, GIB)  # most of all in the pod, least left in the root
    assert container.cores() == 2.5


def test_where_the_own_group_is_not_visible_its_root_binds(grouped):
    grouped("0::/elsewhere/deep\n", {"memory.max": GIB, "memory.current": 10, "cpu.max": "50000 100000"})
    assert container.memory_bytes() == (GIB, GIB - 10)
    assert container.cores() == 0.5


def test_the_first_version_has_a_tree_for_each_controller(grouped):
    own = "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n"
    unlimited, quota = "9223372036854771712", "cpu,cpuacct/a/cpu.cfs_quota_us"
    files = {
        "memory/a/b/memory.limit_in_bytes": unlimited, "memory/a/b/memory.usage_in_bytes": 5,
        "memory/a/memory.limit_in_bytes": GIB, "memory/a/memory.usage_in_bytes": GIB // 2,
        "memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}",
        quota: "150000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
    }  # fmt: skip
    grouped(own, files)
    assert container.memory_bytes() == (GIB, 3 * GIB // 4)
    assert container.cores() == 1.5
    grouped(own, {quota: "-1"})
    assert container.cores() == math.inf


@pytest.mark.parametrize("own", ["0::/\n", ""])
def test_without_a_limit_all_is_left(grouped, own):
    grouped(own, {"memory.max": "max", "memory.current": "7", "cpu.max": "max 100000"})
    assert container.memory_bytes() == (math.inf, math.inf)
    assert container.cores() == math.inf
