"""A trace becomes tables whose sums are the trace's, and names fall into the classes they belong to."""

import statistics

import pytest

from lib.instruments import kernel_classes
from lib.instruments import profiler as profiling
from lib.report import published


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def note(name, ts):
    return event("user_annotation", name, ts, 1)


MARKS = [note(profiling.START, 0), note(profiling.END + "forward", 100), note(profiling.END + "backward", 200)]


def test_an_operator_has_its_own_time_without_that_of_those_it_calls():
    between_iterations = event("cpu_op", "aten::zero_", 250, 5)
    product = event("cpu_op", "aten::mm", 20, 30, **{"Input Dims": [[2, 3], [3, 4]]})
    events = [*MARKS, event("cpu_op", "aten::matmul", 10, 50), product, between_iterations]
    metrics = profiling.metrics(events, "cpu")
    assert metrics["kernels"]["kernel"] == ["aten::mm", "aten::matmul"]
    assert metrics["kernels"]["total_us"] == [30, 20]
    assert metrics["classes"] == {"phase": ["forward"], "class": ["matrix product"], "calls": [2.0], "total_us": [50.0]}
    assert profiling.products(events) == {
        "phase": ["forward"], "shape": ["2 × 3 × 4"], "calls": [1], "total_us": [30.0], "flops": [48.0],
    }  # fmt: skip
    assert metrics["profiled_forward_ms"] == [0.099]
    assert metrics["profiled_total_ms"] == [0.198]


def test_a_table_is_of_the_median_iteration_and_no_phase_is_exceeded_by_its_operators():
    events = []
    start = 0
    # the first is cold, and discarded; of the others, 650 is the median
    for length in (2089, 639, 650, 700):
        events += [note(profiling.START, start), event("cpu_op", "aten::mm", start + 5, length - 20)]
        events += [note(profiling.END + "forward", start + length)]
        start += length + 100
    metrics = profiling.metrics(events, "cpu", discarded=1)
    assert metrics["profiled_total_ms"] == [0.638, 0.649, 0.699]
    assert metrics["classes"]["total_us"] == [630]
    assert metrics["classes"]["calls"] == [1]
    assert metrics["classes"]["total_us"][0] <= 1000 * statistics.median(metrics["profiled_forward_ms"])


def test_a_kernel_belongs_to_the_phase_that_launched_it_though_it_runs_later():
    events = [
        *MARKS,
        event("cuda_runtime", "cudaLaunchKernel", 90, 2, correlation=7),
        event("kernel", "ampere_sgemm_128x64_tn", 130, 40, tid=7, correlation=7),
        event("cuda_driver", "cuLaunchKernelEx", 150, 2, tid=3, correlation=8),
        event("kernel", "nvjet_hsh_128x256_64x4", 170, 60, tid=7, correlation=8),
        event("cuda_runtime", "cudaMemsetAsync", 160, 2, correlation=9),
        event("gpu_memset", "Memset (Device)", 230, 5, tid=7, correlation=9),
        event("gpu_user_annotation", "scores", 130, 40, tid=7),
    ]
    metrics = profiling.metrics(events, "cuda")
    assert metrics["kernels"]["phase"] == ["forward", "backward", "backward"]
    assert metrics["kernels"]["class"] == ["matrix product", "matrix product", "copy"]
    assert metrics["kernels"]["total_us"] == [40, 60, 5]
    assert metrics["profiled_forward_ms"] == [0.169]  # from the iteration's begin to the end of its last kernel
    assert metrics["profiled_backward_ms"] == [0.065]


def test_a_trace_that_lacks_the_kernels_of_a_phase_gives_no_times():
    launches = [event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=at) for at in (90, 150)]
    kernels = [event("kernel", "ampere_sgemm_128x64_tn", at + 30, 40, tid=7, correlation=at) for at in (90, 150)]
    launched = [*MARKS, event("cpu_op", "aten::mm", 20, 30), *launches]
    for events in (launched, [*launched, kernels[0]]):
        assert profiling.metrics(events, "cuda", ("scores",)) == {"profiler_missing": profiling.NO_KERNELS}
    assert "profiled_total_ms" in profiling.metrics([*launched, *kernels], "cuda")


def test_the_largest_kernels_have_shares_of_all_in_their_phase():
    events = [event("cpu_op", f"aten::mm{i}", 2 * i + 2, 1 + i / 100) for i in range(20)]
    kernels = profiling.metrics([*MARKS, *events], "cpu")["kernels"]
    assert kernels["kernel"] == [f"aten::mm{i}" for i in range(19, 19 - profiling.TOP, -1)]
    assert kernels["share_percent"][0] == pytest.approx(100 * 1.19 / sum(e["dur"] for e in events))


def test_the_backward_of_a_part_is_found_by_the_number_of_the_operator_that_made_its_node():
    number = {"Sequence number": 5}
    events = [
        *MARKS,
        event("user_annotation", "scores", 10, 10),
        event("cpu_op", "aten::ones", 15, 2, **number),  # makes no node, and so has the number of the next
        event("user_annotation", "softmax", 30, 10),
        event("cpu_op", "aten::softmax", 31, 8, **number),
        event("cpu_op", profiling.NODE + ": SoftmaxBackward0", 120, 20, tid=2, **number),
        event("cpu_op", "aten::_softmax_backward_data", 125, 10, tid=2, **number),
        event("cpu_op", "aten::mul", 150, 10, tid=2),
    ]
    parts = profiling.metrics(events, "cpu", ("scores", "softmax"))["parts"]
    assert parts["part"] == ["scores", "softmax", "softmax", "softmax"]
    assert parts["phase"] == ["forward", "forward", "backward", "backward"]
    assert parts["class"] == ["copy", "reduction", "reduction", "overhead"]
    assert parts["total_us"] == [2, 8, 10, 10]


NAMES = {
    "matrix product": ["nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTT", "void cublasLt::splitKreduce_kernel<32, 16>(...)"],
    "attention": ["flash_backward_kv", "fmha_cutlassF_f32_aligned_64x64_rf_sm80"],
    "reduction": ["triton_per_fused__softmax_2", "graph_0_cpp_fused__softmax_backward_data_div_masked_fill_view_5"],
    "copy": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "graph_0_cpp_fused__unsafe_view_clone_transpose_view_4", "void cub::DeviceRadixSortOnesweepKernel<int>",
    ],
    "elementwise": [
        "void at::native::elementwise_kernel<128, 2, at::native::masked_fill_kernel_impl>", "aten::silu_backward",
        "triton_poi_fused_mul_silu_3", "graph_0_cpp_fused__unsafe_view_mul_silu_5", "aten::masked_fill_",
    ],
    "overhead": ["SiluBackward0", "FlashAttentionTorchBackward"],
    "other": ["something new", "_fwd_kernel"],
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_a_name_falls_into_its_class(kind):
    for name in NAMES[kind]:
        assert (name, kernel_classes.classify(name)) == (name, kind)
        assert kernel_classes.classify(name, "optimizer") == "optimizer"


def test_every_published_kernel_has_a_class_and_a_short_name():
    printed = published.load("kernels")
    assert set(printed["kernel"].map(kernel_classes.classify)) == {"matrix product", "elementwise", "copy"}
    short = printed["kernel"].map(kernel_classes.short)
    assert short.map(len).max() < 70
    assert "elementwise_kernel (direct_copy_kernel_cuda)" in set(short)
    assert "cutlass_80_simt_sgemm_128x32_8x5_nt_align1" in set(short)
