"""Ways of measuring wrongly, each put into a copy of the code: the tests must notice every one of them."""

import os
import shutil
import subprocess
import sys

import pytest

from lib.paths import ROOT

MUTANTS = {  # file, what stands there, what a wrong measurement would have, the tests that must fail
    "the difference of two runs": (
        "timing.py",
        "        durations, wall_ns = _once(iteration, clock)\n",
        "        other, _ = _once(iteration, clock)\n        durations, wall_ns = _once(iteration, clock)\n"
        "        *former, last = durations\n        durations[last] = wall_ns - sum(other[name] for name in former)\n",
        "test_timing.py",
        "under_noise_phases_still_add_up",
    ),
    "no synchronisation": (
        "timing.py",
        "    def mark(self) -> None:\n        self.synchronize()\n",
        "    def mark(self) -> None:\n",
        "test_timing.py",
        "device_does_later",
    ),
    "the minimum": (
        "stats.py",
        "Interval(statistics.median(rounds[0])",
        "Interval(min(rounds[0])",
        "test_timing.py",
        "known_cost",
    ),
    "garbage collection": ("timing.py", "    gc.disable()\n", "", "test_timing.py", "collector_is_off"),
    "outliers dropped": (
        "timing.py",
        "for ns in values[self.warmup :]]",
        "for ns in values[self.warmup :] if ns < 3 * statistics.median(values)]",
        "test_timing.py",
        "every_sample_is_kept",
    ),
    "the mean with a t interval": (
        "stats.py",
        "Interval(statistics.median(rounds[0]), *order_statistics(rounds[0], confidence),",
        "Interval(*log_t(rounds[0], confidence),",
        "test_stats.py",
        "covers_95_percent_whatever",
    ),
    "one after the other": (
        "timing.py",
        "once(orders.pop())",
        "once((0, 1))",
        "test_pairs.py",
        "order_that_chance_gives",
    ),
    "each comparison for itself": (
        "stats.py",
        "found[i] = comparisons[i].verdict(factor)",
        "found[i] = comparisons[i].verdict()",
        "test_stats.py",
        "among_many_equal or by_holm",
    ),
    "one seed for all": (
        "measure.py",
        'zlib.crc32(f"{record.case} {record.round}".encode())',
        "0",
        "test_measure.py",
        "order_of_its_own",
    ),
}


def copied(folder):
    """The package and its tests in a folder of their own."""
    for name in ("lib", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def run(folder, tests, chosen):
    """What pytest says of the tests of that file whose names hold `chosen`, with the package of that folder."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{tests}", "-k", chosen]
    paths = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=paths, capture_output=True, text=True)


def test_the_same_tests_pass_without_a_mutant(tmp_path):
    copied(tmp_path)
    for tests in sorted({tests for *_, tests, _ in MUTANTS.values()}):
        chosen = " or ".join(chosen for *_, file, chosen in MUTANTS.values() if file == tests)
        done = run(tmp_path, tests, chosen)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(tmp_path, mutant):
    file, right, wrong, tests, chosen = MUTANTS[mutant]
    text = (copied(tmp_path) / "lib" / file).read_text()
    assert text.count(right) == 1
    (tmp_path / "lib" / file).write_text(text.replace(right, wrong))
    done = run(tmp_path, tests, chosen)
    assert done.returncode == 1, done.stdout  # 1 is a failed test; anything else, that none ran
