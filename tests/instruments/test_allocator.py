"""Freed memory is kept where glibc can, and then a temporary faults its pages in only once."""

import subprocess
import sys
from unittest.mock import Mock

import pytest

from lib.instruments import allocator
from lib.paths import ROOT

FAULTS = """
import ctypes, resource
from lib.instruments import allocator
allocator.use({name!r})
libc, block = ctypes.CDLL(None), ctypes.c_void_p()
def fill():  # as a tensor does
    libc.posix_memalign(ctypes.byref(block), 64, ctypes.c_size_t(40 * 2**20))
    ctypes.memset(block, 1, 40 * 2**20)
    libc.free(block)
for _ in range(15):  # until aligned blocks fit into what was freed
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(allocator.glibc() is None, reason="only glibc can keep freed memory")
def test_a_large_temporary_faults_in_anew_each_time_unless_freed_memory_is_kept():
    faults = {}
    for name in ("keeps", "default"):
        faults[name] = int(subprocess.check_output([sys.executable, "-c", FAULTS.format(name=name)], cwd=ROOT))
    assert faults["default"] >= 5 * 40 * 2**20 / 2**21  # at least one for each page, were all of 2 MiB
    assert faults["keeps"] < faults["default"] / 10


def test_a_process_that_keeps_freed_memory_cannot_go_back(monkeypatch):
    libc = Mock(mallopt=Mock(return_value=1))
    monkeypatch.setattr(allocator, "_current", "default")
    monkeypatch.setattr(allocator, "glibc", lambda: libc)
    allocator.use("default")
    assert allocator.current() == "default"
    allocator.use("keeps")
    assert allocator.current() == "keeps"
    assert [call.args for call in libc.mallopt.call_args_list] == list(allocator.KEEP.items())
    with pytest.raises(ValueError, match="allocator: got default, expected keeps"):
        allocator.use("default")
