"""Measure a job in as many kernels as it takes; tell of each record at once.

A slot of this machine and a worker of Ray both run `measured`. A record alone proves that a case was measured: the
executed notebook of a killed kernel looks complete, and so does one whose cell called sys.exit.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import psutil

from lib import execution, notebooks, paths, records
from lib.experiments.measure import PLAN
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
    """Tell of a job: a case `begins` (name), a `record` (JSON), other `trouble`."""

    kind: str
    text: str


@dataclass(frozen=True)
class Place:
    """Describe where kernels run: scratch folder, slots of the machine, environment."""

    scratch: Path
    slots: int = 1
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Kernel:
    """Hold what was seen of a kernel: records by the case's position, and its end."""

    records: dict[int, dict] = field(default_factory=dict)
    index: int = -1  # of the case that began last
    since: float = field(default_factory=time.time)  # the kernel, its last case or its last record
    ended: str = ""  # by itself, timeout, restart
    reason: str = ""

    def has_one_in_hand(self) -> bool:
        """Tell if a case has begun and has no record."""
        return self.index >= 0 and self.index not in self.records


def measured(job: Job, deadline: float | None, place: Place) -> Iterator[Message]:
    """Measure the cases of a job, and yield a message of each record.

    If a kernel dies or ends early, the case in hand gets one more try, then a record with the status `crashed`. A case
    that takes longer than its timeout gets one with the status `timeout`. What found no memory in a used kernel is
    measured once more in a kernel of its own. Closing the generator ends the kernel. Raises records.CannotWrite."""
    left = list(job.entries)
    wanting_memory = []
    tries = Counter()
    starts_in_vain = 0
    while (left or wanting_memory) and not is_over(deadline):
        batch = left or [wanting_memory.pop(0)]
        kernel = yield from _one_kernel(job, batch, deadline, place)
        left = []
        for position, entry in enumerate(batch):
            record = kernel.records.get(position)
            if record is None:
                left.append(entry)
            elif record["status"] == "oom" and record["metrics"].get("fresh") is False:
                wanting_memory.append(entry)
        if not left or kernel.ended == "restart" or is_over(deadline):
            continue
        if kernel.index < 0:
            starts_in_vain += 1
            if starts_in_vain == STARTS:
                yield Message("trouble", f"{job.experiment}: no case could begin: {kernel.reason}")
                return
            continue
        starts_in_vain = 0
        if kernel.has_one_in_hand():
            in_hand = batch[kernel.index]
            name = records.name(in_hand.case)
            tries[name] += 1
            if kernel.ended == "timeout":
                yield _record(job, in_hand, "timeout", f"took longer than {in_hand.timeout:g} s", kernel.since)
                left.remove(in_hand)
            elif tries[name] == TRIES:
                yield _record(job, in_hand, "crashed", kernel.reason, kernel.since)
                left.remove(in_hand)


def is_over(deadline: float | None) -> bool:
    """Tell if there is a deadline, in seconds since 1970, and it is past."""
    return deadline is not None and time.time() > deadline


def _record(job: Job, entry: Entry, status: str, reason: str, since: float) -> Message:
    """Save a record for a kernel that died or timed out, and return its message."""
    started = datetime.fromtimestamp(since, UTC).isoformat(timespec="seconds")
    surroundings = environment.describe(job.device)
    seconds = max(0.0, time.time() - since)
    metrics = {"reason": reason}
    record = records.create(job.experiment, entry.case, job.round, status, metrics, surroundings, started, seconds)
    return Message("record", records.save(record).read_text())


