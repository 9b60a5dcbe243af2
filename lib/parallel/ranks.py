"""Start processes that compute together, and hand back what each of them returns.

The ranks meet through a file, which needs no port. Then each calls the functions that arrive through its pipe, and ends
with this process: no rank outlives its parent.

>>> with World(2) as world:
...     world.run(torch.distributed.get_rank)
[0, 1]
"""

import contextlib
import multiprocessing
import os
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from lib.instruments import allocator, environment

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # what each backend moves the data of
BACKENDS = {device: backend for backend, device in DEVICES.items()}
START_S = 120.0  # for all ranks to import torch and to meet
ANSWER_S = 60.0  # for all ranks to answer a call, unless it says how long, and for a collective to end
GRACE_S = 1.0  # in which ranks may say what went wrong, once one of them has failed


class RankFailed(RuntimeError):
    """Signal that a rank raised, ended or gave no answer; its world is closed."""


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
        self.processes: list[multiprocessing.Process] = []
        self._pipes: list[connection.Connection] = []
        spawn = multiprocessing.get_context("spawn")
        for rank in range(size):
            pipe, pipe_of_rank = spawn.Pipe()
            arguments = (pipe_of_rank, Path(self.folder.name), rank, size, backend)
            process = spawn.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            # the rank alone holds this end now: it closes when the rank ends
            pipe_of_rank.close()
            self.processes.append(process)
            self._pipes.append(pipe)
        self._answers(START_S)

    def __exit__(self, *_):
        self.close()

    def run(self, function: Callable, within_s: float = ANSWER_S, **arguments) -> list:
        """Call a function of a module in every rank, and return what each returned.

        Raises RankFailed, also without an answer in `within_s` seconds; the world is closed then."""
        for pipe in self._pipes:
            # a rank that has ended tells so by its missing answer
            with contextlib.suppress(BrokenPipeError):
                pipe.send((function, arguments))
        return self._answers(within_s)

    def _answers(self, within_s: float) -> list:
        """Return what each rank answers; close the world unless all answers are good."""
        answers: dict[int, dict] = {}
        deadline = time.monotonic() + within_s
        try:
            while len(answers) < self.size:
                silent = [rank for rank in range(self.size) if rank not in answers]
                pipes = [self._pipes[rank] for rank in silent]
                ready = connection.wait(pipes, max(0.0, deadline - time.monotonic()))
                if not ready:
                    break
                rank = self._pipes.index(ready[0])
                answers[rank] = self._answer(rank)
                if "error" in answers[rank]:
                    # the others may wait for this one in a collective, or say more of what went wrong
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            failures = {rank: answer for rank, answer in sorted(answers.items()) if "error" in answer}
            if failures:
                raise _failed(failures)
            if len(answers) < self.size:
                raise RankFailed(f"no answer from rank {', '.join(map(str, silent))} in {within_s:.0f} s")
        except BaseException:  # an interrupt, too: later calls must not get the answers of this one
            self.close()
            raise
        return [answers[rank]["result"] for rank in range(self.size)]

    def _answer(self, rank: int) -> dict:
        """Receive a rank's answer; a pipe that is closed means that the rank has ended."""
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join()
        error = f"ended with code {self.processes[rank].exitcode}"
        last_words = _output(Path(self.folder.name), rank).read_text(errors="replace").strip()
        if last_words:
            error += f": {last_words.splitlines()[-1]}"
        return {"error": error, "traceback": ""}

    def close(self) -> None:
        """End the ranks, which have nothing to lose."""
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self.folder.cleanup()


def _failed(failures: dict[int, dict]) -> RankFailed:
    """Return the error of all ranks that failed, with their tracebacks as a note."""
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
    """Give all ranks the same times.

    So all decide alike when to stop; else they would wait for one another. `inner` is a clock as in `lib.timing`. A
    phase ends when the slowest rank has ended it."""

    def __init__(self, inner):
        self.inner = inner
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

    def stop(self) -> list[int]:
        """Return the nanoseconds of each phase, which ends with the last rank."""
        ends_ns = torch.tensor(self.inner.stop(), dtype=torch.int64, device=self.device).cumsum(0)
        dist.all_reduce(ends_ns, dist.ReduceOp.MAX)
        return ends_ns.diff(prepend=ends_ns.new_zeros(1)).tolist()

    def seconds(self) -> float:
        """Return rank 0's time, by which all of them end sampling."""
        now = torch.tensor(self.inner.seconds(), dtype=torch.float64, device=self.device)
        dist.broadcast(now, 0)
        return now.item()


def _serve(calls: connection.Connection, folder: Path, rank: int, size: int, backend: str) -> None:
    """Join the other ranks, then answer calls."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # what libraries print is not for who called; the last line may say why a rank ended
    with _output(folder, rank).open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # what the user has set comes first
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", threads(size))))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
    allocator.use("keeps")
    gpu = None
    if backend == "nccl":
        gpu = torch.device("cuda", rank)
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        backend, store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size, device_id=gpu,
        timeout=timedelta(seconds=ANSWER_S),
    )  # fmt: skip
    calls.send({"result": None})
    while True:
        function, arguments = calls.recv()
        try:
            answer = {"result": function(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        calls.send(answer)


def _end_with_parent() -> None:
    """Wait until the parent has ended, then end this process whatever it is doing."""
    multiprocessing.parent_process().join()
    os._exit(0)


def _output(folder: Path, rank: int) -> Path:
    """Return the file of what a rank prints."""
    return folder / f"{rank}.out"
