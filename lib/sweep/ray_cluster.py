"""Runs a sweep on the machines of a Ray cluster: each node is a box, whose slots execute runs as tasks pinned to it.

Ray is an optional engine, imported only here. Knows nothing of records: the pieces of a run go to the supervisor, which
alone writes them, so that no file system need be shared.
"""

import concurrent.futures
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from tqdm import tqdm

from lib import notebooks, validate
from lib.records import code_digest
from lib.sweep import plan, ray_worker
from lib.sweep.lock import Shard
from lib.sweep.plan import Task
from lib.sweep.run import Piece, Run
from lib.sweep.supervisor import Box, SlotLost

# before Ray is imported: nothing is reported to anyone, and no cluster begins by itself when one is lost
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
try:
    import ray
    from ray import exceptions
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._raylet import GcsClient
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    ray = None

ANSWER_S = 10  # within which a cluster must answer, and a node of one usually does
GONE_S = 90  # within which a cluster notices that a node is gone: Ray asks up to 5 times, for 10 s every 3 s
PLAN_S = 120  # within which a node must have planned: it imports torch and predicts the memory of each case
LOOK_S = 3  # between looks at which nodes there are
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # which may ask the sweep to stop


@contextlib.contextmanager
def boxes(address: str, sweep: str, shard: Shard) -> Iterator[list[Box]]:
    """The nodes of the cluster whose head is at `address`, HOST:PORT, as boxes with the tasks of a shard of a sweep;
    the list changes as nodes come and go. Raises ValueError without Ray, a cluster, or a node that can take part.

    The process belongs to the cluster until it ends, by os._exit, when the cluster ends what still runs for it: to
    leave before would be to take Ray away under the threads that wait for it."""
    validate.choice("sweep", sweep, notebooks.sweeps())
    with _silent():
        _aside(lambda: _join(address))
    nodes = Nodes(sweep, shard)
    refused = _aside(nodes.look)
    if not nodes.boxes:
        raise ValueError("; ".join([f"address: no node of the cluster at {address} can take part", *refused]))
    _tell(refused)
    over = threading.Event()
    threading.Thread(target=nodes.follow, args=(over,), daemon=True).start()
    try:
        yield nodes.boxes
    finally:
        over.set()


def _aside(function: Callable):
    """What a function that calls Ray returns or raises, from a thread of its own: in Ray's compiled code the exception
    that a signal raises can be lost, and Ray takes SIGTERM for itself, so that signals wait until it is given back."""
    called = concurrent.futures.Future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:  # it belongs to who waits
            called.set_exception(error)

    heeded = {number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, heeded)
    try:
        threading.Thread(target=call, daemon=True).start()
        while not called.done() and not heeded & signal.sigpending():
            concurrent.futures.wait([called], 0.05)
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.getsignal(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, former)  # which raises what a signal that waits has to raise
    return called.result()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """For the block nobody writes to standard error, as Ray's compiled code does beside raising an exception."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _join(address: str) -> None:
    """Become a driver of the cluster. Raises ValueError in one line."""
    if ray is None:
        raise ValueError("address: Ray is not installed here, which `pip install -e .[cluster]` does")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address: {address!r} must be HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # else the next line would end the process
        GcsClient(address=address)  # `ray.init` would try again and again, and not say in the end what is wrong
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, OverflowError) as error:  # Ray's own error for a cluster that is not there is an OSError too
        raise ValueError(f"address: no Ray cluster answers at {address}: {_line(error)}") from None
    except (RuntimeError, ValueError, exceptions.RayError) as error:  # such as another version, or a wrong token
        raise ValueError(f"address: {address} cannot be joined from here: {_line(error)}") from None
    ray._private.worker._worker_logs_enabled = False  # else the last words of each lost node stand beside the bar


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


class Nodes:
    """The boxes of the nodes of the cluster that take part."""

    def __init__(self, sweep: str, shard: Shard):
        self.sweep, self.shard = sweep, shard
        self.boxes: list[Box] = []
        self._by_id: dict[str, Box | None] = {}
        self._queues: dict[frozenset[str], deque[Task]] = {}

    def look(self, late: bool = False) -> list[str]:
        """Take in the nodes that have joined, drop those that are gone, and return a line for each that takes no
        part."""
        # seen before the cluster is asked, since a box is given up as soon as the cluster says that it is gone
        given_up = {identity for identity, box in self._by_id.items() if box and box not in self.boxes}
        alive = {identity: node for identity, node in _alive().items() if _counts(node) != (0, 0)}
        self.boxes += [self._by_id[identity] for identity in given_up & alive.keys()]
        for identity in self._by_id.keys() - alive.keys():
            box = self._by_id.pop(identity)
            with contextlib.suppress(ValueError):  # the supervisor may have seen it first
                self.boxes.remove(box)
        joined = {identity: node for identity, node in alive.items() if identity not in self._by_id}
        refused = []
        views = {identity: _view.options(**_pinned(identity)).remote(self.sweep) for identity in joined}
        for identity, node in joined.items():
            self._by_id[identity] = None
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            try:
                view = ray.get(views[identity], timeout=PLAN_S)
                refuse_other(view, self.sweep)
                box = self._by_id[identity] = self._box(identity, name, _counts(node), view, late)
                self.boxes.append(box)
            except (exceptions.RayError, ValueError) as error:
                refused.append(f"{name} takes no part: {_line(getattr(error, 'cause', None) or error)}")
        return refused

    def _box(self, identity: str, name: str, counts: tuple[int, int], view: ray_worker.View, late: bool) -> Box:
        """The box of a node. Nodes of the same hardware share their tasks; what the hardware of another node already
        does for a machine, such as two hosts of the same GPU with different processors, is left to that one."""
        tasks = plan.in_shard(view.tasks, self.shard)
        kind = frozenset(task.machine for task in tasks)
        if kind not in self._queues:
            if late:
                raise ValueError("it joined with hardware of its own; the same command, once more, takes it in")
            taken = frozenset().union(*self._queues)
            self._queues[kind] = deque(task for task in tasks if task.machine not in taken)
        cpus, gpus = counts
        used = gpus if any(not task.alone for task in tasks) else 0
        slots = [Slot(identity, name, cpus // max(gpus, 1), 1) for _ in range(used)]
        return Box(self._queues[kind], Slot(identity, name, cpus, gpus, whole=True), slots)

    def follow(self, over: threading.Event) -> None:
        """In a thread of its own: look again and again, until it is over."""
        while not over.wait(LOOK_S):
            with contextlib.suppress(exceptions.RayError, OSError):  # the runs say themselves what became of them
                _tell(self.look(late=True))


def _tell(lines: list[str]) -> None:
    for line in lines:
        tqdm.write(line, file=sys.stderr)  # above the bar


def _alive() -> dict[str, dict]:
    """The nodes that the cluster holds to be alive, by their identity. One that is gone never comes back as such."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _counts(node: dict) -> tuple[int, int]:
    """The processors and GPUs that a node declares."""
    return int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0))


