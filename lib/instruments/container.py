"""Read what a container leaves to this process: memory, and cores by its quota.

Each control group from the process's own up to the root may set a limit, and the tightest counts. Sources:
docs.kernel.org, cgroup-v2 (memory.max, cpu.max) and cgroup-v1 (memory.limit_in_bytes, cpu.cfs_quota_us).
"""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
# files of a group's limit and use in versions 2 and 1, and the name of its idle file cache in memory.stat
MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def memory_bytes() -> tuple[int | float, int | float]:
    """Return the bytes of the limit, and those left.

    Without a limit, both are infinite, or in version 1 larger than any memory."""
    least_limit = math.inf
    least_left = math.inf
    for group in _groups("memory"):
        for limit_file, used_file, cache_name in MEMORY_FILES:
            limit = _read(group / limit_file)
            used = _read(group / used_file)
            # without a limit, it is `max` or missing
            if limit.isdigit() and used.isdigit():
                statistics = dict(line.split() for line in _read(group / "memory.stat").splitlines())
                # the kernel gives up cached files that were not read lately when a program needs the memory
                left = int(limit) - int(used) + int(statistics.get(cache_name, 0))
                least_limit = min(least_limit, int(limit))
                least_left = min(least_left, left)
    return least_limit, least_left


def cores() -> float:
    """Return the CPU quota in cores, or infinity without one."""
    least_cores = math.inf
    for group in _groups("cpu"):
        quota, _, period = _read(group / "cpu.max").partition(" ")
        if not quota:
            quota = _read(group / "cpu.cfs_quota_us")
            period = _read(group / "cpu.cfs_period_us")
        # without a limit, the quota is `max`, -1 or missing
        if quota.isdigit() and period.isdigit():
            least_cores = min(least_cores, int(quota) / int(period))
    return least_cores


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of control groups, from this process's own up to the root."""
    for line in _read(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        # version 2 has one tree for all controllers, which has no name
        if controllers and controller not in controllers.split(","):
            continue
        # without a name, it is ROOT itself
        tree = ROOT / controllers
        own_group = tree / path.strip("/")
        for group in (own_group, *own_group.parents):
            if group.is_relative_to(tree):
                yield group


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
