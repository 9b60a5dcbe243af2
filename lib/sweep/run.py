"""Measure a job in as many kernels as it takes; tell of each record at once.

A slot of this machine and a worker of Ray both run `measure`. A record alone proves that a case was measured: a killed
kernel leaves no executed notebook, and one whose cell called sys.exit looks complete.
"""

import concurrent.futures
import errno
import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from lib import records
from lib.experiments import cases
from lib.instruments import environment
from lib.notebooks import NotebookFailed
from lib.sweep.kernel import Kernel, Place
from lib.sweep.plan import Entry, Job

LOOK_S = 0.25  # between looks for new records; more often would disturb the measurement
LONGEST_LOOK_S = 10  # at most so much counts between two looks: in a longer gap the computer or this process slept
START_S = 120  # for a kernel to start and import, and to end
TRIES = 2  # tries of a case, since something else may have ended its first kernel
STARTS = 3  # kernels in which no case began, before a job is given up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # why a disk takes no more


class Message(NamedTuple):
    """Tell of a job by one of these kinds, each with its content.

    - `begins`, with a label: this case begins.
    - `record`, with a record: its case has ended.
    - `lost`, with a reason: the worker is gone, and what is left has to go on elsewhere.
    - `ready`, with nothing: a node of Ray takes part."""

    kind: str
    content: str | dict


@dataclass
class Seen:
    """Hold what was seen of an execution, and at last how it ended."""

    started: str = field(default_factory=records.now)  # when it, or its latest case, began
    seconds: float = 0.0  # since then, without the time in which the computer slept
    in_hand: bool = False  # a case has begun and has no record
    spent: bool = False  # a record tells that its process should measure no more
    stopped: bool = False  # the deadline has passed
    timed_out: bool = False  # the case in hand, or the start of the kernel, took too long
    died: bool = False  # the kernel has died

    def begin(self) -> None:
        """Count the time of the next case from here."""
        self.started = records.now()
        self.seconds = 0.0


def measure(job: Job, deadline: float, place: Place) -> Iterator[Message]:
    """Measure a job; yield a message when a case begins, and for each record.

    If a kernel dies, the case in hand gets one more try, then a record with the status `crashed`. A case that takes
    longer than its timeout gets one with the status `timeout`. No case begins after the `deadline`, in seconds of
    time.monotonic. Closing the generator ends the kernel. Raises NotebookFailed for what a cell raises, and after
    several kernels in which no case began; OSError of a full disk."""
    left = list(job.entries)
    starts = Counter()  # by the label of a case: kernels that did not begin with it
    tries = Counter()  # by the label of a case: kernels that did not end it
    while left and time.monotonic() <= deadline:
        first = left[0]
        seen = yield from _one_kernel(job, left, deadline, place)
        # all are measured, or a new kernel goes on
        if not left or not (seen.died or seen.timed_out):
            continue
        label = left[0].label
        if seen.in_hand and seen.timed_out:
            reason = f"took longer than {left[0].timeout:g} s"
            yield save_failure(job, left.pop(0), "timeout", reason, seen)
        elif seen.in_hand:
            tries[label] += 1
            if tries[label] == TRIES:
                yield save_failure(job, left.pop(0), "crashed", "its process died", seen)
        elif left[0] is first:
            starts[label] += 1
            if starts[label] == STARTS:
                reason = f"took longer than {START_S} s" if seen.timed_out else "its process died"
                raise NotebookFailed(f"no case could begin: {reason}")


def save_failure(job: Job, entry: Entry, status: str, reason: str, seen: Seen) -> Message:
    """Save a record for a process that died or timed out; return its message."""
    description = environment.describe(job.device)
    # this process sees the first GPU, and the kernel may have had another
    description.pop("gpu", None)
    record = records.create(
        job.experiment, entry.case, job.round, status, {"reason": reason}, description, seen.started, seen.seconds
    )
    records.save(record)
    return Message("record", record)


