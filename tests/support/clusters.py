"""Runs nodes of a Ray cluster as processes of this machine, in each of which the cheap experiment is at home.

Knows nothing of what the cluster then does.
"""

import contextlib
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

import faults

READY, STARTED = "To terminate the Ray runtime", "--address='([0-9.]+:[0-9]+)'"
ARRIVE = """
import os, pathlib
if "CHEAP" in os.environ:  # in every process of a node: the cheap experiment, and the GPU of this node
    import cheap
    from lib import notebooks
    from lib.sweep import ray_worker
    cheap.GPU = os.environ["CHEAP_GPU"]
    notebooks.NOTEBOOKS = pathlib.Path(os.environ["CHEAP"])
    notebooks.SWEEPS = notebooks.NOTEBOOKS / "sweeps"
    ray_worker.view = cheap.first_settle_in(ray_worker.view)
"""


class Node:
    """A node of Ray in processes of its own, which runs once it is made."""

    def __init__(self, sweep: faults.Sweep, gpu: str, *options: str):
        own = {"CHEAP_GPU": gpu, "CHEAP_GPUS": "1", "RAY_worker_niceness": "15"}
        own["RAY_health_check_period_ms"] = "1000"  # a cluster is quick to notice that a node is gone
        own["PYTHONPATH"] = f"{sweep.folder / 'site'}:{sweep.variables['PYTHONPATH']}"
        variables = os.environ | sweep.variables | own
        variables.pop("OMP_NUM_THREADS")
        ray = Path(sys.executable).with_name("ray")
        command = [ray, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", *options]
        self.log = sweep.folder / f"{gpu}-{time.monotonic_ns()}"
        for _ in range(3):  # on a busy machine Ray gives up on a node that starts too slowly
            with self.log.open("w") as log:
                self.process = subprocess.Popen(
                    command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True, cwd=faults.ROOT,
                )  # fmt: skip
            with contextlib.suppress(AssertionError):
                faults.until(lambda: READY in self.log.read_text() or not self.runs(), 40, "the start of a node")
            if self.runs() and READY in self.log.read_text():
                return
            self.kill()
        raise AssertionError(self.log.read_text()[-500:])

    def runs(self) -> bool:
        """Whether it has not been killed."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill Ray's processes of the node at once, as when its machine loses power; kernels and guards, in sessions of
        their own, are left to find out."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()
        self.process.wait(10)


class Cluster:
    """A head that has no processors unless it is given some, and nodes with a pretended GPU each."""

    def __init__(self, sweep: faults.Sweep, gpus: int = 0):
        self.sweep, token = sweep, secrets.token_hex(32)
        sweep.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}  # nobody else on the network is let in
        (sweep.folder / "site").mkdir()
        (sweep.folder / "site" / "sitecustomize.py").write_text(ARRIVE)
        options = ["--head", "--port=0", f"--num-cpus={gpus}", f"--num-gpus={gpus}", "--include-dashboard=false"]
        head = Node(sweep, "pretended-gpu", *options, f"--temp-dir={sweep.folder}/ray")
        self.address = re.search(STARTED, head.log.read_text())[1]
        self.nodes = [head]

    def join(self, gpu: str = "pretended-gpu") -> Node:
        """A further node."""
        options = [f"--address={self.address}", "--num-cpus=1", "--num-gpus=1"]
        self.nodes.append(Node(self.sweep, gpu, *options))
        return self.nodes[-1]

    def stop(self) -> None:
        """End it, and what it has left."""
        for node in self.nodes:
            node.kill()
        self.sweep.clear()


@contextlib.contextmanager
def cluster_for(text: str, gpus: int = 0) -> Iterator[Cluster]:
    """The cluster for a sweep with this text, for the block."""
    # not a folder of the tests, whose name is too long for that of a socket
    sweep = faults.Sweep(Path(tempfile.mkdtemp(prefix="s-", dir="/tmp")), text)
    found = None
    try:
        found = Cluster(sweep, gpus)
        yield found
    finally:
        if found:
            found.stop()
        sweep.remove()
