"""A status tells how far a sweep is, and of one that is gone that it is."""

import errno
import json
import math
import platform
import sys
from types import SimpleNamespace

import psutil
import pytest

from lib.sweep import __main__, lock, progress
from lib.sweep.lock import Shard
from lib.sweep.progress import Progress

TOLD = {
    "sweep": "quick", "shard": "1/1", "state": "running", "process": 1, "user": "a", "host": "b", "started": "c",
    "updated": "d", "done": 1, "all": 2, "failed": 0, "left_s": 3.0, "in_hand": ["e"],
}  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        *("[1]", "", "{}", "[" * 100_000),
        *(
            json.dumps(TOLD | wrong)
            for wrong in ({"user": None}, {"shard": None}, {"shard": "3/2"}, {"left_s": math.inf})
        ),
    ],
    ids=lambda content: content[:40],
)
def test_a_status_file_that_tells_nothing_is_left_out(own_results, capsys, content):
    own_results.mkdir()
    progress.file(own_results, lock.WHOLE).write_text(content)
    progress.file(own_results, Shard(1, 2)).write_text(json.dumps(TOLD))
    assert __main__.main(["status"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert progress.owner(own_results, lock.WHOLE) == "another sweep, which has not reported yet"


class Closed:
    """A standard error that nobody reads any more."""

    encoding = "utf-8"

    tried = 0

    def write(self, _):
        self.tried += 1
        raise OSError(errno.ENOSPC, "No space left on device")  # a closed pipe is an OSError too

    flush = isatty = fileno = lambda self: self.write("")


def test_a_bar_that_cannot_be_written_goes_quiet_and_the_sweep_goes_on(own_results, monkeypatch):
    own_results.mkdir()
    monkeypatch.setattr(sys, "stderr", Closed())
    shown = Progress(own_results, lock.WHOLE, "quick", 0, {("m", "a/b.r1"): 2.0, ("m", "a/c.r1"): None}, 1)
    shown.begins("here", ("m", "a/b.r1"))
    shown.ends("here", ("m", "a/b.r1"))
    shown.drops([("m", "a/c.r1")])
    shown.close("done")
    assert sys.stderr.tried
    assert [one["done"] for one in progress.statuses(own_results)] == [1]


def test_what_was_told_says_who_and_how_far(own_results):
    own_results.mkdir()
    shown = Progress(own_results, lock.WHOLE, "quick", 3, {("m", "a/b.r1"): 2.0, ("m", "a/c.r1"): None}, 1)
    shown.begins("here", ("m", "a/b.r1"))
    (told,) = progress.statuses(own_results)
    assert (told["done"], told["all"], told["in_hand"], told["left_s"]) == (3, 5, ["a/b.r1"], 4.0)
    assert "quick: running, 3 of 5 records" in progress.owner(own_results, lock.WHOLE) == progress.line(told)
    shown.ends("here", ("m", "a/b.r1"))
    shown.drops([("m", "a/c.r1")])
    shown.close("done")
    (told,) = progress.statuses(own_results)
    assert "quick: done, 4 of 4 records" in progress.line(told)


def test_the_first_case_of_a_sweep_says_little_of_the_time_left(own_results, monkeypatch):
    own_results.mkdir()
    readings = iter([0.0, 6.0, 6.0, 1_206.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=readings.__next__))
    took_s = {("m", f"a/{name}.r1"): 0.05 if name == "b" else 600.0 for name in "bcd"}
    shown = Progress(own_results, lock.WHOLE, "quick", 0, took_s, 1)
    for case, least_s, most_s in (("b", 1_200, 1_300), ("c", 1_000, 1_200)):
        shown.begins("here", ("m", f"a/{case}.r1"))
        shown.ends("here", ("m", f"a/{case}.r1"))
        assert least_s < shown.left_s < most_s
    shown.close("done")


BEFORE, AFTER = "2000-01-01T00:00:00+00:00", "2100-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("changed", "running"),
    [
        ({"process": psutil.Process().pid, "started": AFTER}, True),
        ({"process": psutil.Process().pid, "started": BEFORE}, False),  # when another process had its number
        ({"process": 2**22 + 1, "started": AFTER}, False),
        ({"process": 10**30, "started": AFTER}, False),
        ({"process": 2**22 + 1, "started": AFTER, "host": "another"}, True),
        ({"process": psutil.Process().pid, "started": AFTER, "state": "done"}, False),
    ],
)
def test_a_sweep_runs_where_its_process_lives_and_elsewhere_as_it_told(own_results, changed, running):
    own_results.mkdir()
    progress.file(own_results, lock.WHOLE).write_text(json.dumps(TOLD | {"host": platform.node()} | changed))
    (told,) = progress.statuses(own_results)
    assert told["running"] is running
    assert ("ended unexpectedly" in progress.line(told)) is (not running and told["state"] == "running")
    assert ("now e" in progress.owner(own_results, lock.WHOLE)) is running
