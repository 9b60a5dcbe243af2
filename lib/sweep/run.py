"""Measure a job in as many kernels as it takes; tell of each record at once.

A slot of this machine and a worker of Ray both run `measured`. A record alone proves that a case was measured: a killed
kernel leaves no executed notebook, and one whose cell called sys.exit looks complete.
"""

import concurrent.futures
import contextlib
import errno
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil
from jupyter_core.utils import run_sync

from lib import execution, notebooks, paths, records
from lib.experiments import cases
from lib.experiments.measure import KERNEL, SLOTS
from lib.instruments import environment
from lib.notebooks import NotebookFailed
from lib.sweep.plan import Entry, Job

LOOK_S = 0.25  # between looks for new records; more often would disturb the measurement
START_S = 120  # for a kernel to start and import, and to end
END_S = 10  # for a notebook to end after an interrupt, or after its kernel was killed
TRIES = 2  # of a case, since something else may have ended its first kernel
STARTS = 3  # of kernels in which no case began, before a job is given up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)  # why a disk takes no more


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
    """Hold what was seen of an execution, and at last how it ended."""

    since: float = field(default_factory=time.time)  # it was started, or the case in hand began
    in_hand: bool = False  # a case has begun and has no record
    timed_out: bool = False
    spent: bool = False  # a record tells that its process should measure no more
    stopped: bool = False  # by the deadline
    died: bool = False


def measured(job: Job, deadline: float, place: Place) -> Iterator[Message]:
    """Measure the cases of a job; yield a message when a case begins, and for each record.

    If a kernel dies, the case in hand gets one more try, then a record with the status `crashed`. A case that takes
    longer than its timeout gets one with the status `timeout`. No case begins after the `deadline`, in seconds of
    time.time. Closing the generator ends the kernel. Raises NotebookFailed for what a cell raises, and after several
    kernels in which no case began; OSError or records.CannotWrite of a full disk."""
    left = list(job.entries)
    starts = Counter()  # of kernels that did not begin their first case, by that case
    tries = Counter()  # of cases that did not end
    while left and time.time() <= deadline:
        count = len(left)
        seen = yield from _one_kernel(job, left, deadline, place)
        if not left or not (seen.died or seen.timed_out):
            continue
        label = left[0].label
        if seen.in_hand and seen.timed_out:
            reason = f"took longer than {left[0].timeout:g} s"
            yield ended_badly(job, left.pop(0), "timeout", reason, seen.since)
        elif seen.in_hand:
            tries[label] += 1
            if tries[label] == TRIES:
                yield ended_badly(job, left.pop(0), "crashed", "its process died", seen.since)
        elif len(left) == count:
            starts[label] += 1
            if starts[label] == STARTS:
                reason = f"took longer than {START_S} s" if seen.timed_out else "its process died"
                raise NotebookFailed(f"no case could begin: {reason}")


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


def _one_kernel(job: Job, left: list[Entry], deadline: float, place: Place) -> Iterator[Message]:
    """Yield messages of a new kernel, end its processes, and return what was seen of its last execution.

    It takes from `left` what has a record."""
    kernel = _Kernel(job, place)
    try:
        while True:
            seen = yield from _one_execution(job, left, deadline, kernel)
            ended_early = seen.died or seen.timed_out or seen.spent or seen.stopped
            if ended_early or not left or time.time() > deadline:
                return seen
    finally:
        kernel.end()


