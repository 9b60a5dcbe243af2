"""Start processes that compute together, and hand back what each of them returns.

A rank is `python -m lib.parallel.ranks`. It meets the others through a file, which needs no port. Then it calls the
functions whose names arrive at its standard input, and ends when that closes: no rank outlives its parent.

>>> with World(2) as world:
...     world.run("torch.distributed.get_rank")
[0, 1]
"""

import contextlib
import json
import os
import pkgutil
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from lib.instruments import allocator, environment
from lib.paths import ROOT

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # what each backend moves the data of
BACKENDS = {device: backend for backend, device in DEVICES.items()}
START_S = 120.0  # for all ranks to import torch and to meet
ANSWER_S = 60.0  # for all ranks to answer a call, unless it says how long, and for a collective to end
GRACE_S = 1.0  # in which ranks may say what went wrong, once one of them has failed


class RankFailed(RuntimeError):
    """Signal that a rank raised, ended or gave no answer in time; its world is closed."""


def threads(size: int) -> int:
    """Return the threads of each of `size` ranks on this machine's cores."""
    return max(1, environment.cores() // size)


def missing(device: str, size: int) -> str | None:
    """Return why `size` ranks cannot compute on a device of this machine, or None."""
    if device not in BACKENDS:
        return f"torch.distributed has no backend for {device}"
    if device == "cuda" and torch.cuda.device_count() < size:
        return f"{size} ranks need a GPU each, got {torch.cuda.device_count()}"
    return None


class World(contextlib.AbstractContextManager):
    """Hold `size` ranks that share a process group; use it in a `with` block.

    With gloo they share the machine's cores; with nccl each has a GPU. Raises RankFailed if they do not meet."""

    def __init__(self, size: int, backend: str = "gloo"):
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        folder = Path(self.folder.name)
        # what the user has set comes first
        variables = {"GLOO_SOCKET_IFNAME": _loopback(), "OMP_NUM_THREADS": str(threads(size))} | os.environ
        self.error_files = [folder / f"{rank}.err" for rank in range(size)]
        self.processes: list[subprocess.Popen] = []
        self._lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        for rank, error_file in enumerate(self.error_files):
            command = [sys.executable, "-m", "lib.parallel.ranks", str(folder / "store"), str(rank), str(size), backend]
            with error_file.open("w") as errors:
                process = subprocess.Popen(
                    command, cwd=ROOT, env=variables, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=errors,
                )  # fmt: skip
            self.processes.append(process)
            # a thread reads, since a rank that is stopped within a line would block this process
            threading.Thread(target=_listen, args=(rank, process.stdout, self._lines), daemon=True).start()
        self._answers(START_S)

    def __exit__(self, *_):
        self.close()

    def run(self, function: str, within_s: float = ANSWER_S, **arguments) -> list:
        """Call a function, given as `module.name`, in every rank, and return what each returned, as JSON.

        Raises RankFailed, also without an answer in `within_s` seconds; the world is closed then."""
        if self.processes[0].stdin.closed:
            raise RankFailed("world: got a call, expected none after it was closed")
        for process in self.processes:
            # a rank that has ended tells so by its missing answer
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps([function, arguments]) + "\n")
                process.stdin.flush()
        return self._answers(within_s)

    def _answers(self, within_s: float) -> list:
        """Return what each rank answers; close the world unless all answers are good."""
        answers: dict[int, dict] = {}
        deadline = time.monotonic() + within_s
        try:
            while len(answers) < self.size:
                try:
                    rank, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    break
                answers[rank] = self._answer(rank, line)
                if "error" in answers[rank]:
                    # the others may wait for this one in a collective, or say more of what went wrong
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            failures = {rank: answer for rank, answer in sorted(answers.items()) if "error" in answer}
            if failures:
                raise _failed(failures)
            silent = set(range(self.size)) - set(answers)
            if silent:
                raise RankFailed(f"no answer from rank {', '.join(map(str, silent))} in {within_s:.0f} s")
        except BaseException:  # an interrupt, too: later calls must not get the answers of this one
            self.close(at_once=True)
            raise
        return [answers[rank]["result"] for rank in range(self.size)]

    def _answer(self, rank: int, line: str) -> dict:
        """Read a line of a rank; one that is cut, or empty, means that it has ended."""
        if line.endswith("\n"):
            return json.loads(line)
        error = f"ended with code {self.processes[rank].wait()}"
        last_words = self.error_files[rank].read_text(errors="replace").strip()
        if last_words:
            error += f": {last_words.splitlines()[-1]}"
        return {"error": error, "traceback": ""}

    def close(self, at_once: bool = False) -> None:
        """End the ranks, which end by themselves when their standard input closes, or `at_once`."""
        for process in self.processes:
            if at_once:
                process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.folder.cleanup()