def _pinned(identity: str) -> dict:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(identity, soft=False)} if ray else {}


def refuse_other(view: ray_worker.View, sweep: str) -> None:
    """Raise ValueError unless what a node measures is what the supervisor takes for it."""
    if view.sweep != ray_worker.digest(sweep):
        raise ValueError(f"its sweep {sweep} is another one")
    other = {task.experiment for task in view.tasks if task.code != code_digest.code(task.experiment)}
    if other:
        raise ValueError(f"its code of {', '.join(sorted(other))} is another one; check out the same commit")
    if view.nicer_by:
        raise ValueError(
            f"Ray's workers there have a niceness of {view.nicer_by} more than the node, so that other work disturbs "
            "them; start it with RAY_worker_niceness=0 in the environment"
        )


class Slot:
    """Where one kernel runs at a time on a node: with one of its GPUs, or with the whole of it."""

    def __init__(self, node: str, name: str, cpus: int, gpus: int, whole: bool = False):
        self.node, self.name, self.whole = node, name, whole
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}

    def pieces(self, run: Run) -> Iterator[Piece]:
        """Execute a run there. Raises SlotLost when the node is gone, and the run with it."""
        stream = _measured.options(**self.needs, **_pinned(self.node)).remote(run, self.whole)
        try:
            for reference in stream:
                yield Piece(*ray.get(reference))
        except exceptions.RayTaskError as error:  # the task raised it
            yield Piece("end", "failed", f"{self.name}: {type(error.cause).__name__}: {error.cause}".encode())
        except exceptions.OutOfMemoryError:  # the node's memory was full, and Ray ended the task
            yield Piece("end", "oom")
        except exceptions.RayError:
            if self._gone():
                raise SlotLost(f"{self.name} is gone") from None
            yield Piece("end", "died")
        finally:
            ray.cancel(stream, force=True)

    def _gone(self) -> bool:
        """Whether the node itself is gone, and not just its worker: the cluster says so, which may take a while. A node
        that answers is not gone, however late it does, nor is one that the cluster still holds to be alive then."""
        began = time.monotonic()
        with contextlib.suppress(exceptions.RpcError):  # then the cluster is gone
            while self.node in _alive():
                with contextlib.suppress(exceptions.RayError):
                    return not ray.get(_here.options(**_pinned(self.node)).remote(), timeout=ANSWER_S)
                if time.monotonic() - began > GONE_S:
                    return False
                time.sleep(1)
        return True


if ray:
    # a run that failed is not Ray's to repeat, but the supervisor's; what has planned holds memory of the GPU
    _measured = ray.remote(num_returns="streaming", max_retries=0, max_calls=0)(ray_worker.measured)
    _view = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(ray_worker.view)
    _here = ray.remote(num_cpus=0, max_retries=0)(ray_worker.here)
