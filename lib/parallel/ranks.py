"""Start processes that compute together, and hand back what each of them returns.

A rank is `python -m lib.parallel.ranks`. It meets the others through a file, which needs no port. Then it calls the
functions whose names arrive at its standard input, and ends when that closes: no rank outlives its parent.

>>> with World(2) as world:
...     world.run("torch.distributed.get_rank")
[0, 1]
"""

import contextlib
import importlib
import json
import os
import queue
import selectors
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
from lib.instruments.device import on
from lib.paths import ROOT

DEVICES = {"gloo": "cpu", "nccl": "cuda"}  # what each backend moves the data of
BACKENDS = {device: backend for backend, device in DEVICES.items()}
PROCESS_BYTES = 500 * 2**20  # of a process that has imported PyTorch, as seen on Linux
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
    gpus = len(on(device).models()) if device == "cuda" else size
    return f"{size} ranks need a GPU each, got {gpus}" if gpus < size else None


class World:
    """Hold `size` ranks that share a process group; use it in a `with` block.

    Raises RankFailed if they do not meet. With gloo, they share the machine's cores; with nccl, each has a GPU."""

    def __init__(self, size: int, backend: str = "gloo"):
        self.size = size
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        within = Path(self.folder.name)
        loopback = {"GLOO_SOCKET_IFNAME": _loopback()} | {"OMP_NUM_THREADS": str(threads(size))}
        self.errors = [within / f"{rank}.err" for rank in range(size)]
        self.ranks = []
        for rank, errors in enumerate(self.errors):
            arguments = [str(within / "store"), str(rank), str(size), backend]
            with errors.open("w") as file:
                self.ranks.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "lib.parallel.ranks", *arguments], cwd=ROOT, text=True, stderr=file,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=loopback | os.environ,
                    )
                )  # fmt: skip
        self._answers(START_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def run(self, function: str, within_s: float = ANSWER_S, **arguments) -> list:
        """Call a function, given as `module.name`, in every rank, and return what each returned.

        Arguments and results are those of JSON. Raises RankFailed, also without an answer `within_s` seconds."""
        for process in self.ranks:
            with contextlib.suppress(BrokenPipeError):  # it has ended, as its missing answer will tell
                process.stdin.write(json.dumps([function, arguments]) + "\n")
                process.stdin.flush()
        return self._answers(within_s)

    def _answers(self, within_s: float) -> list:
        """Collect an answer of each rank; closes the world and raises RankFailed unless all are good."""
        found, failed, deadline = {}, {}, time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            for rank, process in enumerate(self.ranks):
                selector.register(process.stdout, selectors.EVENT_READ, rank)
            while len(found) + len(failed) < self.size and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    selector.unregister(key.fileobj)
                    answer = json.loads(key.fileobj.readline() or "null")
                    if answer is not None and "error" not in answer:
                        found[key.data] = answer["result"]
                        continue
                    failed[key.data] = answer or {"error": self._ended(key.data), "traceback": ""}
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if len(found) == self.size:
            return [found[rank] for rank in range(self.size)]
        silent = [] if failed else [rank for rank in range(self.size) if rank not in found]
        self.close(at_once=True)
        first = sorted(failed, key=lambda rank: (failed[rank]["traceback"] != "", rank))  # a dead rank fails the others
        said = [f"rank {rank}: {failed[rank]['error']}" for rank in first]
        said += [f"no answer from rank {rank} in {within_s:.0f} s" for rank in silent]
        failure = RankFailed("; ".join(said))
        failure.add_note("".join(answer["traceback"] for answer in failed.values()))
        raise failure

    def _ended(self, rank: int) -> str:
        """Say how a rank ended and what it said last."""
        code = self.ranks[rank].wait()
        said = self.errors[rank].read_text(errors="replace").strip().splitlines()
        return f"ended with code {code}" + (f": {said[-1]}" if said else "")

    def close(self, at_once: bool = False) -> None:
        """End the ranks, which end by themselves when their standard input closes, or `at_once`."""
        for process in self.ranks:
            if at_once:
                process.kill()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.ranks:
            try:
                process.wait(timeout=GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        self.folder.cleanup()


def _loopback() -> str:
    """Return the name of the network interface by which a machine reaches itself."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address.startswith("127.") for each in addresses):
            return name
    return "lo"


class Clock:
    """Give all ranks the same times: a phase ends when the slowest of them has ended it.

    So all decide alike how long to measure. Each start waits until all ranks are there. `inner` is a clock as in
    `lib.timing`."""

    def __init__(self, inner):
        self.inner, self.queues, self.short_ns = inner, inner.queues, inner.short_ns

    def start(self) -> None:
        dist.barrier()
        self.inner.start()

    def mark(self) -> None:
        self.inner.mark()

    def stop(self) -> tuple[list[int], int, int]:
        """Return nanoseconds as the inner clock does, by the last rank at each mark."""
        durations, wall_ns, host_ns = self.inner.stop()
        ends = torch.tensor(durations).cumsum(0).tolist()
        device = DEVICES[dist.get_backend()]
        last = torch.tensor([*ends, wall_ns, host_ns], dtype=torch.int64, device=device)
        dist.all_reduce(last, dist.ReduceOp.MAX)
        *ends, wall_ns, host_ns = last.tolist()
        return [b - a for a, b in zip([0, *ends], ends, strict=False)], wall_ns, host_ns


def main(store: str, rank: str, size: str, backend: str) -> None:
    """Join the other ranks, then answer calls until standard input closes."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(calls,), daemon=True).start()
    allocator.use(allocator.chosen())
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    card = on(DEVICES[backend]).take(int(rank))
    dist.init_process_group(
        backend, store=dist.FileStore(store, int(size)), rank=int(rank), world_size=int(size), device_id=card,
        timeout=timedelta(seconds=ANSWER_S),
    )  # fmt: skip
    print(json.dumps({"result": None}), file=answers, flush=True)
    while True:
        name, arguments = json.loads(calls.get())
        module, _, function = name.rpartition(".")
        try:
            answer = {"result": getattr(importlib.import_module(module), function)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        print(json.dumps(answer, allow_nan=False), file=answers, flush=True)


def _listen(calls: queue.SimpleQueue) -> None:
    """Queue the lines of standard input; at its end, end this process whatever it is doing."""
    for line in sys.stdin:
        calls.put(line)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