def _one_kernel(job: Job, left: list[Entry], deadline: float, place: Place) -> Iterator[Message]:
    """Run a new kernel; yield messages, return what was seen of its last execution.

    It takes from `left` what has a record, as `_one_execution` does."""
    kernel = Kernel(job, place)
    try:
        while True:
            seen = yield from _one_execution(job, left, deadline, kernel)
            ended_early = seen.died or seen.timed_out or seen.spent or seen.stopped
            if ended_early or not left or time.monotonic() > deadline:
                return seen
    finally:
        kernel.end()


def _one_execution(job: Job, left: list[Entry], deadline: float, kernel: Kernel) -> Iterator[Message]:
    """Execute the first block of what is left; yield messages, return what was seen.

    Takes from `left` what has a record. Raises what `_has_died` raises."""
    axes = left[0].axes
    block = list(itertools.takewhile(lambda entry: entry.axes == axes, left))
    former_ns = [_changed_ns(job.file(entry)) for entry in block]
    measuring = threading.Event()
    executing = kernel.execute(_parameters(job, block), measuring.set)
    seen = Seen()
    num_recorded = 0  # cases of the block, the first ones, that have a record
    looked_s = time.monotonic()
    while True:
        # before the look for records: a notebook that has ended writes no more
        notebook_ended = bool(concurrent.futures.wait([executing], LOOK_S).done)
        now_s = time.monotonic()
        seen.seconds += min(now_s - looked_s, LONGEST_LOOK_S)
        looked_s = now_s
        if measuring.is_set() and num_recorded == 0 and not (seen.in_hand or seen.spent):
            seen.in_hand = True
            seen.begin()
            yield Message("begins", block[0].label)
        case_ended = False
        while seen.in_hand and (record := _new_record(job.file(block[num_recorded]), former_ns[num_recorded])):
            case_ended = True
            seen.begin()
            seen.spent = records.ends_process(record)
            if records.is_final(record):
                yield Message("record", record)
                num_recorded += 1
                del left[0]
            seen.in_hand = num_recorded < len(block) and not seen.spent
            if seen.in_hand:
                yield Message("begins", block[num_recorded].label)
        if notebook_ended or seen.stopped:
            break
        # after the deadline a case in hand goes on to its record: the next one, which is interrupted, has hardly begun
        if now_s > deadline and (case_ended or not measuring.is_set()) and num_recorded < len(block):
            seen.stopped = True
            if measuring.is_set():
                kernel.interrupt()
        limit_s = block[num_recorded].timeout if seen.in_hand else START_S
        if not seen.stopped and seen.seconds > limit_s:
            seen.timed_out = True
            break
    if executing.done():
        is_complete = num_recorded == len(block) or seen.spent or seen.stopped
        seen.died = _has_died(executing, is_complete)
    return seen


def _parameters(job: Job, block: Sequence[Entry]) -> dict:
    """Return all axes and settings; `skip` leaves only the cases of the block."""
    axes = block[0].axes
    wanted = [records.name(entry.case) for entry in block]
    names = [records.name(asdict(case)) for case in cases.grid(job.experiment, **axes)]
    skip = [name for name in names if name not in wanted]
    return axes | {"seconds": block[0].seconds, "round": job.round, "skip": skip}


def _changed_ns(file: Path) -> int:
    """Return when a file was last changed, 0 if there is none."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _new_record(file: Path, former_ns: int) -> dict | None:
    """Return the record in a file, or None if the file is as old as before."""
    # equal times, not later ones: a clock may have been set meanwhile
    return None if _changed_ns(file) == former_ns else records.read(file)


def _has_died(executing: Future, is_complete: bool) -> bool:
    """Tell if the kernel died before its notebook ended.

    Raises NotebookFailed for what a cell raised or left undone; OSError of a full disk."""
    error = executing.exception()
    if isinstance(error, OSError) and error.errno in FULL:
        raise error
    if isinstance(error, NotebookFailed):
        # what the kernel raised arrives as text
        reason = " ".join(str(error).split())
        if reason.startswith("CannotWrite: "):
            raise records.CannotWrite(reason.removeprefix("CannotWrite: "))
        # an interrupt may come when the last case has just ended
        if not is_complete:
            raise NotebookFailed(reason)
        return False
    if error is None and not is_complete:
        raise NotebookFailed("its notebook ended before its last case")
    # nbclient's DeadKernelError, or the end of a kernel that could not start
    return error is not None
