"""Run a sweep on a Ray cluster: each node is a box, its slots execute runs as tasks on the node.

Ray is optional and imported only here. Records return through Ray to the supervisor, which writes them, so the nodes
need no shared file system.
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
from dataclasses import replace

from tqdm import tqdm

from lib import notebooks, validate
from lib.records import code_digest
from lib.sweep import plan, ray_worker
from lib.sweep.lock import Shard
from lib.sweep.plan import Task
from lib.sweep.run import Piece, Run
from lib.sweep.supervisor import Box, SlotLost

# set before Ray is imported: send no usage statistics, and start no cluster when one is lost
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
try:
    import ray
    from ray import exceptions
    from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
    from ray._raylet import GcsClient
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    ray = None

ANSWER_S = 10  # for a cluster to answer; a node usually answers in this time too
GONE_S = 90  # for a cluster to notice that a node is gone: Ray asks up to 5 times, for 10 s every 3 s
PLAN_S = 120  # for a node to plan: it imports torch and predicts the memory of each case
LOOK_S = 3  # between checks of the list of nodes
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # that ask the sweep to stop


@contextlib.contextmanager
def boxes(address: str, sweep: str, shard: Shard) -> Iterator[list[Box]]:
    """Yield a list of boxes, one per node of the cluster; it changes as nodes come and go.

    Raises ValueError without Ray, a cluster at `address` (HOST:PORT), or a suitable node. The process stays connected
    until os._exit, since other threads still wait for Ray; the cluster then stops its tasks."""
    validate.choice("sweep", sweep, notebooks.sweeps())
    with _stderr_silenced():
        _in_thread(lambda: _join(address))
    nodes = Nodes(sweep, shard)
    refused = _in_thread(nodes.update)
    if not nodes.boxes:
        raise ValueError("; ".join([f"address: no node of the cluster at {address} can take part", *refused]))
    _print(refused)
    over = threading.Event()
    threading.Thread(target=nodes.follow, args=(over,), daemon=True).start()
    try:
        yield nodes.boxes
    finally:
        over.set()


def _in_thread(function: Callable):
    """Call a function that uses Ray in a thread, and return or raise its result; a signal ends the wait.

    Ray's compiled code can lose the exception of a signal, and Ray replaces the handler of SIGTERM. So signals are
    blocked until the handlers are restored."""
    called = concurrent.futures.Future()

    def call() -> None:
        try:
            called.set_result(function())
        except BaseException as error:  # raised again by the waiting thread
            called.set_exception(error)

    handled = {number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        threading.Thread(target=call, daemon=True).start()
        while not called.done() and not handled & signal.sigpending():
            concurrent.futures.wait([called], 0.05)
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.getsignal(number))
        signal.pthread_sigmask(signal.SIG_SETMASK, former)  # a pending signal now runs its handler
    return called.result()


@contextlib.contextmanager
def _stderr_silenced() -> Iterator[None]:
    """Discard standard error in the block; Ray's compiled code writes there and also raises an exception."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _join(address: str) -> None:
    """Connect to the cluster as a driver. Raises ValueError in one line."""
    if ray is None:
        raise ValueError("address: Ray is not installed here; `pip install -e .[cluster]` installs it")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address: got {address!r}, expected HOST:PORT")
    try:
        socket.create_connection((host, int(port)), ANSWER_S).close()
        ensure_token_if_auth_enabled(create_token_if_missing=False)  # a missing token would make the next line exit
        GcsClient(address=address)  # `ray.init` would retry for long, without a clear error
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, OverflowError) as error:  # Ray's own error for a missing cluster is an OSError too
        raise ValueError(f"address: no Ray cluster answers at {address}: {_first_line(error)}") from None
    except (RuntimeError, ValueError, exceptions.RayError) as error:  # for example another version or a wrong token
        raise ValueError(f"address: cannot join the cluster at {address}: {_first_line(error)}") from None
    ray._private.worker._worker_logs_enabled = False  # else the last output of each lost node appears beside the bar


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class Nodes:
    """Keep `boxes`, the nodes of the cluster that take part in a sweep, up to date."""

    def __init__(self, sweep: str, shard: Shard):
        self.sweep, self.shard = sweep, shard
        self.boxes: list[Box] = []
        self._by_id: dict[str, Box | None] = {}
        self._queues: dict[frozenset[str], deque[Task]] = {}

    def update(self, late: bool = False) -> list[str]:
        """Add new nodes and remove lost ones; return a line for each new node that is left out."""
        # computed before asking the cluster: a box is given up as soon as the cluster reports it as gone
        given_up = {identity for identity, box in self._by_id.items() if box and box not in self.boxes}
        alive = {identity: node for identity, node in _alive_nodes().items() if _cpus_and_gpus(node) != (0, 0)}
        self.boxes += [self._by_id[identity] for identity in given_up & alive.keys()]
        for identity in self._by_id.keys() - alive.keys():
            box = self._by_id.pop(identity)
            with contextlib.suppress(ValueError):  # the supervisor may have removed it already
                self.boxes.remove(box)
        joined = {identity: node for identity, node in alive.items() if identity not in self._by_id}
        refused = []
        views = {identity: _view.options(**_pinned(identity)).remote(self.sweep) for identity in joined}
        for identity, node in joined.items():
            self._by_id[identity] = None
            name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
            try:
                view = ray.get(views[identity], timeout=PLAN_S)
                refuse_mismatch(view, self.sweep)
                box = self._by_id[identity] = self._box(identity, name, _cpus_and_gpus(node), view, late)
                self.boxes.append(box)
            except (exceptions.RayError, ValueError) as error:
                refused.append(f"{name} is left out: {_first_line(getattr(error, 'cause', None) or error)}")
        return refused

    def _box(self, identity: str, name: str, counts: tuple[int, int], view: ray_worker.View, late: bool) -> Box:
        """Make the box of a node; nodes of the same hardware share their tasks.

        Tasks of a machine that other hardware has taken are left to it, as with one GPU in hosts of two kinds."""
        tasks = plan.in_shard(view.tasks, self.shard)
        kind = frozenset(task.machine for task in tasks)
        if kind not in self._queues:
            if late:
                raise ValueError("its hardware is new to this sweep; run the same command again to include it")
            taken = frozenset().union(*self._queues)
            self._queues[kind] = deque(task for task in tasks if task.machine not in taken)
        cpus, gpus = counts
        used = gpus if any(not task.alone for task in tasks) else 0
        slots = [Slot(identity, name, cpus // max(gpus, 1), 1, (number, used)) for number in range(used)]
        return Box(self._queues[kind], Slot(identity, name, cpus, gpus), slots)

    def follow(self, over: threading.Event) -> None:
        """Update the nodes again and again until `over` is set; runs in a thread."""
        while not over.wait(LOOK_S):
            with contextlib.suppress(exceptions.RayError, OSError):  # the runs report their own errors
                _print(self.update(late=True))


def _print(lines: list[str]) -> None:
    for line in lines:
        tqdm.write(line, file=sys.stderr)  # above the bar


def _alive_nodes() -> dict[str, dict]:
    """Return the nodes that the cluster reports as alive, by identity; a lost identity never returns."""
    return {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}


def _cpus_and_gpus(node: dict) -> tuple[int, int]:
    return int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0))


