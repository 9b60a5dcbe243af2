"""Ways of measuring wrongly, each put into a copy of the code: the tests must notice every one of them."""

import os
import shutil
import subprocess
import sys

import pytest

from lib import environment

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
        "Interval(statistics.median(",
        "Interval(min(",
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
        "once(coin.choice(((0, 1), (1, 0))))",
        "once((0, 1))",
        "test_timing.py",
        "order_that_chance_gives",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(tmp_path, mutant):
    file, right, wrong, tests, chosen = MUTANTS[mutant]
    shutil.copytree(environment.ROOT / "lib", tmp_path / "lib", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(environment.ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    text = (tmp_path / "lib" / file).read_text()
    assert text.count(right) == 1
    (tmp_path / "lib" / file).write_text(text.replace(right, wrong))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/{tests}", "-k", chosen]
    paths = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout  # 1 is a failed test; anything else, that none ran
    assert "AssertionError" in done.stdout or "assert " in done.stdout
