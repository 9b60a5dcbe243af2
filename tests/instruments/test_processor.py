"""The processor is named with its instructions and caches."""

import json
import subprocess
from types import SimpleNamespace

import pytest
import torch

from lib.instruments import processor


@pytest.mark.parametrize(
    ("capabilities", "sets", "emulates"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": True, "amx_tile": False}, ["AVX-512"], False),
        ({"avx2": True, "avx512_f": True, "amx_tile": True, "amx_bf16": True}, ["AVX-512", "AMX"], False),
        ({"avx2": True, "avx512_f": False}, ["AVX2"], True),
        ({"neon": True, "bf16": True, "sve": True}, ["NEON", "SVE"], False),
    ],
)
def test_instructions_and_the_lack_of_bf16_are_told_by_pytorch(monkeypatch, capabilities, sets, emulates):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert processor.instruction_sets() == sets
    assert processor.emulates_bf16() == emulates


def test_caches_of_the_last_level_count_once_for_each_group_of_cores(monkeypatch):
    mib = 2**20
    caches = [
        {"level": 3, "one-size": f"{32 * mib}", "all-size": f"{64 * mib}"},
        {"level": 1, "one-size": f"{2**15}", "all-size": f"{4 * 2**15}"},
        {"level": 2, "one-size": f"{mib}", "all-size": f"{4 * mib}"},
    ]
    printed = json.dumps({"caches": caches})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=printed))
    monkeypatch.setattr(processor, "_caches", processor._caches.__wrapped__)
    assert processor.last_caches_bytes() == 64 * mib
    assert processor.cache_levels_mib() == {"l2_mib": 1.0, "l3_mib": 32.0}
