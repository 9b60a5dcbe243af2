"""One iteration is captured after warm-ups, with a range around each of its phases."""

from unittest.mock import MagicMock

import torch

from lib.instruments import nsight


def test_each_phase_of_the_last_iteration_has_a_range_inside_the_capture(monkeypatch):
    log = MagicMock()

    def iteration(mark):
        log.run()
        mark("forward")
        mark("backward")

    monkeypatch.setattr(torch, "cuda", log)
    nsight.capture(iteration, log.before)
    names = [name.rpartition(".")[2] for name, _, _ in log.mock_calls]
    assert names == ["before", "run"] * nsight.WARMUP + [
        "before", "profile", "__enter__", "range_push", "run", "range_pop", "range_push", "range_pop", "synchronize",
        "__exit__",
    ]  # fmt: skip
    assert [call.args for call in log.nvtx.range_push.call_args_list] == [("forward",), ("backward",)]
