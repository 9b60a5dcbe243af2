"""Run a sweep on the nodes of a Ray cluster, each of which is a box.

Ray is optional, and imported here alone. A worker runs what a slot of this machine runs, in a folder of its own; its
records come back through Ray, so the nodes need no shared folder. Whatever a lost worker had in hand, another measures.
"""

import contextlib
import functools
import logging
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from lib import execution, records
from lib.sweep import plan, run, sweep_file
from lib.sweep.plan import Job, Plan
from lib.sweep.run import Message, Place
from lib.sweep.shard import Shard
from lib.sweep.supervise import Box, SlotLost, clear

# set before Ray is imported: send no usage statistics, and start no cluster when one is lost
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    ray = None

ANSWER_S = 10  # for the head to answer
PLAN_S = 180  # for a node to plan: it imports torch and builds each case
LOOK_S = 3  # between looks for nodes that come and go


def boxes(address: str, sweep: str, rounds: int | None, shard: Shard) -> tuple[Plan, list[Box]]:
    """Return the plan that the first node makes, and a list of boxes that changes as nodes come and go.

    Raises ValueError without Ray, a cluster at `address` (host:port), or a node that can take part."""
    if ray is None:
        raise ValueError("address: Ray is not installed here; `make .venv/cluster` installs it")
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"address: got {address!r}, expected host:port")
    try:
        # Ray itself would try for minutes
        socket.create_connection((host, int(port)), ANSWER_S).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
    except (OSError, RuntimeError, ValueError, exceptions.RayError) as error:
        raise ValueError(f"address: no Ray cluster answers at {address}: {_first_line(error)}") from None
    # else the last output of each lost node would appear beside the bar
    ray._private.worker._worker_logs_enabled = False
    nodes = Nodes(sweep, rounds, shard)
    nodes.update()
    if nodes.plan is None:
        raise ValueError(f"address: no node of the cluster at {address} can take part")
    threading.Thread(target=nodes.follow, daemon=True).start()
    return nodes.plan, nodes.boxes


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class Nodes:
    """Keep the boxes of the cluster's nodes up to date."""

    def __init__(self, sweep: str, rounds: int | None, shard: Shard):
        self.arguments = (sweep, rounds, shard)
        self.plan = None
        self.boxes = []
        self.box_of_node = {}  # None for a node that cannot take part

    def update(self) -> None:
        """Add the boxes of new nodes, and remove those of lost ones."""
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}
        for node_id in self.box_of_node.keys() - alive.keys():
            box = self.box_of_node.pop(node_id)
            if box in self.boxes:
                self.boxes.remove(box)
        for node_id in alive.keys() - self.box_of_node.keys():
            cpus = int(alive[node_id]["Resources"]["CPU"])
            gpus = int(alive[node_id]["Resources"].get("GPU", 0))
            self.box_of_node[node_id] = None
            try:
                task = _on(node_id, plan_here)
                planned, codes = ray.get(task.remote(*self.arguments, max(1, gpus)), timeout=PLAN_S)
                self._refuse_other_node(planned, codes)
            except (exceptions.RayError, ValueError) as error:
                print(f"a node is left out: {_first_line(getattr(error, 'cause', None) or error)}", flush=True)
                continue
            if self.plan is None:
                self.plan = planned
            parts = []
            for number in range(gpus):
                parts.append(_slot(node_id, number, gpus, cpus // gpus, 1))
            box = Box(_slot(node_id, 0, 1, cpus, gpus), parts)
            self.box_of_node[node_id] = box
            self.boxes.append(box)

    def _refuse_other_node(self, planned: Plan, codes: dict[str, str]) -> None:
        """Raise ValueError for a node of other code or of other hardware than the first."""
        if codes != _codes(planned):
            raise ValueError("its code differs; check out the same commit")
        if self.plan and planned.jobs != self.plan.jobs:
            raise ValueError("its hardware or sweep file differs from the first node's; give it a sweep of its own")

    def follow(self) -> None:
        """Update the nodes again and again; runs in a thread that ends with the process."""
        while True:
            time.sleep(LOOK_S)
            # the slots report their own errors
            with contextlib.suppress(exceptions.RayError, OSError):
                self.update()


def _on(node_id: str, function, **resources):
    """Return a function as a task of Ray that runs on this node alone, in a new process, and is never repeated."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options = {"num_cpus": 0, "max_retries": 0, "max_calls": 1, **resources}
    return ray.remote(**options)(function).options(scheduling_strategy=strategy)


def _slot(node_id: str, number: int, slots: int, cpus: int, gpus: int):
    """Return the slot that measures on a node, with so many of its processors and GPUs."""
    task = _on(node_id, measured_here, num_cpus=cpus, num_gpus=gpus, num_returns="streaming")
    return functools.partial(_measured_there, task, number, slots)


def _measured_there(task, number: int, slots: int, job: Job, deadline: float | None) -> Iterator[Message]:
    """Measure a job on a node. Raises SlotLost if its worker is gone, records.CannotWrite if its disk is full."""
    stream = task.remote(job, deadline, number, slots)
    try:
        for reference in stream:
            yield Message(*ray.get(reference))
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, records.CannotWrite):
            raise records.CannotWrite(str(error.cause)) from None
        raise
    except exceptions.RayError as error:
        # the cluster takes a while to notice that a node is gone
        time.sleep(1)
        raise SlotLost(_first_line(error)) from None
    finally:
        ray.cancel(stream, force=True)


def _codes(planned: Plan) -> dict[str, str]:
    """Return the digest of the code here that measures each experiment."""
    return {job.experiment: records.digest(job.experiment) for job in planned.jobs}


def plan_here(sweep: str, rounds: int | None, shard: Shard, slots: int) -> tuple[Plan, dict[str, str]]:
    """Plan the sweep for this node, and tell which code would measure it."""
    _undo_ray()
    planned = plan.make(sweep_file.load(sweep, rounds), shard, slots)
    return planned, _codes(planned)


def measured_here(job: Job, deadline: float | None, number: int, slots: int) -> Iterator[tuple[str, str]]:
    """Measure a job on this node, in a folder that goes with it."""
    _undo_ray()
    scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=execution.socket_folder()))
    os.environ["RESULTS"] = str(scratch / "results")
    try:
        for message in run.measured(job, deadline, Place(scratch, number, slots)):
            yield tuple(message)
    finally:
        clear(scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _undo_ray() -> None:
    """Undo what Ray sets for a task and kernels would inherit: the number of threads, and the lower priority."""
    node = psutil.Process(int(os.environ["RAY_RAYLET_PID"]))
    threads = node.environ().get("OMP_NUM_THREADS")
    os.environ.pop("OMP_NUM_THREADS", None)
    if threads:
        os.environ["OMP_NUM_THREADS"] = threads
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # a higher priority may need rights
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, node.nice())