def _listen(rank: int, stdout, lines: queue.SimpleQueue) -> None:
    """Queue the lines of a rank, and at its end an empty one."""
    with stdout:
        for line in stdout:
            lines.put((rank, line))
    lines.put((rank, ""))


def _failed(failures: dict[int, dict]) -> RankFailed:
    """Return the error that tells of all ranks that failed, with their tracebacks as a note."""
    # a rank that died makes the others fail, so it comes first
    ranks = sorted(failures, key=lambda rank: failures[rank]["traceback"] != "")
    error = RankFailed("; ".join(f"rank {rank}: {failures[rank]['error']}" for rank in ranks))
    error.add_note("".join(failures[rank]["traceback"] for rank in ranks))
    return error


def _loopback() -> str:
    """Return the name of the network interface by which a machine reaches itself."""
    for name, addresses in psutil.net_if_addrs().items():
        for address in addresses:
            if address.family == socket.AF_INET and address.address.startswith("127."):
                return name
    return "lo"


class Clock:
    """Give all ranks the same times, so that all decide alike when to stop: else they would wait for one another.

    `inner` is a clock as in `lib.timing`. A phase ends when the slowest rank has ended it."""

    def __init__(self, inner):
        self.inner = inner
        self.queues = inner.queues
        self.short_ns = inner.short_ns
        self.least_s = inner.least_s
        self.device = DEVICES[dist.get_backend()]

    def start(self) -> None:
        """Begin an iteration, once all ranks are there."""
        dist.barrier()
        self.inner.start()

    def mark(self) -> None:
        """End a phase of this rank."""
        self.inner.mark()

    def stop(self) -> tuple[list[int], int, int]:
        """Return nanoseconds as the inner clock does, by the last rank at each mark."""
        durations, wall_ns, host_ns = self.inner.stop()
        ends = torch.tensor(durations).cumsum(0).tolist()
        latest = torch.tensor([*ends, wall_ns, host_ns], dtype=torch.int64, device=self.device)
        dist.all_reduce(latest, dist.ReduceOp.MAX)
        *ends, wall_ns, host_ns = latest.tolist()
        durations = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        return durations, wall_ns, host_ns

    def seconds(self) -> float:
        """Return rank 0's time, by which all of them end sampling."""
        now = torch.tensor(self.inner.seconds(), dtype=torch.float64, device=self.device)
        dist.broadcast(now, 0)
        return now.item()


def main(store: str, rank: str, size: str, backend: str) -> None:
    """Join the other ranks, then answer calls until standard input closes."""
    # what libraries print goes to standard error: it must not mix with the answers
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_take_calls, args=(calls,), daemon=True).start()
    allocator.use(allocator.chosen())
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    gpu = None
    if backend == "nccl":
        gpu = torch.device("cuda", int(rank))
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        backend, store=dist.FileStore(store, int(size)), rank=int(rank), world_size=int(size), device_id=gpu,
        timeout=timedelta(seconds=ANSWER_S),
    )  # fmt: skip
    print(json.dumps({"result": None}), file=answers, flush=True)
    while True:
        print(_called(*json.loads(calls.get())), file=answers, flush=True)


def _called(name: str, arguments: dict) -> str:
    """Call a function by its name, and return its result or its error as JSON."""
    try:
        return json.dumps({"result": pkgutil.resolve_name(name)(**arguments)}, allow_nan=False)
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()})


def _take_calls(calls: queue.SimpleQueue) -> None:
    """Queue the lines of standard input; at its end, end this process whatever it is doing."""
    for line in sys.stdin:
        calls.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
