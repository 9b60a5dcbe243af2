"""Records become medians, quotients and marks that say what the data shows and nothing else."""

import statistics

import pandas as pd
import pytest

from lib.chapters import method
from lib.records import results
from lib.report import tables, tidy
from two_variants import CASE


def test_medians_give_a_row_a_case_in_the_order_of_introduction(records):
    table = tidy.medians(records, "forward_ms", "absent_ms")
    assert list(table["variant"]) == ["naive", "naive", "tiled", "tiled"]
    assert list(table["seq_len"]) == [64, 128, 64, 128]
    assert table["forward_ms"][0].n == 24
    assert table["absent_ms"].isna().all()


def test_a_case_that_ended_badly_is_a_row_that_says_why(records, save_record):
    save_record(
        case=CASE | {"variant": "sdpa"}, status="too_large", predicted_bytes=2**33, available_bytes=2**31
    )  # fmt: skip
    save_record(case=CASE | {"variant": "flex"}, status="failed", reason="KeyError: '<b>'")
    save_record(case=CASE | {"variant": "compiled"}, status="no_room", predicted_bytes=2**33, available_bytes=2**31)
    table = tidy.medians(results.load("attention", "test-1c"), "forward_ms")
    why = table.set_index("variant")["why"]
    assert (why["flex"], why["compiled"]) == (
        "raised an error: KeyError: '<b>'",
        "no room at the time (8.0 GiB of 2.0)",
    )
    assert "<b>" not in tables.show(table, "variant forward_ms", "a caption")._repr_html_()
    table = table[~table["variant"].isin(["flex", "compiled"])]
    row = table[table["variant"] == "sdpa"].iloc[0]
    assert row["why"] == "predicted not to fit (8.0 GiB of 2.0)"
    assert row["forward_ms"] is None
    shown = tables.show(table, "variant seq_len forward_ms", "a caption")._repr_html_()
    assert '<td class="reason" colspan="1">predicted not to fit (8.0 GiB of 2.0)</td></tr>' in shown
    without = tables.show(table, "forward_ms variant seq_len", "a caption")._repr_html_()
    assert '<td class="reason" colspan="1">predicted not to fit (8.0 GiB of 2.0)</td><td' in without
    assert "64<br>predicted not" in tables.show(table, "variant seq_len", "a caption")._repr_html_()


def test_a_kernel_that_needs_too_much_shared_memory_is_told_apart_from_one_without_memory(save_record):
    found = {"asked_bytes": 131074, "shared_memory_bytes": 101376}
    save_record(case=CASE | {"variant": "flex"}, status="oom", **found)
    save_record(case=CASE | {"variant": "naive"}, status="oom", asked_bytes=2**40)
    why = tidy.medians(results.load("attention", "test-1c")).set_index("variant")["why"]
    assert why["flex"] == "ran out of shared memory (128 KiB of 99)"
    assert why["naive"] == "ran out of memory"


def test_quotients_sums_and_rates_are_formed_sample_by_sample(records):
    row = records.iloc[0]
    share = tidy.with_quotient(records, "share", "forward_ms", "total_ms", scale=100)
    assert share["share"].iloc[0] == pytest.approx([50.0] * 8)
    both = tidy.with_sum(records, "sum_ms", "forward_ms", "total_ms")
    assert both["sum_ms"].iloc[0] == pytest.approx([3 * t for t in row["forward_ms"]])
    rate = tidy.with_rate(records, "rate", "flops")
    assert rate["rate"].iloc[0] == pytest.approx([row["flops"] * 1e3 / t for t in row["total_ms"]])
    assert share.fields == records.fields


def test_mean_and_deviation_are_of_one_process_and_known_from_two_samples_on(records, save_record):
    times = records["total_ms"].iloc[0]
    moments = tidy.with_moments(records).iloc[0]
    assert moments["mean_ms"] == [pytest.approx(sum(times) / 8)]
    assert moments["deviation_ms"] == [pytest.approx(statistics.stdev(times))]
    assert moments["deviation_percent"] == [pytest.approx(100 * statistics.stdev(times) / moments["mean_ms"][0])]
    save_record(case=CASE | {"seq_len": 1}, total_ms=[1.0])
    short = tidy.with_moments(results.load("attention", "test-1c"))
    assert short.loc[short["seq_len"] == 1, ["mean_ms", "deviation_ms", "deviation_percent"]].isna().all(axis=None)


