"""What tests of the report share: records of two variants."""

import pytest

from lib.records import results
from two_variants import CASE


@pytest.fixture
def records(save_record):
    """Two variants over three rounds and two lengths: tiled takes half of naive's time, which grows fourfold."""
    for round in (1, 2, 3):
        for seq_len, scale in ((64, 1.0), (128, 4.0)):
            for variant, factor in (("naive", 2.0), ("tiled", 1.0)):
                times = [scale * factor * (1 + 0.01 * round + 0.001 * i) for i in range(8)]
                save_record(
                    case=CASE | {"variant": variant, "seq_len": seq_len}, round=round, forward_ms=times,
                    total_ms=[2 * t for t in times], flops=seq_len**2, first_iteration_ms=[100.0 / round],
                    compile_cache_hits=round - 1,
                )  # fmt: skip
    return results.load("attention", "test-1c")