def _one_kernel(job: Job, batch: Sequence[Entry], deadline: float | None, place: Place) -> Iterator[Message]:
    """Yield messages of a new kernel, end its processes, and return what was seen."""
    name = f"{job.experiment}.r{job.round}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    output = paths.runs() / job.machine / f"{name}.ipynb"
    cases = [{"case": entry.case, "seconds": entry.seconds} for entry in batch]
    plan = {"cases": cases, "round": job.round, "share": place.slots, "deadline": deadline}
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        place.scratch.mkdir(parents=True, exist_ok=True)
        # another one for each kernel: the former one's client may still remove its sockets
        folder = Path(tempfile.mkdtemp(prefix="kernel-", dir=place.scratch))
        plan_file = folder / "plan.json"
        plan_file.write_text(json.dumps(plan))
    except OSError as error:
        raise _cannot_write(error) from None
    variables = {
        PLAN: str(plan_file),
        "RESULTS": str(paths.results().resolve()),
        # empty at the start of a sweep, so that the first compilation of a graph is a cold one
        "TORCHINDUCTOR_CACHE_DIR": str(place.scratch / "compiled"),
        **place.variables,
    }
    executing = _threads.submit(_execute, job, batch[0].seconds, folder, output, variables)
    kernel = _Kernel()
    try:
        yield from _watch(kernel, job, batch, plan_file, executing)
    finally:
        end(folder)
        # the notebook is written a last time after its kernel has ended
        concurrent.futures.wait([executing], 10)
        shutil.rmtree(folder, ignore_errors=True)
    if executing.done():
        kernel.reason = _why(executing)
    return kernel


def _execute(job: Job, seconds: float, folder: Path, output: Path, variables: Mapping[str, str]) -> None:
    """Execute the notebook up to its cell `measure`."""
    source = notebooks.NOTEBOOKS / f"{job.experiment}.ipynb"
    parameters = {"round": job.round, "seconds": seconds}
    kernel = execution.Kernel(str(folder))
    execution.execute(kernel, source, output, parameters, variables, output.with_suffix(".log"), until="measure")


def _watch(kernel: _Kernel, job: Job, batch: Sequence[Entry], plan_file: Path, executing: Future) -> Iterator[Message]:
    """Yield messages, and note what is seen, until the notebook ends or must be ended."""
    files = [job.file(entry) for entry in batch]
    former_stamps = [_stamp(file) for file in files]
    while not kernel.ended:
        # before the look for records: those of a notebook that has ended are all there
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        index, started = _begun_last(plan_file)
        for position in range(index + 1):
            if position in kernel.records or _stamp(files[position]) == former_stamps[position]:
                continue
            # a file that is not whole counts as no record
            with contextlib.suppress(ValueError):
                record = records.read(files[position])
                kernel.records[position] = record
                kernel.since = time.time()
                yield Message("record", files[position].read_text())
                if record["status"] == "failed" and job.device != "cpu":
                    # an error may have left the GPU unusable for this process
                    kernel.ended = "restart"
                    return
        if index > kernel.index:
            kernel.index = index
            kernel.since = started
            yield Message("begins", records.name(batch[index].case))
        limit_s = START_S
        if kernel.has_one_in_hand():
            limit_s = batch[index].timeout
        if over:
            kernel.ended = "by itself"
        elif time.time() - kernel.since > limit_s:
            kernel.ended = "timeout"


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file is replaced; zeros without one."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_ino)


def _begun_last(plan_file: Path) -> tuple[int, float]:
    """Return the position of the case that began last, and when; -1 before the first."""
    try:
        current = json.loads(plan_file.with_name(f"{plan_file.name}.current").read_text())
    except FileNotFoundError:
        return -1, 0.0
    return current["index"], current["started"]


def _why(executing: Future) -> str:
    """Say in a line why a notebook ended early; raises CannotWrite for a full disk."""
    error = executing.exception()
    if isinstance(error, OSError) and error.errno in FULL:
        raise _cannot_write(error)
    if isinstance(error, NotebookFailed):
        reason = " ".join(str(error).split())
        if reason.startswith("CannotWrite: "):
            raise records.CannotWrite(reason.removeprefix("CannotWrite: "))
        return reason
    return "its process died"


def _cannot_write(error: OSError) -> records.CannotWrite:
    return records.CannotWrite(f"{error.filename or 'scratch'}: cannot be written: {error.strerror}")


def end(folder: Path) -> None:
    """Kill all processes whose plan is in this folder: kernels and what they started.

    They are found by the variable that they inherit, also in sessions of their own."""
    # one that is being killed may just have started another
    for _ in range(10):
        processes = []
        for process in psutil.process_iter():
            # gone meanwhile, or another user's
            with contextlib.suppress(psutil.Error, OSError):
                is_own = Path(process.environ().get(PLAN, "/")).is_relative_to(folder)
                if is_own and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    processes.append(process)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(processes, timeout=1)