def _pinned(identity: str) -> dict:
    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(identity, soft=False)} if ray else {}


def refuse_mismatch(view: ray_worker.View, sweep: str) -> None:
    """Raise ValueError if a node has another sweep file or code, or a worse priority."""
    if view.sweep != ray_worker.digest(sweep):
        raise ValueError(f"its sweep file {sweep} differs")
    other = {task.experiment for task in view.tasks if task.code != code_digest.code(task.experiment)}
    if other:
        raise ValueError(f"its code of {', '.join(sorted(other))} differs; check out the same commit")
    if view.extra_niceness:
        raise ValueError(
            f"its Ray workers have a niceness {view.extra_niceness} above the node's, so other work disturbs them; "
            "start the node with RAY_worker_niceness=0 in the environment"
        )


class Slot:
    """A slot on a node: a `share` of its GPUs and cores, or the whole node; it runs one kernel at a time."""

    def __init__(self, node: str, name: str, cpus: int, gpus: int, share: tuple[int, int] | None = None):
        self.node, self.name, self.whole, self.share = node, name, share is None, share or (0, 1)
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}

    def __call__(self, run: Run) -> Iterator[Piece]:
        """Execute a run on the node and yield its pieces. Raises SlotLost if the node is gone."""
        stream = _pieces.options(**self.needs, **_pinned(self.node)).remote(replace(run, share=self.share), self.whole)
        try:
            for reference in stream:
                yield Piece(*ray.get(reference))
        except exceptions.RayTaskError as error:  # raised by the task
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
        """Tell if the node is gone, not just its worker; the cluster may take a while to notice.

        A node is not gone if it answers, however late, or if the cluster still reports it as alive after `GONE_S`."""
        began = time.monotonic()
        with contextlib.suppress(exceptions.RpcError):  # then the cluster is gone
            while self.node in _alive_nodes():
                with contextlib.suppress(exceptions.RayError):
                    return not ray.get(_here.options(**_pinned(self.node)).remote(), timeout=ANSWER_S)
                if time.monotonic() - began > GONE_S:
                    return False
                time.sleep(1)
        return True


if ray:
    # the supervisor repeats failed runs, not Ray; a worker that planned ends, since it holds GPU memory
    _pieces = ray.remote(num_returns="streaming", max_retries=0, max_calls=0)(ray_worker.pieces)
    _view = ray.remote(num_cpus=0, max_retries=0, max_calls=1)(ray_worker.view)
    _here = ray.remote(num_cpus=0, max_retries=0)(ray_worker.here)
