"""Run a sweep on the nodes of a Ray cluster, each of which is a box.

Ray is optional, and imported here alone. A worker runs what a slot of this machine runs, in a folder of its own; its
records come back through Ray, so the nodes need no shared folder. Whatever a lost worker had in hand, another measures.
"""

import functools
import logging
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from lib import execution, records, watched
from lib.instruments import environment
from lib.sweep import kernel, run
from lib.sweep.kernel import Place
from lib.sweep.plan import Job
from lib.sweep.run import Message
from lib.sweep.supervise import Box

# set before Ray is imported: send no usage statistics, and start no cluster when one is lost
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    ray = None

ANSWER_S = 10  # for the head to answer
READY = Message("ready", "")  # the first message of a node that takes part

_refused = set()  # ids of nodes that cannot take part


def connect(address: str) -> Callable[[], list[Box]]:
    """Return a function that lists the boxes of a cluster at `address` (host:port).

    Raises ValueError without Ray or such a cluster."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address: got {address!r}, expected host:port")
    if ray is None:
        raise ValueError("address: Ray is not installed here; `make .venv/cluster` installs it")
    try:
        # Ray itself would try for minutes
        socket.create_connection((host, int(port)), ANSWER_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, OverflowError, RuntimeError, ValueError, exceptions.RayError) as error:
        raise ValueError(f"address: no Ray cluster answers at {address}: {_first_line(error)}") from None
    # else the last output of each lost node would appear beside the bar
    ray._private.worker._worker_logs_enabled = False
    return _boxes


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _boxes() -> list[Box]:
    """List the nodes that take part now. Raises ValueError if all are refused."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    fit = [node for node in nodes if node["NodeID"] not in _refused]
    if nodes and not fit:
        raise ValueError("address: no node of the cluster can take part")
    return [_box(node["NodeID"], int(node["Resources"]["CPU"]), int(node["Resources"].get("GPU", 0))) for node in fit]


@functools.cache
def _box(node_id: str, cpus: int, gpus: int) -> Box:
    """Return a node as a box, always the same one."""
    parts = [functools.partial(_measure_there, node_id, gpus, cpus // gpus, 1) for _ in range(gpus)]
    return Box(functools.partial(_measure_there, node_id, 1, cpus, gpus), parts)


def _measure_there(node_id: str, slots: int, cpus: int, gpus: int, job: Job, deadline: float) -> Iterator[Message]:
    """Measure a job at one of a node's `slots`, which has `cpus` and `gpus`.

    A message tells if its worker is lost or refuses. Raises OSError if a disk is full."""
    # in a new process, never repeated
    task = ray.remote(
        num_cpus=cpus, num_gpus=gpus, num_returns="streaming", max_retries=0, max_calls=1,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    )(_measure_here)  # fmt: skip
    stream = task.remote(job, watched.digest(job.experiment), deadline - time.monotonic(), slots)
    takes_part = False
    try:
        for reference in stream:
            message = ray.get(reference)
            if message == READY:
                takes_part = True
                continue
            if message.kind == "record":
                records.save(message.content)
            yield message
    except exceptions.RayTaskError as error:
        if takes_part:
            raise (error.cause or error) from None
        if node_id not in _refused:
            _refused.add(node_id)
            print(f"a node is left out: {_first_line(error.cause or error)}", flush=True)
        yield Message("lost", "its node is left out")
    except exceptions.RayError as error:
        # the cluster takes a while to notice that a node is gone
        time.sleep(1)
        yield Message("lost", _first_line(error))
    finally:
        ray.cancel(stream, force=True)


def _measure_here(job: Job, code_digest: str, budget_s: float, slots: int) -> Iterator[Message]:
    """Measure a job on this node, in a temporary folder that is removed at the end.

    The first message is READY. Raises ValueError before it, where hardware or code differ."""
    # the clocks of two machines differ
    deadline = time.monotonic() + budget_s
    if environment.machine(job.device) != job.machine or watched.digest(job.experiment) != code_digest:
        raise ValueError("its hardware or code differs from that of the sweep")
    yield READY
    # kernels inherit the number of threads: the one set on the node, if any, and not Ray's
    node_variables = psutil.Process(int(os.environ["RAY_RAYLET_PID"])).environ()
    os.environ.pop("OMP_NUM_THREADS", None)
    if "OMP_NUM_THREADS" in node_variables:
        os.environ["OMP_NUM_THREADS"] = node_variables["OMP_NUM_THREADS"]
    # they would also inherit signals that Ray blocks
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=execution.socket_folder()))
    os.environ["RESULTS"] = str(scratch / "results")
    try:
        yield from run.measure(job, deadline, Place(scratch, slots))
    finally:
        kernel.clear(scratch)