class _Kernel:
    """Run a kernel for one job, and execute notebooks in it one after the other."""

    def __init__(self, job: Job, place: Place):
        place.scratch.mkdir(parents=True, exist_ok=True)
        # a new folder for each kernel: the client of the former one may still remove its sockets
        self.folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=place.scratch))
        self.variables = {
            KERNEL: str(self.folder),
            SLOTS: str(place.slots),
            "RESULTS": str(paths.results().resolve()),
            # what a killed kernel leaves goes with the scratch folder
            "TMPDIR": str(self.folder),
            # empty at the start of a sweep, so that the first compilation of a graph is a cold one
            "TORCHINDUCTOR_CACHE_DIR": str(place.scratch / "compiled"),
        }
        if place.slots > 1:
            # a number that the user has set holds for each slot
            threads = max(1, environment.cores() // place.slots)
            self.variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
        if place.gpu:
            self.variables["CUDA_VISIBLE_DEVICES"] = place.gpu
        self.job = job
        self.log = self._output().with_suffix(".log")
        self.manager = execution.Kernel(str(self.folder))
        # one for all notebooks, as connections belong to a thread's event loop
        self.thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self.executing = None

    def _output(self) -> Path:
        """Return a new file for an executed notebook."""
        name = f"{self.job.experiment}.r{self.job.round}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
        return paths.runs() / self.job.machine / f"{name}.ipynb"

    def execute(self, parameters: dict, on_last: Callable[[], None]) -> Future:
        """Start to execute the notebook up to the cell `measure`; `on_last` is called when that begins."""
        self.executing = self.thread.submit(
            execution.execute, self.manager, notebooks.NOTEBOOKS / f"{self.job.experiment}.ipynb", self._output(),
            parameters, self.variables, self.log, until="measure", on_last=on_last,
        )  # fmt: skip
        return self.executing

    def interrupt(self) -> None:
        """Interrupt the cell that runs, and wait for the notebook's end."""
        # the kernel may have died meanwhile
        with contextlib.suppress(RuntimeError, OSError):
            run_sync(self.manager.interrupt_kernel)()
        concurrent.futures.wait([self.executing], END_S)

    def end(self) -> None:
        """Kill the kernel and what it started."""
        _kill(self.folder)
        # the thread ends soon after its kernel
        concurrent.futures.wait([self.executing], END_S)
        self.thread.shutdown(wait=False)


def _one_execution(job: Job, left: list[Entry], deadline: float, kernel: _Kernel) -> Iterator[Message]:
    """Yield messages of the execution that measures what is first left, and return what was seen of it.

    It takes from `left` what has a record. Raises NotebookFailed for what a cell raised."""
    axes = left[0].axes
    batch = list(itertools.takewhile(lambda entry: entry.axes == axes, left))
    labels = [entry.label for entry in batch]
    names = [records.name(asdict(case)) for case in cases.grid(job.experiment, **axes)]
    skip = [name for name in names if f"{job.experiment} {name}" not in labels]
    former_ns = {entry.label: _changed_ns(job.file(entry)) for entry in batch}
    started = records.now()
    began = threading.Event()
    executing = kernel.execute(axes | {"seconds": batch[0].seconds, "round": job.round, "skip": skip}, began.set)
    seen = _Seen()
    while not seen.timed_out:
        # before the look at its records: a notebook that has ended writes no more
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        if began.is_set() and len(batch) == len(labels) and not (seen.in_hand or seen.spent):
            seen.in_hand = True
            seen.since = time.time()
            yield Message("begins", batch[0].label)
        ended_now = False
        while seen.in_hand:
            record = _new_record(job.file(batch[0]), former_ns[batch[0].label], started)
            if record is None:
                break
            ended_now = True
            seen.since = time.time()
            seen.spent = records.ends_process(record)
            if records.is_final(record):
                yield Message("record", record)
                del batch[0], left[0]
            seen.in_hand = bool(batch) and not seen.spent
            if seen.in_hand:
                yield Message("begins", batch[0].label)
        if over or seen.stopped:
            break
        if time.time() > deadline and batch and (ended_now or not began.is_set()):
            seen.stopped = True
            if began.is_set():
                kernel.interrupt()
        limit_s = batch[0].timeout if seen.in_hand else START_S
        seen.timed_out = not seen.stopped and time.time() - seen.since > limit_s
    if executing.done():
        seen.died = _has_died(executing, is_complete=not batch or seen.spent or seen.stopped)
    return seen


def _changed_ns(file: Path) -> int:
    """Return when a file was last changed, 0 if there is none."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _new_record(file: Path, former_ns: int, started: str) -> dict | None:
    """Return the record in a file if it was started after an execution."""
    # not to disturb the measurement, a file that was there before is not read again and again
    if _changed_ns(file) == former_ns:
        return None
    record = records.read(file)
    is_new = datetime.fromisoformat(record["started"]) > datetime.fromisoformat(started)
    return record if is_new else None


def _has_died(executing: Future, is_complete: bool) -> bool:
    """Tell if a kernel died before its notebook ended; raises what a cell or a full disk raised."""
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


def clear(scratch: Path) -> None:
    """End the kernels of a scratch folder; remove it. The caller holds the lock, if it is a shard's."""
    _kill(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


def _kill(folder: Path) -> None:
    """Kill the kernels of this folder and what they started.

    They are found by the variable that they inherit, also in sessions of their own."""
    # one that is being killed may just have started another
    for _ in range(10):
        processes = []
        for process in psutil.process_iter():
            # gone meanwhile, or another user's
            with contextlib.suppress(psutil.Error, OSError):
                is_own = Path(process.environ().get(KERNEL, "/")).is_relative_to(folder)
                if is_own and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)
