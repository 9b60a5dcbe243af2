"""A data-parallel step is that of one process on the whole batch, and its timeline shows what overlaps."""

import pytest

from lib import timing
from lib.experiments import cases, measure, on_ranks

pytestmark = pytest.mark.usefixtures("same_ranks")
STEP = {"size": "tiny", "context_length": 16, "batch_size": 4, "world": 2, "backend": "gloo", "device": "cpu"}
TENSORS = 9 * 4 + 3  # parameters of tiny


def case(variant: str, bucket_mib: int = 0, **fields):
    (made,) = cases.grid("ddp", **STEP | {"precision": "fp32"} | fields, variant=variant, bucket_mib=bucket_mib)
    return made


def measured(*given, pairs: int = 0, **fields) -> dict:
    return on_ranks.measured(measure.Recording(case(*given, **fields), 0), timing.Plan(1, 3), pairs, 1)


def spans(metrics: dict, rank: int, part: str) -> list[tuple[float, float]]:
    timeline = metrics["timeline"]
    rows = zip(*(timeline[name] for name in ("rank", "part", "start_ms", "end_ms")), strict=True)
    return [(start, end) for *of, start, end in rows if of == [rank, part]]


@pytest.mark.parametrize(
    ("variant", "bucket_mib", "messages"),
    [("naive", 0, TENSORS), ("flat", 0, 1), ("overlap", 0, TENSORS), ("bucketed", 1, None), ("torch", 1, None)],
)
def test_every_variant_is_right_and_its_timeline_shows_when_it_sends(variant, bucket_mib, messages):
    metrics = measured(variant, bucket_mib, pairs=1 if variant == "torch" else 0)
    assert "paired_ms" not in metrics
    for name in ("logits", "gradient", "update"):
        assert metrics[f"{name}_error"][0] < 1e-4
    phases = ("forward", "backward", "synchronization", "optimizer")
    assert all(len(metrics[f"{name}_ms"]) == 3 for name in (*phases, "total", "alone"))
    for rank in (0, 1):
        (forward,), (backward,), (waiting,), (update,) = (spans(metrics, rank, phase) for phase in phases)
        assert 0 <= forward[0] < forward[1] == backward[0] < backward[1] == waiting[0] < waiting[1] == update[0]
        sent = spans(metrics, rank, "all-reduce")
        own = len(sent) - (variant != "torch")  # ours also agrees on which parameters were used
        assert own == messages or (messages is None and 1 < own < TENSORS)
        assert forward[1] < min(start for start, _ in sent)
        assert max(start for start, _ in sent) < update[0]
        early = min(start for start, _ in sent) < backward[1]
        assert early == (variant not in ("naive", "flat"))


def test_below_fp32_it_is_right_within_its_tolerance_and_runs_in_pairs_with_torchs_of_the_same_bucket():
    metrics = measured("bucketed", 1, pairs=5, precision="bf16")
    assert 1e-4 < metrics["gradient_error"][0] < 1e-1
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 5


def test_the_predicted_memory_of_a_rank_is_what_it_takes():
    metrics = measured("overlap", context_length=128)
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
        case(**fields)
