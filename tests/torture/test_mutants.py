"""Ways of measuring wrongly, each put into a copy of the code: the tests must notice every one of them."""

import os
import shutil
import subprocess
import sys

import pytest

from lib.paths import ROOT

MUTANTS = {  # what stands in one place of the code, what a wrong measurement would have, the test that must fail
    "the difference of two runs": (
        "        found.faults.append(minor_faults() - earlier)\n",
        "        found.faults.append(minor_faults() - earlier)\n        *former, last = durations\n"
        "        other, *_ = _once(iteration, clock)\n"
        "        durations[last] = wall_ns - sum(other[name] for name in former)\n",
        "test_under_noise_phases_still_add_up_and_are_never_negative",
    ),
    "no synchronisation": (
        "    def mark(self) -> None:\n        self.synchronize()\n", "    def mark(self) -> None:\n",
        "test_phases_are_recovered_also_where_a_device_works_later_and_what_runs_before_is_not_timed",
    ),
    "outliers dropped": (
        "for ns in values[self.warmup :]]", "for ns in values[self.warmup :] if ns < 3 * statistics.median(values)]",
        "test_without_a_target_every_sample_is_kept_in_order_and_warm_ups_apart",
    ),
    "the mean with a t interval": (
        "Interval(statistics.median(rounds[0]), *order_statistics(rounds[0]),",
        "Interval(*log_t(rounds[0]),",
        "test_the_interval_of_the_median_covers_95_percent_whatever_the_noise",
    ),
    "one after the other": (
        "once(orders.pop())", "once((0, 1))", "test_pairs_run_in_turns_in_an_order_that_chance_gives",
    ),
    "one seed for all": (
        'zlib.crc32(f"{record.case} {record.round}".encode())', "0",
        "test_each_case_and_round_pairs_in_an_order_of_its_own",
    ),
}  # fmt: skip


@pytest.fixture
def copy(tmp_path):
    """The package and its tests in a folder of their own."""
    for name in ("lib", "notebooks", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def the_file_with(text, folder):
    """Return the one module below a folder that has this text, once."""
    (found,) = [file for file in folder.rglob("*.py") if text in file.read_text() and file.name != "test_mutants.py"]
    assert found.read_text().count(text) == 1
    return found


def run(folder, tests):
    """Return what pytest says of tests, by their names, with the package of that folder."""
    files = {str(the_file_with(f"def {name}(", folder / "tests")) for name in tests}
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", *files, "-k", " or ".join(tests)]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )


def test_each_mutant_changes_one_place_and_names_one_test():
    for right, _, test in MUTANTS.values():
        the_file_with(right, ROOT / "lib")
        the_file_with(f"def {test}(", ROOT / "tests")


@pytest.mark.torture
def test_the_same_tests_pass_without_a_mutant(copy):
    done = run(copy, [test for *_, test in MUTANTS.values()])
    assert done.returncode == 0, done.stdout


@pytest.mark.torture
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_noticed(copy, mutant):
    right, wrong, test = MUTANTS[mutant]
    file = the_file_with(right, copy / "lib")
    file.write_text(file.read_text().replace(right, wrong))
    done = run(copy, [test])
    assert done.returncode == 1, done.stdout  # 1 is a failed test; anything else, that none ran