def test_a_fact_stands_beside_the_medians_and_a_size_comes_with_its_width(records, save_record):
    assert list(tidy.medians(records, "flops")["flops"]) == [64**2, 128**2] * 2
    save_record(experiment="step", case={"size": "xl"}, status="too_large", predicted_bytes=2, available_bytes=1)
    assert list(tidy.medians(results.load("step", "test-1c"), "flops")[["d_model", "flops"]].iloc[0]) == [
        1600,
        None,
    ]


def test_only_a_process_that_found_nothing_compiled_counts_as_a_cold_start(records):
    cold = tidy.medians(tidy.with_cold_start(records), "first_iteration_s")["first_iteration_s"][0]
    assert (cold.value, cold.n) == (0.1, 1)


def test_the_largest_case_has_times_and_is_one_of_several_processes_where_there_is_any(save_record):
    for seq_len, round in ((128, 1), (128, 2), (256, 1)):
        save_record(case=CASE | {"seq_len": seq_len}, round=round, total_ms=[1.0] * 6)
    save_record(case=CASE | {"seq_len": 9999}, status="oom")
    records = results.load("attention", "test-1c")
    assert tidy.largest(records, "seq_len", variant="naive") == CASE | {"seq_len": 128}
    assert tidy.largest(records[records["round"] == 1], "seq_len")["seq_len"] == 256


def test_a_selection_of_several_cases_is_no_sample(records):
    with pytest.raises(ValueError, match="more than one case"):
        tidy.samples(records, "total_ms")


def test_a_share_of_a_whole_ends_at_a_hundred_percent(save_record):
    for round, percent in enumerate((88.0, 99.0, 100.0), 1):
        save_record(case=CASE, round=round, forward_percent=[percent] * 6)
    assert tidy.median(results.load("attention", "test-1c"), "forward_percent").high == 100


def test_a_label_names_what_differs_between_the_rows():
    table = pd.DataFrame({"variant": ["fused", "fused"], "amsgrad": [True, False], "size": [8, 8]})
    assert list(tidy.labelled(table, ["variant", "amsgrad", "size"])["label"]) == ["amsgrad", "plain"]
    assert list(tidy.labelled(table, ["variant", "size"])["label"]) == ["fused", "fused"]
    table["size"] = [1, 2]
    assert list(tidy.labelled(table, ["variant", "amsgrad", "size"])["label"]) == ["amsgrad 1", "2"]
    assert list(tidy.labelled(table, ["variant", "amsgrad", "size"], but="size")["label"]) == ["amsgrad", "plain"]


def test_a_throttled_gpu_is_told_apart_from_a_noisy_machine(save_record):
    throttled = {"throttled": ["power cap", "power cap", "thermal slowdown by hardware"]}
    for round, around in ((1, throttled), (2, {"throttled": []}), (3, {})):
        save_record(case=CASE, round=round, total_ms=[5.0] * 8, noise_probe_ms=[1.0] * 20, environment=around)
    records = results.load("attention", "test-1c")
    table = tidy.medians(records, "total_ms")
    assert (table["noisy"].iloc[0], table["throttled"].iloc[0]) == ("", "1 of 3")
    assert tidy.throttled(records.iloc[0]) == ["power cap", "thermal slowdown by hardware"]
    shown = tables.show(table, "total_ms", "Times")._repr_html_()
    assert ">throttled</th>" in shown
    assert "Rows with rounds with a throttled GPU: 1 of 1" in shown


