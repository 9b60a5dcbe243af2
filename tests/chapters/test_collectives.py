"""The chapter finds latency and bandwidth again in records that were made from them, and the bucket that follows."""

import pytest

from lib.chapters import collectives
from lib.parallel.accounting import Network
from lib.records import results
from lib.report import tidy

RING = Network(latency_s=2e-4, bandwidth=3e9)
CASE = {"operation": "all_reduce", "megabytes": 1, "world": 2, "backend": "gloo", "device": "cpu"}
STEP = {
    "size": "tiny", "context_length": 128, "batch_size": 4, "variant": "bucketed", "bucket_mib": 1, "world": 2,
    "backend": "gloo", "precision": "fp32", "device": "cpu",
}  # fmt: skip


@pytest.fixture
def measured(save_record):
    """Three processes' records of collectives that take what the ring says, times a little noise."""

    def measured(worlds=(2, 4), operations=("all_reduce", "reduce_scatter", "all_gather"), of=RING):
        for operation in operations:
            for world in worlds:
                for megabytes in (1, 10, 100):
                    case = CASE | {"operation": operation, "megabytes": megabytes, "world": world}
                    ms = 1e3 * of.seconds(operation, 1e6 * megabytes, world)
                    for round in (1, 2, 3):
                        noisy = [ms * (1 + 0.01 * (round - 2) + 1e-4 * number) for number in range(-3, 4)]
                        over = int(world > 2)  # cores
                        save_record(
                            "collectives", case, round, total_ms=noisy, message_bytes=1e6 * megabytes,
                            oversubscribed=over,
                        )  # fmt: skip
        return collectives.prepared(results.load("collectives", "test-1c"))

    return measured


def buckets(save_record, **step_ms):
    """Save steps with buckets of so many MiB; load them."""
    for mib, ms in step_ms.items():
        save_record("ddp", STEP | {"bucket_mib": int(mib[1:])}, total_ms=[ms] * 6)
    return results.load("ddp", "test-1c")


def test_both_bandwidths_are_those_of_nccl_tests(measured):
    records = measured(worlds=[4], operations=["all_reduce", "all_gather"])
    for operation, passes in (("all_reduce", 1.5), ("all_gather", 0.75)):
        row = tidy.one(records, {"operation": operation, "megabytes": 100})
        algorithm = 0.1 / (row["total_ms"][3] / 1e3)
        assert row["algorithm_gb_per_s"][3] == pytest.approx(algorithm)
        assert row["bus_gb_per_s"][3] == pytest.approx(passes * algorithm)


def test_the_fits_have_intervals_and_give_the_network_back(measured, save_record):
    for megabytes in (1, 10):  # a process that has fewer sizes is left out
        save_record(
            "collectives", CASE | {"megabytes": megabytes}, 4, total_ms=[50.0 * megabytes] * 7,
            message_bytes=1e6 * megabytes, oversubscribed=0,
        )  # fmt: skip
    found = collectives.fits(measured())
    assert len(found) == 6
    for _, row in found.iterrows():
        assert row["bus_gb_per_s"].value == pytest.approx(3, rel=1e-3)
        assert row["overhead_us"].low < 1e6 * RING.overhead_s(row["operation"], row["world"]) < row["overhead_us"].high
    network = collectives.network(found)
    assert collectives.network(found.iloc[:0]) is None
    assert (network.latency_s, network.bandwidth) == (pytest.approx(2e-4, rel=1e-3), pytest.approx(3e9, rel=1e-3))
    assert collectives.headline_fit(found)["world"] == 2  # four ranks are more than the cores


def test_the_answer_has_time_latency_and_bandwidth_and_the_figure_a_line_and_a_model_by_ranks(measured):
    records = measured()
    found = collectives.fits(records)
    said = collectives.answer(records, found)
    assert "ms, a bus bandwidth of 2.96 GB/s" in said.text
    assert "the latency is 400" in said.text
    assert "the algorithm bandwidth 3.00 (2.93 to 3.08) GB/s" in said.text
    assert said.verdict == "measured"
    assert len(said.records) == len(records)
    table = collectives.curves(records, found)
    assert set(table["line"]) == {"n=2", "n=4"}
    for _, row in table.iterrows():
        assert row["model_gb_per_s"].value == pytest.approx(row["algorithm_gb_per_s"].value, rel=1e-3)


def test_the_best_bucket_stands_beside_the_best_measured(measured, save_record):
    found = collectives.fits(measured(worlds=[2], operations=["all_reduce"]))
    steps = buckets(save_record, _1=30.0, _10=25.0, _100=28.0)
    said = collectives.bucket(steps, found).text
    assert "is 3.97 MiB; of the buckets measured (1, 10, 100 MiB), 10 MiB had the least median" in said


def test_an_overhead_that_does_not_show_gives_no_bucket(measured, save_record):
    records = measured(of=Network(-1e-5, 3e9))  # small messages take even less than their bytes would
    found = collectives.fits(records)
    assert "the latency is too small to measure and the algorithm bandwidth" in collectives.answer(records, found).text
    said = collectives.bucket(buckets(save_record, _1=25.0, _10=25.0), found).text
    assert "the model gives no best bucket, since o is too small" in said


def test_theory_adds_the_halves_and_counts_the_rings_bytes(measured):
    halves, growth = collectives.theory(measured())
    assert halves.predicted == pytest.approx(halves.measured.value, rel=1e-3)
    assert growth.predicted == 1.5
    assert 1.5 < growth.measured.value < 1.6  # the turns' latency comes on top


def test_the_write_ups_figures_are_fitted_and_stand_beside_ours(measured):
    found = collectives.published_fits()
    assert len(found) == 8
    assert 250 < tidy.one(found, {"backend": "nccl", "hardware": "H100", "world": 2})["algorithm_gb_per_s"] < 400
    table = collectives.beside_published(measured(worlds=[2], operations=["all_reduce"]))
    assert {"this report", "brandon-snider/cs336-a2", "damek/cs336-assignment2-systems"} == set(table["source"])
    assert tuple(table.columns[-4:]) == ("1 MB", "10 MB", "100 MB", "1000 MB")
