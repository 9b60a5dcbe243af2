"""Describe this machine, its versions and settings, but no person, path or host."""

import functools
import hashlib
import math
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import psutil
import torch

from lib import precision
from lib.instruments import allocator, container, processor
from lib.instruments.device import on
from lib.paths import ROOT

# what may change a time; others could name a person
ALLOWED_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ENABLE_MPS_FALLBACK", "TRITON_INTERPRET",
)  # fmt: skip


def compiler_missing(device: str) -> str | None:
    """Return why torch.compile and Triton cannot work here, or None.

    What they write, C++ for a CPU and launchers in C for CUDA, includes Python's headers. Triton takes $CC alone if it
    is set, and else gcc or clang. PyTorch takes its C++ compiler's command apart as a shell would."""
    compilers = [os.environ.get("CXX", "g++")]
    if device != "cpu":
        compilers = [os.environ["CC"]] if "CC" in os.environ else ["gcc", "clang"]
    headers = sysconfig.get_path("include")
    paths = [torch.__file__, headers, tempfile.gettempdir()]
    if device == "cpu" and re.search(r"""[\s'"\\]""", "".join(paths)):
        return "torch.compile needs paths of Python and of temporary files without spaces and quotation marks"
    if not any(map(shutil.which, compilers)):
        return f"torch.compile and Triton need a compiler, and {compilers[0]} is not installed"
    if not Path(headers, "Python.h").exists():
        return "torch.compile and Triton need Python's headers, which are not installed"
    return None


def cores() -> int:
    """Count the cores that this process may use: those of its quota, at least 1."""
    offered = os.cpu_count()
    # macOS cannot keep a process to some of the cores
    if hasattr(os, "sched_getaffinity"):
        offered = len(os.sched_getaffinity(0))
    return max(1, math.floor(min(offered, container.cores())))


def keep_quota() -> None:
    """Let PyTorch use no more threads than a container's quota has cores."""
    # with more, the quota of each period is used up early, and all threads wait for the next
    if torch.get_num_threads() > container.cores():
        torch.set_num_threads(cores())


def machine(device: str) -> str:
    """Return the name of the hardware: nvidia-h200-1f3a or xeon-2c-09be.

    It names the records. Its last four digits are a digest of what tells it from other hardware of the same slug."""
    if device != "cpu":
        slug = re.sub(r"[^a-z0-9]+", "-", on(device).hardware().lower()).strip("-")
        traits = [on(device).hardware(), on(device).facts().get("gpu_memory_mib")]
    else:
        family = re.search(r"xeon|epyc|ryzen(?! threadripper)|threadripper|core|apple m\d+", processor.name().lower())
        name = family[0] if family else platform.machine().lower()
        slug = f"{re.sub('[ _]', '-', name)}-{cores()}c"
        traits = [processor.name(), processor.cache_levels_mib(), cores(), round(memory_mib() / 1024)]
    return f"{slug}-{hashlib.sha256(repr(traits).encode()).hexdigest()[:4]}"


def memory_mib() -> int:
    """Return this machine's memory in MiB, within the container's limit."""
    return min(psutil.virtual_memory().total, container.memory_bytes()[0]) // 2**20


@functools.cache  # once a process, at its first record, since later edits do not change the loaded code
def _commit() -> str:
    """Return the commit of this checkout, with `-dirty` for further changes."""
    # Its folder is named, so that git takes no other one. Git then trusts a checkout that another user owns, whose code
    # this process runs anyway.
    command = [
        "git", "-C", str(ROOT), f"--git-dir={ROOT / '.git'}", f"--work-tree={ROOT}",
        "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*",
    ]  # fmt: skip
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        described = subprocess.run(command, env=own, capture_output=True, encoding="utf-8").stdout.strip()
    except OSError:
        described = ""
    # $COMMIT is for a copy without .git, or with that of an older commit
    return os.environ.get("COMMIT") or described or "no checkout"


def describe(device: str) -> dict:
    """Return the environment of a measurement, as plain values for the record."""
    # the report tells why some cases cannot run here: no compiler, no such precision
    reasons = [compiler_missing(device), *map(on(device).lacks, precision.NAMES)]
    hardware = on(device).hardware()
    if device == "cpu":
        hardware += f", {cores()} cores"
    return {
        "machine": machine(device),
        "hardware": hardware,
        "processor": processor.name(),
        "instruction_sets": processor.instruction_sets(),
        **processor.cache_levels_mib(),
        "cores": cores(),
        "memory_mib": memory_mib(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "allocator": allocator.current(),
        "commit": _commit(),
        "variables": {name: os.environ[name] for name in ALLOWED_VARIABLES if name in os.environ},
        "lacks": [reason for reason in reasons if reason],
        **on(device).facts(),
    }