@pytest.mark.parametrize(
    ("host_ms", "total_ms", "bound"),
    [
        (4.5, 5.0, True),
        (4.4, 5.0, False),
        (95.0, 100.0, False),  # a host so far ahead waited for room in the queue
        (99.5, 100.0, True),
        (None, 10.0, False),
    ],
)
def test_a_case_is_launch_bound_where_the_host_takes_as_long_as_the_device(save_record, host_ms, total_ms, bound):
    host = {"host_ms": [host_ms] * 7 + [50 * host_ms]} if host_ms else {}
    save_record(case=CASE, total_ms=[total_ms] * 8, **host)
    table = tidy.medians(results.load("attention", "test-1c"), "total_ms", "peak_mib")
    assert ("launch_bound" in table) == bound
    assert (">launch-bound</th>" in tables.show(table, "total_ms", "Times")._repr_html_()) == bound
    assert ">launch-bound</th>" not in tables.show(table, "peak_mib", "Memory")._repr_html_()


def test_what_was_measured_on_a_noisy_machine_is_marked(save_record):
    calm, slow, uneven = [1.0] * 20, [1.3] * 20, [1.0, 1.4] * 10
    for round, probe in ((1, calm), (2, slow), (3, uneven)):
        save_record(case=CASE, round=round, total_ms=[5.0 + 0.001 * i for i in range(8)], noise_probe_ms=probe)
    drifting = [5.0 * (1 + 0.01 * i) for i in range(20)]
    save_record(case=CASE | {"seq_len": 128}, total_ms=drifting, noise_probe_ms=calm)
    save_record(case=CASE | {"seq_len": 256}, total_ms=[5.0] * 20, noise_probe_ms=calm)
    records = results.load("attention", "test-1c")
    table = tidy.medians(records, "total_ms")
    assert list(table["noisy"]) == ["2 of 3", "1 of 1", ""]
    assert tidy.disturbances(records[records["seq_len"] == 128].iloc[0]) == "a drift of +17%"
    shown = tables.show(table, "seq_len total_ms", "a caption")._repr_html_()
    assert ">noisy</th>" in shown
    assert "Rows with rounds on a noisy machine or with drifting times: 2 of 3" in shown
    (row,) = method.disturbances({"attention": records}).to_dict("records")
    assert (row["records"], row["noisy machine"], row["series that change"]) == (5, 2, 1)


@pytest.mark.parametrize(
    ("products", "ms", "marked"),
    [
        ({8: 1.0, 16: 1.04}, 3 / 1.06, True),
        ({8: 1.0, 16: 1.04}, 3 / 1.04, False),
        ({8: 1.0}, 3 / 1.06, False),  # one size alone may not be the fastest
        ({8: 1.0, 16: 1.2}, 3 / 1.06, False),  # a larger one may be faster still
        ({}, 3 / 1.06, False),
    ],
)
def test_a_step_faster_than_the_ceiling_is_marked_once_the_ceiling_is_complete(save_record, products, ms, marked):
    for rows, product_ms in products.items():
        case = {"operation": "matmul", "rows": rows, "columns": 8, "precision": "fp32"}
        save_record("ceilings", case, total_ms=[product_ms] * 3, flops=1e9)
    for precision in ("fp32", "bf16"):  # of bf16 there is no ceiling at all
        case = {"size": "tiny", "precision": precision, "mode": "train_step"}
        save_record("step", case, total_ms=[ms] * 6, forward_flops=1e9)
    records = results.load("step", "test-1c")
    found = dict(zip(records["precision"], (tidy.disturbances(row) for _, row in records.iterrows()), strict=True))
    assert found == {"fp32": tidy.TOO_FAST if marked else "", "bf16": ""}
    (row,) = method.disturbances({"step": records}).to_dict("records")
    assert (row["above the ceiling"], row["noisy machine"], row["series that change"]) == (int(marked), 0, 0)
    assert ("faster than the ceiling allows" in method.badge("test-1c").text) == marked


def test_memory_that_is_not_counted_is_called_not_available(save_record):
    save_record(case=CASE, total_ms=[1.0] * 6, peak_mib=[3.0])
    save_record(case=CASE | {"variant": "compiled"}, total_ms=[1.0] * 6)
    save_record(case=CASE | {"variant": "sdpa"}, status="oom")
    table = tidy.medians(results.load("attention", "test-1c"), "peak_mib")
    shown = tables.show(table, "variant peak_mib", "a caption")._repr_html_()
    assert shown.partition("<details")[0].count("not available") == 1
    without = tidy.select(table, variant="compiled")
    assert "not available" in tables.show(without, "variant peak_mib", "a caption")._repr_html_()
