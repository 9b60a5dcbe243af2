"""Run a sweep on the nodes of a Ray cluster, each of which is a box.

Ray is optional, and imported here alone. A worker runs what a slot of this machine runs, in a folder of its own; its
records come back through Ray, so the nodes need no shared folder. Whatever a lost worker had in hand, another measures.
"""

import contextlib
import functools
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from lib import execution, records
from lib.instruments import environment
from lib.sweep import run
from lib.sweep.plan import Job
from lib.sweep.run import Message, Place
from lib.sweep.supervise import Box, SlotLost, clear, share_of_cores

# set before Ray is imported: send no usage statistics, and start no cluster when one is lost
os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_AUTO_CONNECT": "0"}
try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    ray = None

ANSWER_S = 10  # for the head to answer
IMPORT_S = 180  # for a node to import torch
LOOK_S = 3  # between looks for nodes that come and go


def boxes(address: str, jobs: Sequence[Job]) -> list[Box]:
    """Return boxes for these jobs, in a list that changes as nodes come and go.

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
    box_of_node = {}
    present = []
    _update(box_of_node, present, jobs)
    if not present:
        raise ValueError(f"address: no node of the cluster at {address} can take part")
    threading.Thread(target=_follow, args=(box_of_node, present, jobs), daemon=True).start()
    return present


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _follow(box_of_node: dict[str, Box | None], present: list[Box], jobs: Sequence[Job]) -> None:
    """Update the boxes again and again; runs in a thread that ends with the process."""
    while True:
        time.sleep(LOOK_S)
        # the slots report their own errors
        with contextlib.suppress(exceptions.RayError, OSError):
            _update(box_of_node, present, jobs)


def _update(box_of_node: dict[str, Box | None], present: list[Box], jobs: Sequence[Job]) -> None:
    """Add boxes of new nodes, None for those that cannot take part; remove lost ones."""
    alive = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            alive[node["NodeID"]] = node["Resources"]
    for node_id in box_of_node.keys() - alive.keys():
        box = box_of_node.pop(node_id)
        if box:
            present.remove(box)
    experiments = {job.experiment for job in jobs}
    devices = {job.device for job in jobs}
    for node_id in alive.keys() - box_of_node.keys():
        box_of_node[node_id] = None
        cpus = int(alive[node_id]["CPU"])
        gpus = int(alive[node_id].get("GPU", 0))
        try:
            # Ray hides the GPUs from a task that asks for none
            task = _on(node_id, machine_and_code, num_gpus=gpus)
            told = ray.get(task.remote(experiments, devices), timeout=IMPORT_S)
        except exceptions.RayError as error:
            print(f"a node is left out: {_first_line(getattr(error, 'cause', None) or error)}", flush=True)
            continue
        if told != machine_and_code(experiments, devices):
            print("a node is left out: its hardware or code differs from this machine's", flush=True)
            continue
        parts = [_slot(node_id, gpus, cpus // gpus, 1) for _ in range(gpus)]
        box_of_node[node_id] = Box(_slot(node_id, 1, cpus, gpus), parts)
        present.append(box_of_node[node_id])


def machine_and_code(experiments: set[str], devices: set[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return this machine's slugs by device, and each experiment's code digest."""
    machines = {device: environment.machine(device) for device in devices}
    return machines, {experiment: records.digest(experiment) for experiment in experiments}


def _on(node_id: str, function, **resources):
    """Turn a function into a task of this node, in a new process, never repeated."""
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    options = {"num_cpus": 0, "max_retries": 0, "max_calls": 1, **resources}
    return ray.remote(**options)(function).options(scheduling_strategy=strategy)


def _slot(node_id: str, slots: int, cpus: int, gpus: int):
    """Return one of a node's `slots` that measure, with its processors and GPUs."""
    task = _on(node_id, measured_here, num_cpus=cpus, num_gpus=gpus, num_returns="streaming")
    return functools.partial(_measured_there, task, slots)


def _measured_there(task, slots: int, job: Job, deadline: float | None) -> Iterator[Message]:
    """Measure a job on a node.

    Raises SlotLost if its worker is gone, records.CannotWrite if its disk is full."""
    stream = task.remote(job, deadline, slots)
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


def measured_here(job: Job, deadline: float | None, slots: int) -> Iterator[tuple[str, str]]:
    """Measure a job on this node, in a folder that goes with it."""
    _undo_ray()
    scratch = Path(tempfile.mkdtemp(prefix="sweep-", dir=execution.socket_folder()))
    os.environ["RESULTS"] = str(scratch / "results")
    try:
        for message in run.measured(job, deadline, Place(scratch, slots, share_of_cores(slots))):
            # plain, so that no class has to be loaded to read it
            yield tuple(message)
    finally:
        clear(scratch)


def _undo_ray() -> None:
    """Undo Ray's number of threads and lower priority, which kernels would inherit."""
    node = psutil.Process(int(os.environ["RAY_RAYLET_PID"]))
    threads = node.environ().get("OMP_NUM_THREADS")
    os.environ.pop("OMP_NUM_THREADS", None)
    if threads:
        os.environ["OMP_NUM_THREADS"] = threads
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # a higher priority may need rights
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, node.nice())
