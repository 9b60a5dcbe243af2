"""Name the processor of this machine and its widest instructions, as its system does."""

import functools
import platform
import re
import subprocess
from pathlib import Path

SETS = {  # by the flags of Linux, in lower case those of macOS too
    "avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "asimd": "NEON", "neon": "NEON", "sve": "SVE",
}  # fmt: skip


@functools.cache
def name() -> str:
    """Return the processor's name, or the architecture if the system gives no name."""
    if platform.system() == "Darwin":
        return sysctl("machdep.cpu.brand_string")
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@functools.cache
def instruction_sets() -> list[str]:
    """List the vector and matrix instructions of the processor; AVX2 only without AVX-512."""
    if platform.system() == "Darwin":
        flags = "neon" if platform.machine() == "arm64" else sysctl("machdep.cpu.leaf7_features")
    else:
        flags = _cpuinfo("flags") or _cpuinfo("Features")
    known = flags.lower().split()
    found = list(dict.fromkeys(said for flag, said in SETS.items() if flag in known))
    return [said for said in found if said != SETS["avx2"] or SETS["avx512f"] not in found]


def sysctl(key: str) -> str:
    """Return a value that macOS knows under this key; empty if it has none."""
    return subprocess.run(["sysctl", "-n", key], capture_output=True, text=True).stdout.strip()


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo; empty where there is none."""
    file = Path("/proc/cpuinfo")
    found = re.search(rf"^{key}\s*:\s*(.+)$", file.read_text() if file.exists() else "", re.MULTILINE)
    return found[1].strip() if found else ""
