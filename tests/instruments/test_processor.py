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


def test_caches_are_told_from_the_second_level_on(tmp_path, monkeypatch):
    for index, (level, size) in enumerate([("1", "32K"), ("1", "32K"), ("2", "1024K"), ("3", "32768K")]):
        folder = tmp_path / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")
    monkeypatch.setattr(processor, "CPUS", tmp_path)
    assert processor.cache_levels_mib() == {"l2_mib": 1.0, "l3_mib": 32.0}
