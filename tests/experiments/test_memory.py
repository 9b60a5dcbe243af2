"""The memory of a step is followed to the byte: what a block saves, what is alive at the peak, what groups save."""

import pytest

from lib import catalog
from lib.experiments.case import Recording
from lib.experiments.memory import Memory

MIB = 2**20
TINY = Memory(
    size="tiny", context_length=64, batch_size=2, precision="fp32", compiled=False, attention="naive",
    optimizer="single_tensor", mode="train_step", device="cpu", checkpoint=0,
)  # fmt: skip


def changed(**fields):
    return Memory(**vars(TINY) | fields)


def measured(case):
    record = Recording(case)
    case.measure(record, seconds=0)
    return record.metrics


def test_the_parts_alive_at_the_peak_add_up_to_it_and_to_the_formula():
    metrics = measured(TINY)
    assert sum(metrics["alive"]["part_mib"]) == pytest.approx(metrics["peak_mib"][0])
    assert metrics["peak_mib"][0] == pytest.approx(metrics["formula_mib"][0], rel=1e-3)
    assert sum(metrics["saved"]["saved_mib"]) == pytest.approx(metrics["kept_formula_mib"][0], rel=0.01)
    kinds = dict(zip(metrics["alive"]["kind"], metrics["alive"]["part_mib"], strict=True))
    assert kinds["parameters"] == 4 * TINY.shape.parameters / MIB
    assert "paired_ms" not in metrics


def test_groups_keep_less_and_run_in_pairs_with_none_where_there_is_a_backward_pass():
    case = changed(checkpoint=2)
    metrics = measured(case)
    assert metrics["forward_end_mib"][0] < measured(TINY)["forward_end_mib"][0]
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"])
    assert catalog.baseline("memory", vars(case)) == vars(TINY)
    assert "paired_ms" not in measured(changed(checkpoint=2, mode="no_grad"))
    with pytest.raises(ValueError, match="checkpoint"):
        changed(checkpoint=-1)
