"""A step on ranks is that of one process on the whole batch; a rank holds its share and tells when it sends."""

import pytest

from lib import timing
from lib.experiments import measure, on_ranks
from plain import one

TENSORS = 9 * 4 + 3  # parameters of tiny
WHOLE_MIB = 4 * 3_609_728 / 2**20
PARTS = ("parameters", "gradients", "states", "other")
TOLERANCE = {"fp32": 1e-4, "bf16": 1e-1}
PHASES = ("forward", "backward", "synchronization", "optimizer")
SHARES = [  # how many ranks share parameters and gradients, and the optimizer's states
    *(("sharded", "fp32", variant, 1, states) for variant, states in (("plain", 1), ("sharded", 2), ("torch", 2))),
    *(("fsdp", "fp32", variant, share, share) for variant, share in (("plain", 1), ("fsdp", 2), ("torch", 2))),
    *(("fsdp", "bf16", variant, share, share) for variant, share in (("plain", 1), ("fsdp", 2), ("torch", 2))),
]


def measured(experiment: str, pairs: int = 0, **fields) -> dict:
    case = one(experiment, **{"context_length": 32} | fields)
    return on_ranks.measured(measure.Recording(case, 0), timing.Plan(1, 3), pairs, 1)


@pytest.fixture(scope="module")
def found(same_ranks):
    """What each variant measures, one after the other in the same ranks, and the first one again."""
    taken = {
        key[:3]: measured(key[0], variant=key[2], **{"precision": key[1]} if key[0] == "fsdp" else {})
        for key in SHARES
    }  # fmt: skip
    return taken | {"again": measured("sharded", variant="plain")}


@pytest.mark.parametrize(("experiment", "precision", "variant", "share", "states_share"), SHARES)
def test_every_variant_is_right_and_a_rank_holds_its_share(
    found, experiment, precision, variant, share, states_share
):  # fmt: skip
    metrics = found[experiment, precision, variant]
    assert all(metrics[f"{name}_error"][0] < TOLERANCE[precision] for name in ("logits", "gradient"))
    assert metrics["update_error"][0] < 1e-4
    assert len(metrics["optimizer_ms"]) == 3
    after = {part: metrics[f"after_{part}_mib"][0] for part in PARTS}
    assert after["parameters"] == pytest.approx(WHOLE_MIB / share, rel=0.01)
    assert after["gradients"] == pytest.approx(WHOLE_MIB / share, rel=0.01)
    assert after["states"] == pytest.approx(2 * WHOLE_MIB / states_share, rel=0.02)
    assert sum(after.values()) == pytest.approx(metrics["after_step_mib"][0], rel=0.02)
    assert WHOLE_MIB / share <= metrics["initial_mib"][0] < WHOLE_MIB / share + 4
    if experiment == "sharded":
        grown = metrics["after_step_mib"][0] - metrics["before_step_mib"][0]
        assert grown == pytest.approx(after["states"], rel=0.02)
    if variant != "plain" and experiment == "fsdp":
        assert metrics["peak_mib"][0] < found[experiment, precision, "plain"]["peak_mib"][0]
        assert metrics["peak_mib"][0] <= 1.05 * metrics["formula_mib"][0]


def test_a_case_leaves_nothing_in_its_ranks(found):
    assert found["again"]["initial_mib"] == pytest.approx(found["sharded", "fp32", "plain"]["initial_mib"])


def spans(metrics: dict, rank: int, part: str) -> list[tuple[float, float]]:
    timeline = metrics["timeline"]
    rows = zip(*(timeline[name] for name in ("rank", "part", "start_ms", "end_ms")), strict=True)
    return [(start, end) for *of, start, end in rows if of == [rank, part]]


@pytest.mark.usefixtures("same_ranks")
@pytest.mark.parametrize(
    ("variant", "bucket_mib", "messages"),
    [("naive", 0, TENSORS), ("flat", 0, 1), ("overlap", 0, TENSORS), ("bucketed", 1, None), ("torch", 1, None)],
)
def test_every_way_to_average_gradients_is_right_and_its_timeline_shows_when_it_sends(variant, bucket_mib, messages):
    metrics = measured("ddp", pairs=variant == "torch", variant=variant, bucket_mib=bucket_mib)
    assert "paired_ms" not in metrics
    assert all(metrics[f"{name}_error"][0] < 1e-4 for name in ("logits", "gradient", "update"))
    assert all(len(metrics[f"{name}_ms"]) == 3 for name in (*PHASES, "total", "alone"))
    for rank in (0, 1):
        (forward,), (backward,), (waiting,), (update,) = (spans(metrics, rank, phase) for phase in PHASES)
        assert 0 <= forward[0] < forward[1] == backward[0] < backward[1] == waiting[0] < waiting[1] == update[0]
        sent = spans(metrics, rank, "all-reduce")
        own = len(sent) - (variant != "torch")  # ours also agrees on which parameters were used
        assert own == messages or (messages is None and 1 < own < TENSORS)
        assert forward[1] < min(start for start, _ in sent)
        assert max(start for start, _ in sent) < update[0]
        early = min(start for start, _ in sent) < backward[1]
        assert early == (variant not in ("naive", "flat"))


@pytest.mark.usefixtures("same_ranks")
def test_below_fp32_it_is_right_within_its_tolerance_and_runs_in_pairs_with_torchs_of_the_same_bucket():
    metrics = measured("ddp", pairs=5, variant="bucketed", bucket_mib=1, precision="bf16")
    assert 1e-4 < metrics["gradient_error"][0] < 1e-1
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 5


@pytest.mark.usefixtures("same_ranks")
def test_the_predicted_memory_of_a_rank_is_what_it_takes():
    metrics = measured("ddp", variant="overlap", context_length=128, batch_size=4)
    assert metrics["peak_mib"][0] == pytest.approx(metrics["formula_mib"][0], rel=0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"variant": "bucketed"}, "bucket_mib: got 0, expected 1 or more"),
        ({"variant": "flat", "bucket_mib": 1}, "bucket_mib: got 1, expected 0 for flat"),
        ({"variant": "flat", "batch_size": 3}, "batch_size: got 3, expected a multiple of world, 2"),
    ],
)
def test_impossible_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        one("ddp", **fields)
