"""Steps on ranks give the single process's results, whatever the variant, and bad cases are refused."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

import rank_checks
from lib.experiments import attempt
from lib.experiments.parallel import VARIANTS, Parallel

pytestmark = pytest.mark.usefixtures("same_ranks", "own_results", "no_probe")
CASE = Parallel("tiny", 8, 2, "fp32", "naive", 0, 2, "auto", "cpu")


# the other two replicas differ from `naive` in when they send alone, which is `test_ddp`'s
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in ("plain", "flat", "overlap")])
def test_two_ranks_take_the_step_of_one_process(variant):
    record = attempt.measure(replace(CASE, variant=variant), 1, 0.01)
    assert record["status"] == "ok", record["metrics"]
    metrics = record["metrics"]
    assert max(metrics["gradient_error"] + metrics["logits_error"]) < 1e-5
    assert metrics["after_states_mib"][0] == pytest.approx(metrics["predicted_states_mib"][0], rel=0.05)
    # beside the parameters only the batch, angles and some start values: not what an earlier case has left
    assert 0 < metrics["initial_mib"][0] - metrics["after_parameters_mib"][0] < 0.1
    if variant == "naive":
        assert min(metrics["alone_ms"]) > 0
        gradients = 9 * CASE.step.config.num_layers + 3
        for _, of_rank in pd.DataFrame(metrics["timeline"]).groupby("rank"):
            parts = ["forward", "backward", "synchronization", "optimizer", *["all-reduce"] * gradients]
            assert of_rank["part"].tolist() == parts
            starts_ms = of_rank["start_ms"].tolist()
            assert 0 <= starts_ms[0] < starts_ms[1] < starts_ms[4]  # forward, backward, the first all-reduce
            assert (of_rank["start_ms"] < of_rank["end_ms"]).all()
    if variant == "fsdp":
        matrices = 7 * CASE.step.config.num_layers + 2
        counts = pd.DataFrame(metrics["timeline"]).query("rank == 1")["part"].value_counts()
        # gloo gathers by one broadcast of each rank, once a pass; the first and the last one are kept
        assert counts["reduce-scatter"] == matrices
        assert 2 * matrices < counts["all-gather"] <= 4 * matrices


@pytest.mark.parametrize("variant", ["fsdp", "torch_fsdp"])
def test_shards_in_bf16_give_their_logits_in_fp32(variant, two_ranks):
    bf16 = replace(CASE, variant=variant, precision="bf16")
    record = attempt.measure(bf16, 1, 0.01)
    assert record["status"] == "ok", record["metrics"]
    assert two_ranks.run(rank_checks.dtype_of_logits, case=bf16) == [torch.float32] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "plain"}, "world: got 2, expected 1 for plain"),
        ({"world": 1}, "world: got 1, expected 2 or more for naive"),
        ({"batch_size": 3}, "batch_size: got 3, expected a multiple of world, 2"),
        ({"bucket_mib": 5}, "bucket_mib: got 5, expected 0 for naive"),
    ],
)
def test_impossible_cases_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(CASE, **changes)
