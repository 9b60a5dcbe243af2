"""What two GPUs should show follows from one GPU's step, the model's parameters and the printed all-reduces."""

import pandas as pd
import pytest
import torch

from lib import model
from lib.config import SIZES
from lib.parallel import ddp
from lib.report import gpus

STEP = pd.DataFrame([{
    "size": "xl", "batch_size": 4, "context_length": 256, "precision": "fp32", "hardware": "NVIDIA H100 80GB HBM3",
    "total_ms": 400.0, "backward_ms": 200.0, "optimizer_ms": 80.0,
}])  # fmt: skip


@pytest.mark.parametrize("size", ["tiny", "xl"])
def test_gradients_are_those_of_the_model_and_fill_the_buckets_of_data_parallelism(size):
    with torch.device("meta"):
        params = [*model.TransformerLM(SIZES[size]).parameters()][::-1]
    tensors_mb = gpus.list_gradients(size)
    assert tensors_mb == pytest.approx([param.nbytes / 1e6 for param in params])
    for mib in (0, 1, 10, 100):
        buckets = ddp._buckets(params, mib * 2**20)
        expected_mb = [sum(param.nbytes for param in bucket) / 1e6 for bucket in buckets]
        assert gpus.fill_buckets(tensors_mb, mib * 2**20 / 1e6) == pytest.approx(expected_mb)


def test_waits_are_all_messages_or_the_last_one_and_sharding_halves_the_optimizer():
    ways = gpus.predict(STEP).set_index("way")
    naive, flat, overlap = [ways.loc[way] for way in ("naive", "flat", "overlap")]
    assert (naive["calls"], flat["calls"]) == (435, 1)
    assert naive["wait_ms"] == naive["messages_ms"] == pytest.approx(naive["printed_wait_ms"], rel=0.05)
    assert naive["step_ms"] == 400 + naive["wait_ms"]
    # 8 GB by 3.14 ms for each of 1,000 MiB
    assert flat["wait_ms"] == pytest.approx(8 * 3.14 / 1.048576, rel=0.1)
    assert overlap["wait_ms"] < 0.3
    assert ways.loc["sharded", "step_ms"] == 360 + ways.loc["sharded", "wait_ms"]
    # where all messages take longer than the backward pass, the rest is left
    short = gpus.predict(STEP.assign(backward_ms=10.0)).set_index("way")
    assert short.loc["overlap", "wait_ms"] == pytest.approx(naive["messages_ms"] - 10)


def test_printed_steps_are_those_of_as_many_tokens():
    told = gpus.tell(STEP, gpus.predict(STEP))
    assert "should wait for messages 42 ms by naive (10% of the step), 26 ms by flat (6% of the step), at most" in told
    assert "printed waits of 43 and 36 ms by naive and flat" in told
    other = STEP.assign(context_length=512)
    assert "printed" not in gpus.tell(other, gpus.predict(other))
    assert gpus.tell(STEP[:0], gpus.predict(STEP[:0])) == ""
    assert "7.7 GiB saved, 7.4 predicted" in gpus.tell_sharded(STEP, gpus.predict(STEP))
    assert gpus.tell_sharded(STEP[:0], gpus.predict(STEP[:0])) == ""
    # 1,000 MiB in 3.14 ms
    assert gpus.list_nccl().loc[0, "1,000 MiB, GB/s"] == pytest.approx(1048.576 / 3.14)
    assert "brandon-snider/cs336-a2 (H100 80GB) 334 GB/s (3.0 ms a GB) between 2 GPUs" in gpus.tell_nccl()
