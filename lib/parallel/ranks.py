"""Start processes that compute together, and hand back what each of them returns.

The ranks meet through a file, which needs no port. No rank outlives its parent.

>>> with World(2) as world:
...     world.run(torch.distributed.get_rank)
[0, 1]
"""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path

import torch
import torch.distributed as dist

from lib.instruments import allocator, environment

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # the device whose tensors each backend moves
BACKENDS = {device: backend for backend, device in DEVICES.items()}
LOOPBACK = {"darwin": "lo0"}.get(sys.platform, "lo")  # the interface by which a machine reaches itself
START_S = 120.0  # for all ranks to import torch and to join
ANSWER_S = 60.0  # for all ranks to answer a call without `within_s`; also how long a rank waits for the others
GRACE_S = 1.0  # to look for a rank that has ended, which explains why another one failed


class RankFailed(RuntimeError):
    """Signal that a rank raised, ended or gave no answer; its world is closed."""


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
            # a rank may end before it writes
            Path(self.folder.name, f"{rank}.out").touch()
            arguments = (pipe_of_rank, Path(self.folder.name), rank, size, backend)
            process = spawn.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            # the rank alone holds this end now: it closes when the rank ends
            pipe_of_rank.close()
            self.processes.append(process)
            self._pipes.append(pipe)
        with self._closed_by_error():
            self._answers(START_S)

    def __exit__(self, *_):
        self.close()

    def run(self, function: Callable, within_s: float = ANSWER_S, **arguments) -> list:
        """Call a function in every rank, and return what each returned.

        It is sent by its name, so it must be at the top of a module. Raises RankFailed, also without an answer in
        `within_s` seconds; the world is closed then."""
        with self._closed_by_error():
            for pipe in self._pipes:
                # a rank that has ended tells so by its missing answer
                with contextlib.suppress(BrokenPipeError):
                    pipe.send((function, arguments))
            return self._answers(within_s)

    @contextlib.contextmanager
    def _closed_by_error(self) -> Iterator[None]:
        """Close the world if the block raises, or is interrupted."""
        try:
            yield
        except BaseException:
            # later calls must not get the answers of this one
            self.close()
            raise

    def _answers(self, within_s: float) -> list:
        """Return what each rank answers."""
        silent = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        results = [None] * self.size
        deadline = time.monotonic() + within_s
        while silent:
            ready = connection.wait(silent, max(0.0, deadline - time.monotonic()))
            if not ready:
                raise RankFailed(f"no answer from rank {', '.join(map(str, silent.values()))} in {within_s:.0f} s")
            rank = silent.pop(ready[0])
            try:
                results[rank] = ready[0].recv()
            except (EOFError, ConnectionResetError):
                results[rank] = RankFailed(f"rank {rank}: closed its pipe")
            if isinstance(results[rank], RankFailed):
                # a rank that ended makes the others fail, too
                raise self._ended() or results[rank]
        return results

    def _ended(self) -> RankFailed | None:
        """Return the error of a rank that ends within GRACE_S, or None."""
        ended = connection.wait([process.sentinel for process in self.processes], GRACE_S)
        for rank, process in enumerate(self.processes):
            if process.sentinel in ended:
                process.join()
                output = Path(self.folder.name, f"{rank}.out").read_text(encoding="utf-8", errors="replace")
                last_words = output.strip().splitlines()[-1:]
                return RankFailed(": ".join([f"rank {rank}", f"ended with code {process.exitcode}", *last_words]))
        return None

    def close(self) -> None:
        """End the ranks, which have nothing to lose."""
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self.folder.cleanup()


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
    # what libraries print is not for the caller; the last line may say why a rank ended
    with (folder / f"{rank}.out").open("w", encoding="utf-8") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    # the user's number comes first: PyTorch has read it, even if it is a list
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, environment.cores() // size))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    allocator.use("keeps")
    gpu = None
    if backend == "nccl":
        gpu = torch.device("cuda", rank)
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        backend, store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size, device_id=gpu,
        timeout=timedelta(seconds=ANSWER_S),
    )  # fmt: skip
    # the first answer says that this rank is ready
    answer = None
    while True:
        calls.send(answer)
        function, arguments = calls.recv()
        try:
            answer = function(**arguments)
        except Exception as error:
            answer = RankFailed(f"rank {rank}: {type(error).__name__}: {error}")
            # for the log
            answer.add_note(traceback.format_exc())


def _end_with_parent() -> None:
    """Wait until the parent has ended, then end this process whatever it is doing."""
    multiprocessing.parent_process().join()
    os._exit(0)
