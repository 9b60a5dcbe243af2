"""The tightest limit counts, whichever control group sets it, in both versions of the system's interface."""

import math

import pytest

from lib.instruments import container

GIB = 2**30
MOST = math.inf, math.inf
QUOTA = "cpu,cpuacct/a/cpu.cfs_quota_us"
OWN = "4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n"  # the first version has a tree for each controller
CASES = {  # the own groups, the files in them and above, the bytes in all and left, the cores
    "any group above binds": (
        "0::/pod/box\n",
        {
            "pod/box/memory.max": "max", "pod/box/memory.current": "1000", "pod/box/memory.stat": "inactive_file 0",
            "pod/memory.max": 4 * GIB, "pod/memory.current": 3 * GIB,
            "pod/memory.stat": f"anon 5\ninactive_file {GIB}\nfile 9",
            "memory.max": 8 * GIB, "memory.current": 7 * GIB, "memory.stat": "inactive_file 0",
            "pod/box/cpu.max": "max 100000", "pod/cpu.max": "250000 100000", "cpu.max": "800000 100000",
        },
        (4 * GIB, GIB), 2.5,  # most of all in the pod, least left in the root
    ),
    "the root, where the own group is not visible": (
        "0::/elsewhere/deep\n", {"memory.max": GIB, "memory.current": 10, "cpu.max": "50000 100000"},
        (GIB, GIB - 10), 0.5,
    ),
    "the first version": (
        OWN,
        {
            "memory/a/b/memory.limit_in_bytes": "9223372036854771712", "memory/a/b/memory.usage_in_bytes": 5,
            "memory/a/memory.limit_in_bytes": GIB, "memory/a/memory.usage_in_bytes": GIB // 2,
            "memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 4}",
            QUOTA: "150000", "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
        },
        (GIB, 3 * GIB // 4), 1.5,
    ),
    "the first version without a quota": (OWN, {QUOTA: "-1", "cpu,cpuacct/a/cpu.cfs_period_us": "1"}, MOST, math.inf),
    "no limit": ("0::/\n", {"memory.max": "max", "memory.current": "7", "cpu.max": "max 100000"}, MOST, math.inf),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_tightest_limit_binds(tmp_path, monkeypatch, name):
    own, files, memory, cores = CASES[name]
    for file, text in {"own": own, **{f"fs/{file}": text for file, text in files.items()}}.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"{text}\n" if text else "")
    monkeypatch.setattr(container, "OWN", tmp_path / "own")
    monkeypatch.setattr(container, "ROOT", tmp_path / "fs")
    assert container.memory_bytes() == memory
    assert container.cores() == cores
