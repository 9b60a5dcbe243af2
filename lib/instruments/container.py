"""Read what a container leaves to this process: memory, and cores of its CPU quota.

Each control group from the process's own up to the root may set a limit, and the tightest counts. Sources:
docs.kernel.org, cgroup-v2 (memory.max, cpu.max) and cgroup-v1 (memory.limit_in_bytes, cpu.cfs_quota_us).
"""

import contextlib
import math
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def groups(controller: str) -> list[Path]:
    """List the folders of this process's control groups for a controller, from its own up to the root."""
    found = []
    for line in _read(OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(",") or not controllers:  # version 2 has one tree for all, without a name
            top = ROOT / controllers
            own = top / path.strip("/")
            found += [group for group in (own, *own.parents) if group.is_relative_to(top)]
    return found or [ROOT]


def memory_bytes() -> tuple[int | float, int | float]:
    """Return the bytes that this process may have, and those left of them; infinite without a limit."""
    limits = list(_memory_limits())
    return min((limit for limit, _ in limits), default=math.inf), min((left for _, left in limits), default=math.inf)


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit of each group that has one, and what is left of it."""
    for group in groups("memory"):
        for limit, used, inactive in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, taken = _read(group / limit), _read(group / used)
            if most.isdigit() and taken.isdigit():
                cached = re.search(rf"^{inactive} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
                yield int(most), int(most) - int(taken) + int(cached[1] if cached else 0)  # the kernel frees its cache


def cores() -> float:
    """Return the CPU quota in cores, or infinity without one."""
    quotas = [math.inf]
    for group in groups("cpu"):
        words = _read(group / "cpu.max").split()  # the quota and its period, in µs
        words = words or [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        with contextlib.suppress(ValueError):  # without a limit, the quota is `max`, -1 or missing
            quota, period = map(int, words)
            quotas += [quota / period] if quota > 0 else []
    return min(quotas)


def _read(file: Path) -> str:
    """Return a file's text, empty if it cannot be read."""
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""
