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
    caches = {}
    for folder in sorted(CPUS.glob("cpu0/cache/index*")):
        # a virtual machine may hide some of the files
        with contextlib.suppress(OSError):
            level = int((folder / "level").read_text())
            size_kib = int((folder / "size").read_text().strip().removesuffix("K"))
            if level > 1:
                caches[f"l{level}_mib"] = size_kib / 1024
    return caches
