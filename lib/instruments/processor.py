"""Name the processor of this machine, as its system does."""

import functools
import platform
import re
import subprocess
from pathlib import Path


@functools.cache
def name() -> str:
    """Return the processor's name, or the architecture if the system gives no name."""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
