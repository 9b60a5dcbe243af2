"""Freed memory is kept where glibc can, and then a temporary faults its pages in only once."""

import subprocess
import sys

import pytest

from lib.instruments import allocator
from lib.paths import ROOT

FAULTS = """
import resource, torch
from lib.instruments import allocator
allocator.use({name!r})
def fill():
    torch.empty(40 * 2**20, dtype=torch.uint8).fill_(1)
for _ in range(15):  # until aligned blocks fit into what was freed
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
needs_glibc = pytest.mark.skipif(not allocator.can_keep(), reason="only glibc can keep freed memory")


def run(code):
    """What a fresh process prints, or its last line of error."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    return (done.stdout or done.stderr).strip().splitlines()[-1]


@needs_glibc
def test_a_large_temporary_faults_in_anew_each_time_unless_freed_memory_is_kept():
    kept, default = (int(run(FAULTS.format(name=name))) for name in ("keeps", "default"))
    assert default >= 5 * 40 * 2**20 / 2**21  # at least one for each page, were all of 2 MiB
    assert kept < default / 10


@needs_glibc
def test_a_process_that_keeps_freed_memory_cannot_go_back():
    code = "from lib.instruments import allocator as a; {}"
    assert run(code.format("a.use('default'); a.use('keeps'); a.use('keeps'); print(a.current())")) == "keeps"
    assert run(code.format("a.use('default'); print(a.current())")) == "default"
    assert "allocator: got default, expected keeps" in run(code.format("a.use('keeps'); a.use('default')"))


def test_without_glibc_the_default_is_all_there_is(monkeypatch):
    monkeypatch.setattr(allocator, "_glibc", lambda: None)
    monkeypatch.setattr(allocator, "_kept", [])
    allocator.use("keeps")
    allocator.release()
    assert (allocator.can_keep(), allocator.current()) == (False, "default")


def test_the_variable_chooses_and_an_unknown_name_is_refused(monkeypatch):
    monkeypatch.delenv("ALLOCATOR", raising=False)
    assert allocator.chosen() == "keeps"
    monkeypatch.setenv("ALLOCATOR", "default")
    assert allocator.chosen() == "default"
    monkeypatch.setenv("ALLOCATOR", "kept")
    with pytest.raises(ValueError, match=r"ALLOCATOR: got 'kept', .*nearest: keeps"):
        allocator.chosen()
