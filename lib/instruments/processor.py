"""Name the processor of this machine, its widest instructions and its caches."""

import functools
import json
import platform
import re
import subprocess
from pathlib import Path

import torch

# our names, by those of torch.cpu.get_capabilities
SETS = {"avx512_f": "AVX-512", "avx2": "AVX2", "amx_tile": "AMX", "neon": "NEON", "sve": "SVE"}
NATIVE_BF16 = ("avx512_bf16", "amx_bf16", "bf16")
CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def name() -> str:
    """Return the processor's name, or the architecture if the system gives no name."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        brand = subprocess.run(command, capture_output=True, encoding="utf-8").stdout.strip()
        return brand or platform.machine()
    if CPUINFO.exists():
        line = re.search(r"^model name\s*:\s*(.+)$", CPUINFO.read_text(encoding="utf-8"), re.MULTILINE)
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
    return {f"l{cache['level']}_mib": int(cache["one-size"]) / 2**20 for cache in _caches() if cache["level"] > 1}


def last_caches_bytes() -> int:
    """Return the bytes of all caches of the last level, 0 if they are not known."""
    caches = _caches()
    return int(caches[-1]["all-size"]) if caches else 0


@functools.cache
def _caches() -> list[dict]:
    """List each level's caches, with the bytes of `one-size` and of all."""
    command = ["lscpu", "--caches=level,one-size,all-size", "--bytes", "--json"]
    try:
        printed = subprocess.run(command, capture_output=True, encoding="utf-8").stdout
        return sorted(json.loads(printed).get("caches", []), key=lambda cache: cache["level"])
    except (OSError, ValueError):
        return []
