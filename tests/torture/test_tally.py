"""What counts the faults can itself be trusted: a loss is a failure, and so is a test that injects nothing."""

import os
import re
import subprocess
import sys

import pytest

import faults

TESTS = """
import pytest

@pytest.mark.faults(3, "a fault")
def test_it(tally):
    with tally.injection():
        assert False, "a record is torn"

@pytest.mark.faults(4, "another")
def test_other(tally):
    pytest.skip("there is no GPU")

@pytest.mark.faults(6, "a third")
@pytest.mark.skipif(True, reason="it cannot be tried here")
def test_third():
    pass

@pytest.mark.faults(7, "a fourth")
def test_fourth():
    pytest.skip("it is not to be had")

@pytest.mark.faults(5, "a single one")
@pytest.mark.parametrize("number", [1, 0, 2])
def test_one(number):
    1 / number
"""

MORE = """
import pytest

@pytest.mark.faults(8, "in another file")
def test_it(tally):
    with tally.injection(2):
        tally.notes.append("5 ms")
"""


def test_a_tally_goes_on_after_a_loss_and_then_fails():
    tally = faults.Tally(1, "a fault")
    for lost in (False, True, False):
        with tally.injection():
            assert not lost, "a record is torn"
    assert (tally.injected, len(tally.reasons)) == (3, 1)
    with pytest.raises(AssertionError, match="1 of 3 lost: a record is torn"):
        tally.check()


def test_a_tally_without_a_fault_fails():
    with pytest.raises(AssertionError, match="nothing was injected"):
        faults.Tally(1, "a fault").check()


def test_what_must_hold_in_the_end_counts_as_one_loss():
    tally = faults.Tally(1, "a fault")
    with tally.injection():
        pass
    with tally.injection(0):
        assert tally.injected == 2, "not all of them were injected"
    assert len(tally.reasons) == 1


def test_the_table_says_how_many_were_injected_survived_and_lost_in_the_order_of_their_numbers():
    tallies = [faults.Tally(10, "later", 3, ["torn"], ["2 ms"]), faults.Tally(2, "earlier", 3)]
    tallies.append(faults.Tally(10, "later", 1))
    head, first, second = faults.table(tallies)
    assert head.split() == ["fault", "injected", "survived", "lost"]
    assert first.split() == ["2", "earlier", "3", "3", "0"]
    assert second.split() == ["10", "later", "4", "3", "1", "2", "ms"]


@pytest.mark.parametrize("workers", [[], ["-n", "2", "--dist", "loadfile"]])
def test_a_test_that_loses_a_fault_fails_and_the_table_shows_it(tmp_path, workers):
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_more.py").write_text(MORE)
    variables = os.environ | {"TORTURE": "1", "PYTHONPATH": f"{faults.ROOT}:{faults.ROOT / 'tests'}"}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-m", "faults", *workers]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search(r"^  3 a fault +1 +0 +1$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  4 another +0 +0 +0  there is no GPU$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  5 a single one +3 +2 +1$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  6 a third +0 +0 +0  it cannot be tried here$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  7 a fourth +0 +0 +0  it is not to be had$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^  8 in another file +2 +2 +0  5 ms$", done.stdout, re.MULTILINE), done.stdout
    assert "ZeroDivisionError" in done.stdout


def test_a_moment_that_never_comes_is_an_assertion_that_says_so():
    with pytest.raises(AssertionError, match=r"the end: not within 0\.1 s"):
        faults.until(lambda: False, 0.1, "the end")
