"""The chapter says what disturbed the records, what the self-check found and what is missing."""

import pytest

from lib import notebooks
from lib.chapters import method
from lib.records import results
from lib.sweep import sweep_file


def test_coverage_counts_how_cases_ended_and_how_many_of_the_whole_grid_were_tried(save_record):
    case = {"d_head": 64, "batch_size": 8, "causal": True, "precision": "fp32", "native": False, "cold": False}
    for seq_len, status in ((1024, "ok"), (16384, "timeout"), (77, "ok")):
        save_record(case={"variant": "naive", "seq_len": seq_len} | case | {"device": "cpu"}, status=status)
    (row,) = method.coverage({"attention": results.load("attention", "test-1c")}).to_dict("records")
    assert (row["cases here"], row["measured"], row["took longer than its time limit"]) == (3, 2, 1)
    assert (row["of them here"], row["cases of the whole grid"]) == (2, len(method.whole_grids()["attention"]))


def test_the_whole_grid_is_that_of_the_gpu_sweep():
    expected = {}
    for kernel in sweep_file.load("gpu"):
        for case in kernel.cases:
            names = [name for name in notebooks.fields(case.experiment) if name != "device"]
            expected.setdefault(case.experiment, set()).add(tuple(str(getattr(case, name)) for name in names))
    assert method.whole_grids() == expected


def test_own_products_stand_beside_the_best_product(save_record):
    case = {"operation": "matmul", "rows": 1024, "columns": 1024, "precision": "fp32"}
    save_record("ceilings", case, total_ms=[2.0] * 6, flops=1e9)
    assert method.own_products(results.load("ceilings", "test-1c")).empty
    own = case | {"operation": "products", "columns": 768, "rows": 512}
    save_record("ceilings", own, total_ms=[5.0] * 6, flops=1e9)
    (row,) = method.own_products(results.load("ceilings", "test-1c")).to_dict("records")
    assert (row["size"], row["tokens"]) == ("small", 512)
    assert (row["gflops"].value, row["ceiling_percent"].value) == (pytest.approx(200), pytest.approx(40))


CALM, SLOW = [1.0] * 20, [1.4] * 20
CASE = {"variant": "naive", "seq_len": 64}


def test_the_badge_and_the_figure_count_noisy_records(save_record, closed_figures):
    save_record(case=CASE, total_ms=[5.0] * 6, noise_probe_ms=CALM)
    assert method.badge("test-1c").text == (
        "Quiet machine: nothing disturbed its 1 timed records. "
        "The measurement was not checked here; make calibrate checks it."
    )
    save_record(case=CASE, round=2, total_ms=[5.0] * 6, noise_probe_ms=SLOW)
    save_record(case=CASE, round=3, total_ms=[5.0] * 6, noise_probe_ms=CALM, environment={"others_percent": 48.7})
    said = method.badge("test-1c").text
    assert said.startswith("Noisy machine: other work disturbed 2 of 3 timed records; other programs used up to 49% of")
    records = {"attention": results.load("attention", "test-1c")}
    ax = method.draw_noise(method.disturbances(records))
    assert [(bar.get_width(), bar.get_facecolor()[3]) for bar in ax.patches] == [(1, 1), (2, 0)], "noisy ones hollow"
    assert [text.get_text() for text in ax.texts] == ["2 of 3"]
    assert method.probed(records).startswith("a test. Noisy: ")


def test_the_badge_counts_throttled_and_launch_bound_records(save_record):
    around = {"throttled": ["power cap"], "sm_clock_mhz": [1980, 1410], "power_w": [699.5, 700.1]}
    save_record(case=CASE, total_ms=[5.0] * 6, host_ms=[4.9] * 6, noise_probe_ms=CALM, environment=around)
    save_record(case=CASE, round=2, total_ms=[5.0] * 6, noise_probe_ms=CALM, environment={"sm_clock_mhz": [1950, 1980]})
    assert method.badge("test-1c").text.startswith(
        "Quiet machine: nothing disturbed its 2 timed records. The GPU was throttled beside 1 of 2 records. "
        "In 1 of 2 records launching sets the time (launch-bound)."
    )
    records = {"attention": results.load("attention", "test-1c")}
    (row,) = method.disturbances(records).to_dict("records")
    assert (row["noisy machine"], row["throttled"], row["launch-bound"]) == (0, 1, 1)
    said = method.environments(records.values()).set_index("what")["value"]
    assert (said["clock of the GPU, MHz"], said["throttled"]) == ("1410 to 1980", "power cap")


def test_the_badge_says_which_checks_hold(save_record):
    save_record(case=CASE, total_ms=[5.0] * 6, noise_probe_ms=CALM)
    save_record(
        "calibration", {"check": "spin", "device": "cpu"}, known_ms=[1.0, 10.0], median_ms=[1.0, 11.0],
        noise_probe_ms=CALM,
    )  # fmt: skip
    assert method.badge("test-1c").text.endswith(
        " 1 of 2 self-checks of the measurement hold; these fail: a wait of 10 ms."
    )
    shown = method.checks("test-1c")
    assert list(shown.frame["found"]) == ["+0.00 µs (must be at most 4.5 µs)", "+1000.00 µs (must be at most 22.5 µs)"]
    assert shown.note == ""
    assert "self-check" not in set(method.missing("test-1c")["what"])


def test_the_badge_says_how_long_the_unclear_comparisons_take(save_record):
    for round, factor in ((1, 0.5), (2, 1.0), (3, 2.0)):
        for variant, ms in (("naive", 1.0), ("tiled", factor)):
            save_record(case=CASE | {"variant": variant}, round=round, total_ms=[ms] * 8)
    said = method.badge("test-1c").text
    assert "1 of 1 comparisons are unclear: python -m lib.report verdicts writes unclear.yaml, and make sweep " in said
    assert said.endswith("SWEEP=unclear.yaml measures them again in 1 min.")


def test_what_is_missing_is_listed_once_with_its_reason(save_record):
    lacking = {"lacks": ["tf32 needs a CUDA device"]}
    save_record(case=CASE, total_ms=[1.0], environment=lacking)
    for seq_len in (1024, 2048, 4096, 8192):
        save_record(case=CASE | {"seq_len": seq_len}, status="oom", environment=lacking)
    unseen = {"nsys_missing": "it traces only CUDA", "profiler_missing": "no kernels"}
    save_record("kernels", {"size": "tiny"}, total_ms=[1.0], **unseen)
    table = method.missing("test-1c").set_index("what")
    assert table["why"]["tf32"] == "tf32 needs a CUDA device"
    assert table["why"]["Nsight Systems"] == "it traces only CUDA"
    assert table["why"]["torch.profiler"] == "no kernels"
    assert tuple(table.loc["attention"]) == ("1024; 2048; 4096; and 1 more", "ran out of memory")
    assert table["why"]["step"] == "no records"
    assert "kernels" not in table.index
    assert table["why"]["self-check"].startswith("no records; make calibrate")
