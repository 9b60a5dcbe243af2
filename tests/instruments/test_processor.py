"""The processor is named by the words of its system, with its instructions and caches."""

import pytest

from lib.instruments import processor


@pytest.mark.parametrize(
    ("text", "sets", "emulates"),
    [
        ("flags : fpu avx avx2 avx512f avx512_bf16", ["AVX-512"], False),
        ("flags : fpu avx avx2 avx512f amx_tile amx_bf16", ["AVX-512", "AMX"], False),
        ("flags : fpu avx avx2", ["AVX2"], True),
        ("Features : fp asimd sve", ["NEON", "SVE"], True),
        ("Features : asimd bf16", ["NEON"], False),
        ("model name : unknown", [], False),  # nothing is known
    ],
)
def test_instructions_and_whether_bf16_is_emulated_are_told_by_the_systems_flags(
    tmp_path, monkeypatch, text, sets, emulates
):
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    processor.CPUINFO.write_text(f"processor : 0\n{text}\n")
    assert processor.instruction_sets() == sets
    assert processor.emulates_bf16.__wrapped__() == emulates


def test_caches_of_the_last_level_count_once_for_each_group_of_cores(tmp_path, monkeypatch):
    for core, group in (("cpu0", "0-1"), ("cpu1", "0-1"), ("cpu2", "2-3"), ("cpu3", "2-3")):
        own, common = [("1", "Data", core, "32K"), ("1", "Instruction", core, "32K")], ("3", "Unified", group, "32768K")
        for index, said in enumerate([*own, ("2", "Unified", core, "1024K"), common]):
            folder = tmp_path / core / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            for name, text in zip(("level", "type", "shared_cpu_list", "size"), said, strict=True):
                (folder / name).write_text(f"{text}\n")
    monkeypatch.setattr(processor, "CPUS", tmp_path)
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    assert processor.last_caches_bytes() == 64 * 2**20
    assert processor.cache_levels_mib() == {"l2_mib": 1.0, "l3_mib": 32.0}
