"""Measure a job in as many kernels as it takes; tell of each record at once.

A slot of this machine and a worker of Ray both run `measured`. A record alone proves that a case was measured: a killed
kernel leaves no executed notebook, and one whose cell called sys.exit looks complete.
"""

import concurrent.futures
import contextlib
import errno
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from lib import execution, notebooks, paths, records
from lib.experiments.measure import NOTE, PLAN
from lib.instruments import environment
from lib.notebooks import NotebookFailed
from lib.sweep.plan import Entry, Job

LOOK_S = 0.25  # between looks for new records; more often would disturb the measurement
START_S = 120  # for a kernel to start and import, and to end
TRIES = 2  # of a case, since something else may have ended its first kernel
STARTS = 3  # of kernels in which no case began, before a job is given up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # why a disk takes no more
_threads = concurrent.futures.ThreadPoolExecutor(max_workers=64)


class Message(NamedTuple):
    """Tell of a job by one of these kinds, each with its content.

    - `begins`: a case begins; its label.
    - `record`: a case has ended; its record.
    - `lost`: its worker is gone, and what is left has to go on; why.
    - `ready`: a node of Ray takes part; nothing."""

    kind: str
    content: str | dict


@dataclass(frozen=True)
class Place:
    """Describe where the kernels of one slot run."""

    scratch: Path  # a folder for their files
    slots: int = 1  # that divide the machine's threads
    gpu: str = ""  # the value of CUDA_VISIBLE_DEVICES that pins a kernel to one GPU; "" leaves it as inherited


@dataclass
class _Seen:
    """Hold what was seen of a kernel: how many cases it has begun and saved, and its end."""

    begun: int = 0
    saved: int = 0
    since: float = field(default_factory=time.time)  # it started, or began or saved its last case
    timed_out: bool = False
    reason: str = ""

    @property
    def in_hand(self) -> bool:
        """Tell if a case was begun and is not saved."""
        return self.begun > self.saved


def measured(job: Job, deadline: float, place: Place) -> Iterator[Message]:
    """Measure the cases of a job; yield a message when a case begins, and for each record.

    If a kernel dies or ends early, the case in hand gets one more try, then a record with the status `crashed`. A case
    that takes longer than its timeout gets one with the status `timeout`. Raises NotebookFailed after several kernels
    in which no case began. No case begins after the `deadline`, in seconds of time.time. Closing the generator ends the
    kernel. Raises OSError or records.CannotWrite of a full disk."""
    left = list(job.entries)
    starts = Counter()  # of kernels that did not begin their first case, by that case
    tries = Counter()  # of cases that did not end
    while left and time.time() <= deadline:
        seen = yield from _one_kernel(job, left, deadline, place)
        left = left[seen.saved :]
        # all are measured, or the kernel ended between two cases: another one goes on
        if not left or (seen.saved and not seen.in_hand):
            continue
        label = left[0].label
        if not seen.in_hand:
            starts[label] += 1
            if starts[label] == STARTS:
                raise NotebookFailed(f"no case could begin: {seen.reason}")
            continue
        tries[label] += 1
        if seen.timed_out:
            reason = f"took longer than {left[0].timeout:g} s"
            yield ended_badly(job, left.pop(0), "timeout", reason, seen.since)
        elif tries[label] == TRIES:
            yield ended_badly(job, left.pop(0), "crashed", seen.reason, seen.since)


def ended_badly(job: Job, entry: Entry, status: str, reason: str, since: float) -> Message:
    """Save a record for a kernel or worker that died or timed out, and return its message."""
    around = environment.describe(job.device)
    # this process sees the first GPU, and the kernel may have had another
    around.pop("gpu", None)
    started = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
    seconds = max(0.0, time.time() - since)
    record = records.create(job.experiment, entry.case, job.round, status, {"reason": reason}, around, started, seconds)
    records.save(record)
    return Message("record", record)


