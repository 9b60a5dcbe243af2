"""Memory is counted to the byte, and running out of it is recognised."""

import pytest
import torch

from lib.instruments import peak_memory
from lib.instruments.device import Cuda, Mps
from lib.instruments.peak_memory import MIB, follow

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_storage_counts_once_in_its_size_from_when_it_is_made_until_its_last_view_is_gone():
    def iteration(mark):
        first, second = torch.empty(100), torch.empty(10)
        mark("make")
        del first  # in another order
        third = torch.empty(50)
        mark("free one")
        del third, second
        mark("free all")
        parts = torch.ones(3, 100).unbind()
        mark("three views")
        view = parts[0][:1]
        del parts
        mark("a view of one")
        del view
        numbers, small = torch.tensor([1.0, 2.0]), torch.empty(0)
        mark("from numbers")
        torch.add(torch.ones(100), numbers[0], out=small)
        mark("grown")

    sizes = {
        "make": (440, 440), "free one": (440, 240), "free all": (240, 0), "three views": (1200, 1200),
        "a view of one": (1200, 1200), "from numbers": (1200, 8), "grown": (808, 408),
    }  # fmt: skip
    expected = {}
    for phase, (peak, end) in sizes.items():
        expected |= {f"{phase}_peak": peak, f"{phase}_end": end}
    assert follow(iteration).peaks() == expected


def test_cuda_counts_each_phase_from_its_own_begin_without_what_it_held_before_the_case(monkeypatch):
    before = {"peak": 9 * MIB}
    counted = iter([before, {"peak": 5 * MIB, "end": 2 * MIB}, {"peak": 3 * MIB, "end": 3 * MIB}])
    monkeypatch.setattr(Cuda, "memory_bytes", lambda _: next(counted))
    peaks = peak_memory.peaks(lambda mark: (mark("forward"), mark("backward")), "cuda", level_bytes=MIB)
    assert peaks == {
        "forward_peak_mib": [4], "forward_end_mib": [1], "backward_peak_mib": [2], "backward_end_mib": [2],
        "peak_mib": [4],
    }  # fmt: skip


def test_mps_tells_what_is_held_at_the_end_of_each_phase_and_no_peak(monkeypatch):
    monkeypatch.setattr(Mps, "memory_bytes", lambda _: {"end": 2 * MIB})
    assert peak_memory.peaks(lambda mark: mark("forward"), "mps") == {"forward_end_mib": [2]}


ERRORS = [
    RuntimeError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"),
    RuntimeError("Invalid buffer size: 8.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    MemoryError(),
]


@pytest.mark.parametrize("error", ERRORS)
def test_running_out_is_seen_in_an_error_and_in_those_that_wrap_it(error):
    assert peak_memory.out_of_memory(error)
    wrapping = RuntimeError("compiling failed")
    wrapping.__context__ = error
    assert peak_memory.out_of_memory(wrapping)


@pytest.mark.parametrize(
    "words",
    [
        "mat1 and mat2 shapes cannot be multiplied",
        "out of range",
        # a kernel that no GPU of this kind can hold is a fault of the kernel, and not of the case's size
        "out of resource: shared memory, Required: 131074, Hardware limit: 101376. Reducing block sizes",
        "PTXASError: ptxas error: Entry function 'triton_' uses too much shared data",
    ],
)
def test_other_errors_are_not_taken_for_out_of_memory(words):
    assert not peak_memory.out_of_memory(RuntimeError(words))
