"""The processor is named with its instructions and caches."""

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


def test_caches_of_the_last_level_count_once_for_each_group_of_cores(tmp_path, monkeypatch):
    for core, group in (("cpu0", "0-1"), ("cpu1", "0-1"), ("cpu2", "2-3")):
        caches = [
            ("1", "Data", core, "32K"), ("1", "Instruction", core, "32K"), ("2", "Unified", core, "1024K"),
            ("3", "Unified", group, "32768K"),
        ]  # fmt: skip
        for index, values in enumerate(caches):
            folder = tmp_path / core / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "shared_cpu_list", "size"), values, strict=True):
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(processor, "CPUS", tmp_path)
    assert processor.last_caches_bytes() == 64 * 2**20
    assert processor.cache_levels_mib() == {"l2_mib": 1.0, "l3_mib": 32.0}
