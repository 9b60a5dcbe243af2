"""Name the processor of this machine, its widest instructions and its caches, as its system does."""

import contextlib
import functools
import platform
import re
import subprocess
from pathlib import Path

SETS = {  # by the flags of Linux, in lower case those of macOS too
    "avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "asimd": "NEON", "neon": "NEON", "sve": "SVE",
}  # fmt: skip
NATIVE_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # flags of Linux
CPUS = Path("/sys/devices/system/cpu")
CACHE_BYTES = 128 * 2**20  # of the last cache, where the system does not say


@functools.cache
def name() -> str:
    """Return the processor's name, or the architecture if the system gives no name."""
    if platform.system() == "Darwin":
        return sysctl("machdep.cpu.brand_string")
    return _cpuinfo("model name") or platform.processor() or platform.machine()


@functools.cache
def instruction_sets() -> list[str]:
    """List the vector and matrix instructions of the processor; AVX2 only without AVX-512."""
    known = _flags()
    found = list(dict.fromkeys(said for flag, said in SETS.items() if flag in known))
    return [said for said in found if said != SETS["avx2"] or SETS["avx512f"] not in found]


@functools.cache
def emulates_bf16() -> bool:
    """Return True if the system says that the processor has no instructions for products in bf16."""
    if platform.system() == "Darwin":
        return sysctl("hw.optional.arm.FEAT_BF16") == "0"
    known = _flags()
    return bool(known) and not known & NATIVE_BF16


def _flags() -> set[str]:
    if platform.system() == "Darwin":
        flags = "neon" if platform.machine() == "arm64" else sysctl("machdep.cpu.leaf7_features")
    else:
        flags = _cpuinfo("flags") or _cpuinfo("Features")
    return set(flags.lower().split())


def cache_levels_mib() -> dict[str, float]:
    """Return the sizes of one core's caches from the second level on, as `l2_mib` and so on."""
    if platform.system() == "Darwin":
        sizes = {f"l{level}_mib": sysctl(f"hw.l{level}cachesize") for level in (2, 3)}
        return {name: int(size) / 2**20 for name, size in sizes.items() if size.isdecimal() and int(size)}
    return {f"l{level}_mib": size / 2**20 for level, _, size in _caches("cpu0") if level > 1}


def last_caches_bytes() -> int:
    """Return the bytes of all caches of the last level: several, where groups of cores have their own."""
    if platform.system() == "Darwin":
        return round(max(cache_levels_mib().values(), default=0) * 2**20) or CACHE_BYTES
    found = _caches("cpu[0-9]*")
    last = max((level for level, _, _ in found), default=0)
    return sum(size for level, _, size in found if level == last) or CACHE_BYTES


def _caches(cores: str) -> list[tuple[int, str, int]]:
    """List level, sharing cores and bytes of each cache of data that Linux knows, once."""
    found = set()
    for folder in CPUS.glob(f"{cores}/cache/index*"):
        with contextlib.suppress(OSError):
            said = (folder.joinpath(name).read_text().strip() for name in ("type", "level", "shared_cpu_list", "size"))
            holds, level, shared, size = said
            if holds != "Instruction":
                found.add((int(level), shared, int(size.removesuffix("K")) * 1024))
    return sorted(found)


def sysctl(key: str) -> str:
    """Return a value that macOS knows under this key; empty if it has none."""
    return subprocess.run(["sysctl", "-n", key], capture_output=True, text=True).stdout.strip()


def _cpuinfo(key: str) -> str:
    """Return the first value of a key in /proc/cpuinfo; empty where there is none."""
    file = Path("/proc/cpuinfo")
    found = re.search(rf"^{key}\s*:\s*(.+)$", file.read_text() if file.exists() else "", re.MULTILINE)
    return found[1].strip() if found else ""
