"""The planner agrees with sums by hand, and its error on measured steps is what the table says."""

import math

import pytest

from lib.chapters import planning
from lib.chapters.planning import PHASES, Device, Step
from lib.cost import flops
from lib.cost.flops import model_shape
from lib.parallel import accounting
from lib.parallel.accounting import Network
from lib.records import results
from lib.report import tidy

GPU = Device({"fp32": 5e13}, 3e12, 5e-6, 72 * 2**30, "cuda")
RING = Network(5e-6, 3e11)
STEP = {
    "size": "tiny", "context_length": 128, "batch_size": 4, "precision": "fp32", "compiled": False,
    "attention": "sdpa", "optimizer": "fused", "mode": "train_step", "device": "cpu",
}  # fmt: skip
DDP = {
    "size": "tiny", "context_length": 128, "batch_size": 4, "variant": "naive", "bucket_mib": 0, "world": 2,
    "backend": "gloo", "device": "cpu", "precision": "fp32",
}  # fmt: skip


@pytest.fixture
def measured(save_record):
    """Records of a machine at whose ceilings a step of a size takes `slower` times what they say."""

    def measured(**slower):
        around, of = {"memory_mib": 2**15}, Device({"fp32": 1e11}, 4e10, 0.0, 1.0)
        for operation, work in (("matmul", {"flops": 1e8}), ("copy", {"moved_bytes": 4e7})):
            ceiling = {"operation": operation, "rows": 2048, "columns": 8192, "precision": "fp32", "device": "cpu"}
            save_record("ceilings", ceiling, environment=around, total_ms=[1.0] * 6, **work)
        for size, times in slower.items():
            parts = of.least_ms(Step(model_shape(size, 128), "fp32"))
            phases = {f"{phase}_ms": [times * ms] * 6 for phase, ms in parts.items()}
            save_record("step", STEP | {"size": size}, total_ms=[times * sum(parts.values())] * 6, **phases)
        return results.load("step", "test-1c"), results.load("ceilings", "test-1c")

    return measured


def test_a_step_at_the_ceilings_is_its_costs_over_its_rates():
    shape, of = model_shape("small", 128), Device({"fp32": 1e11}, 4e10, 1e-6, 1.0)
    found = of.least_ms(Step(shape, "fp32", ("naive", "single_tensor")))
    costs = flops.step_costs(shape, "fp32", "naive", "single_tensor", ("backward",))
    assert found["backward"] == pytest.approx(1e3 * (costs.flops / 1e11 + costs.bytes / 4e10 + costs.operations / 1e6))
    tiny = Device({"fp32": 1e15}, 1e15, 1.0, 1.0, "cuda").least_ms(Step(model_shape("tiny", 128), "fp32"))
    assert tiny["forward"] == pytest.approx(1e3 * 400)  # a GPU waits for the calls where these take longer


def test_the_device_is_slower_as_in_the_nearest_step_and_each_is_predicted_from_the_others(measured):
    steps, ceilings = measured(tiny=2.0, small=1.5)
    of = planning.device(steps, ceilings)
    assert (of.flops["fp32"], of.bandwidth) == (pytest.approx(1e11), pytest.approx(4e10))
    assert of.usable_bytes == pytest.approx(0.9 * 2**35)
    for size, slower in (("tiny", 2.0), ("small", 1.5), ("xl", 1.5)):
        step = Step(model_shape(size, 128), "fp32")
        least, found = of.least_ms(step), of.phases_ms(step)
        assert [found[phase] / least[phase] for phase in PHASES] == pytest.approx([slower] * 3)
    found = planning.checked(of, RING, steps, results.load("ddp", "test-1c"))
    by_size = found.set_index("size")["error_percent"]
    assert by_size["tiny"] == pytest.approx(100 * (1.5 / 2 - 1))
    assert by_size["small"] == pytest.approx(100 * (2 / 1.5 - 1))
    said = planning.error(found, steps)
    assert said.text == "The planner's error is −25% to +33% on 2 measured steps of one process."
    assert len(said.records) == 2


def test_ranks_on_a_cpu_share_it(measured, save_record):
    steps, ceilings = measured(tiny=1.0, small=1.0)
    of, shape = planning.device(steps, ceilings), model_shape("tiny", 128)
    parts = of.phases_ms(Step(shape, "fp32"))
    (messages,) = accounting.step_messages("naive", shape)
    expected = parts["forward"] + parts["backward"] + 2 * parts["optimizer"] + 1e3 * messages.seconds(RING, 2)
    save_record("ddp", DDP, total_ms=[expected] * 6)
    (row,) = tidy.select(planning.checked(of, RING, steps, results.load("ddp", "test-1c")), world=2).to_dict("records")
    weights = 4 * 2 * 10_000 * 128  # the embedding's gradient is written by both ranks
    assert abs(row["predicted_ms"] - expected) <= 1e3 * 3 * weights / 4e10


def test_only_what_is_sharded_takes_less_with_more_devices_and_one_has_nothing_to_wait_for():
    step, exposed = Step(model_shape("xl", 512), "fp32"), {}
    alone = GPU.phases_ms(step)
    for scheme in accounting.SCHEMES:
        assert planning.step_ms(GPU, RING, scheme, step, 1) == alone | {"synchronization": 0}
        parts = planning.step_ms(GPU, RING, scheme, step, 8)
        assert parts["optimizer"] == pytest.approx(alone["optimizer"] / (8 if scheme in ("sharded", "fsdp") else 1))
        exposed[scheme] = parts["synchronization"]
    assert min(exposed.values()) > 0
    assert exposed["overlap"] < exposed["flat"] < exposed["naive"]


def test_the_plan_has_every_size_scheme_and_number_of_devices_and_the_best_that_fits():
    planned = planning.plan(GPU, RING, 512)
    assert len(planned) == len(planning.PLANNED) * len(accounting.SCHEMES) * len(planning.WORLDS)
    small = tidy.select(planned, size="small", scheme="flat").set_index("world")
    assert small["tokens_per_s"][64] == pytest.approx(64 * 4 * 512 / small["total_ms"][64] * 1e3)
    best = planning.best(planned).set_index("size")
    assert best.loc["10B", "scheme"] == "fsdp"
    assert best.loc["10B", "rank_gib"] < 72
    assert best.loc["10B", "least_world"] > 1 == best.loc["small", "least_world"]
    assert best.loc["small", "total_ms"] == tidy.select(planned, size="small", world=64, fits=True)["total_ms"].min()
    wide = planning.wide(planned, "rank_gib")
    assert set(wide["scheme"]) == {"data parallel", "sharded", "fsdp"}
    assert list(wide.columns[2:]) == [str(world) for world in planning.WORLDS]
    assert "64 devices like this one train 10B with fsdp at " in planning.answer(planned, GPU).text
    nowhere = planning.best(planned.assign(fits=False)).set_index("size")
    assert nowhere.loc["10B", "why"].startswith("a rank needs ")
    assert math.isnan(nowhere.loc["10B", "total_ms"])
