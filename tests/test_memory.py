"""Memory is counted to the byte, and what cannot fit is refused before it is built."""

import pytest
import torch

from lib import memory
from lib.memory import MIB


def test_peaks_are_exact_where_the_allocations_are_known():
    older = torch.zeros(MIB // 4)  # 1 MiB in fp32, there before

    def iteration(mark):
        kept = older + 1  # 1 MiB more
        passing = torch.cat([kept, kept, kept])  # 3 MiB more, for a while
        del passing
        mark("first")
        more = kept * 2  # 1 MiB more beside `kept`
        mark("second")
        del kept, more

    found = memory.peaks(iteration, "cpu")
    assert found["first_peak_mib"] == [5.0]
    assert found["first_end_mib"] == [2.0]
    assert found["second_peak_mib"] == [3.0]
    assert found["peak_mib"] == [5.0]


def test_views_and_in_place_operations_take_no_memory():
    older = torch.zeros(MIB // 4)

    def iteration(mark):
        older.view(2, -1).t().add_(1)
        mark("run")

    assert memory.peaks(iteration, "cpu")["peak_mib"] == [1.0]


def test_what_autograd_keeps_for_the_backward_pass_is_counted():
    x = torch.ones(MIB // 4, requires_grad=True)

    def iteration(mark):
        y = x.exp()  # exp keeps its result
        mark("forward")
        y.sum().backward()
        mark("backward")

    found = memory.peaks(iteration, "cpu")
    assert found["forward_end_mib"] == [2.0]
    assert found["backward_end_mib"][0] == pytest.approx(3.0, abs=0.01)  # the gradient beside x and y


def test_a_prediction_beyond_what_is_available_is_refused_with_both_numbers():
    available = memory.available_bytes("cpu")
    memory.preflight(available // 2, "cpu")
    with pytest.raises(memory.TooLarge) as raised:
        memory.preflight(10**15, "cpu")
    assert raised.value.predicted == 10**15
    assert raised.value.available == pytest.approx(available, rel=0.2)


def test_out_of_memory_on_a_cpu_is_recognised_with_the_bytes_asked_for():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50)
    assert memory.out_of_memory(raised.value)
    assert memory.asked_bytes(raised.value) == 2**52


def test_other_errors_are_not_taken_for_out_of_memory():
    assert not memory.out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not memory.out_of_memory(ValueError("out of range"))


@pytest.mark.parametrize(
    ("text", "asked"),
    [("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", int(2.5 * 2**30)), ("no number", None)],
)
def test_the_bytes_asked_for_are_read_from_cudas_sentence(text, asked):
    assert memory.asked_bytes(RuntimeError(text)) == asked