def _one_kernel(job: Job, batch: Sequence[Entry], deadline: float, place: Place) -> Iterator[Message]:
    """Yield messages of a new kernel, end its processes, and return what was seen."""
    place.scratch.mkdir(parents=True, exist_ok=True)
    # a new folder for each kernel: the client of the former one may still remove its sockets
    folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=place.scratch))
    cases = [{"case": entry.case, "seconds": entry.seconds} for entry in batch]
    plan = {"cases": cases, "round": job.round, "slots": place.slots, "deadline": deadline}
    (folder / "plan.json").write_text(json.dumps(plan))
    name = f"{job.experiment}.r{job.round}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    output = paths.runs() / job.machine / f"{name}.ipynb"
    variables = {
        PLAN: str(folder / "plan.json"),
        "RESULTS": str(paths.results().resolve()),
        # what a killed kernel leaves goes with the scratch folder
        "TMPDIR": str(folder),
        # empty at the start of a sweep, so that the first compilation of a graph is a cold one
        "TORCHINDUCTOR_CACHE_DIR": str(place.scratch / "compiled"),
    }
    if place.slots > 1:
        # a number that the user has set holds for each slot
        threads = max(1, environment.cores() // place.slots)
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
    if place.gpu:
        variables["CUDA_VISIBLE_DEVICES"] = place.gpu
    # for the reader of the executed notebook; the plan says them for each case
    parameters = {"round": job.round, "seconds": batch[0].seconds}
    executing = _threads.submit(
        execution.execute, execution.Kernel(str(folder)), notebooks.NOTEBOOKS / f"{job.experiment}.ipynb", output,
        parameters, variables, output.with_suffix(".log"), until="measure",
    )  # fmt: skip
    seen = _Seen()
    try:
        yield from _watch(seen, job, batch, folder / NOTE, executing)
    finally:
        _kill(folder)
        # the thread ends soon after its kernel
        concurrent.futures.wait([executing], 10)
    if seen.timed_out:
        # that is to start or to end; of a case, `measured` says its own timeout
        seen.reason = f"took longer than {START_S} s"
    else:
        seen.reason = _why(executing)
    return seen


def _watch(seen: _Seen, job: Job, batch: Sequence[Entry], note_file: Path, executing: Future) -> Iterator[Message]:
    """Yield messages, and note what is seen, until the notebook ends or must be ended."""
    while not seen.timed_out:
        # before the look at its note: a notebook that has ended writes no more
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        # there is no note before the first case
        if note_file.exists():
            note = json.loads(note_file.read_text())
            for entry in batch[seen.saved : note["saved"]]:
                yield Message("record", records.read(job.file(entry)))
            # one is in hand, and was not told yet
            if note["begun"] > max(seen.begun, note["saved"]):
                yield Message("begins", batch[note["saved"]].label)
            seen.begun = note["begun"]
            seen.saved = note["saved"]
            seen.since = note_file.stat().st_mtime
        if over:
            return
        limit_s = batch[seen.saved].timeout if seen.in_hand else START_S
        seen.timed_out = time.time() - seen.since > limit_s


def _why(executing: Future) -> str:
    """Say in a line why a notebook ended early; raises what a full disk raised."""
    error = executing.exception()
    if error is None:
        return "its notebook measured nothing"
    if isinstance(error, OSError) and error.errno in FULL:
        raise error
    if isinstance(error, NotebookFailed):
        # what the kernel raised arrives as text
        reason = " ".join(str(error).split())
        if reason.startswith("CannotWrite: "):
            raise records.CannotWrite(reason.removeprefix("CannotWrite: "))
        return reason
    # nbclient's DeadKernelError, or the end of a kernel that could not start
    return "its process died"


def clear(scratch: Path) -> None:
    """End the kernels of a scratch folder; remove it. The caller holds the lock, if it is a shard's."""
    _kill(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _kill(folder: Path) -> None:
    """Kill all processes whose plan is in this folder: kernels and what they started.

    They are found by the variable that they inherit, also in sessions of their own."""
    # one that is being killed may just have started another
    for _ in range(10):
        processes = []
        for process in psutil.process_iter():
            # gone meanwhile, or another user's
            with contextlib.suppress(psutil.Error, OSError):
                is_own = Path(process.environ().get(PLAN, "/")).is_relative_to(folder)
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)
