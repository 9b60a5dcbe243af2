"""Name the processor of this machine, its widest instructions and its caches."""

import contextlib
import functools
import platform
import re
import subprocess
from pathlib import Path

import torch

# by the words of torch.cpu.get_capabilities
SETS = {"avx512_f": "AVX-512", "avx2": "AVX2", "amx_tile": "AMX", "neon": "NEON", "sve": "SVE"}
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
CPUS = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
CACHE_BYTES = 128 * 2**20  # of the last caches, where the system does not say


@functools.cache
def name() -> str:
    """Return the processor's name, or the architecture if the system gives no name."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if CPUINFO.exists():
        line = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(), re.MULTILINE)
        if line:
            return line[1].strip()
    return platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """List the vector and matrix instructions; AVX2 only without AVX-512."""
    supported = torch.cpu.get_capabilities()
    sets = [label for capability, label in SETS.items() if supported.get(capability)]
    if "AVX-512" in sets:
        sets.remove("AVX2")
    return sets


def emulates_bf16() -> bool:
    """Return True if the processor has no instructions for products in bf16."""
    supported = torch.cpu.get_capabilities()
    return not any(supported.get(capability) for capability in NATIVE_BF16)


def cache_levels_mib() -> dict[str, float]:
    """Return a core's caches from the second level on, as `l2_mib`; Linux only."""
    return {f"l{level}_mib": size_bytes / 2**20 for level, _, size_bytes in _caches("cpu0") if level > 1}


def last_caches_bytes() -> int:
    """Return the bytes of all caches of the last level."""
    # several, where groups of cores have their own
    caches = _caches("cpu[0-9]*")
    if not caches:
        return CACHE_BYTES
    last_level, _, _ = caches[-1]
    return sum(size_bytes for level, _, size_bytes in caches if level == last_level)


def _caches(cores: str) -> list[tuple[int, str, int]]:
    """List level, sharing cores and bytes of each cache of data, by level."""
    caches = set()
    for folder in CPUS.glob(f"{cores}/cache/index*"):
        # a virtual machine may hide some of the files
        with contextlib.suppress(OSError):
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            level = int((folder / "level").read_text())
            sharing_cores = (folder / "shared_cpu_list").read_text().strip()
            size_kib = int((folder / "size").read_text().strip().removesuffix("K"))
            caches.add((level, sharing_cores, size_kib * 1024))
    return sorted(caches)
