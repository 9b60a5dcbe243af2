"""A sweep on a cluster loses nothing when a worker, a node or the supervisor dies; all of them are processes here."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from lib import cluster, worker  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")
STARTED = "--address='([0-9.]+:[0-9]+)'"
SWEEP = "cheap: {number: [1, 2, 3, 4, 5, 6], fresh: number, pause_ms: 500, device: cuda}\ntimeout: 60\nrounds: 1\n"
RECORDS = {1, 2, 3, 4, 5, 6}
ARRIVE = """
import os, pathlib, sys
if "CHEAP" in os.environ:  # in every process of a node: the cheap experiment, and the GPU of this node
    import cheap
    from lib import notebook
    cheap.GPU = os.environ["CHEAP_GPU"]
    notebook.NOTEBOOKS = pathlib.Path(os.environ["CHEAP"])
    sys.meta_path.insert(0, cheap._Late())
"""


class Node:
    """A node of Ray in processes of its own."""

    def __init__(self, sweep: faults.Sweep, gpu: str, *options: str):
        own = {"CHEAP_GPU": gpu, "CHEAP_GPUS": "1", "RAY_worker_niceness": "15"}
        own["PYTHONPATH"] = f"{sweep.folder / 'site'}:{sweep.variables['PYTHONPATH']}"
        variables = os.environ | sweep.variables | own
        variables.pop("OMP_NUM_THREADS")
        self.log = sweep.folder / f"{gpu}-{time.monotonic_ns()}"
        command = [Path(sys.executable).with_name("ray"), "start", "--block", "--disable-usage-stats", *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                cwd=faults.ROOT,
            )  # fmt: skip

    def started(self) -> "Node":
        """This node, once it runs."""
        faults.until(lambda: "Ray runtime started" in self.log.read_text(), 60, "the start of a node")
        return self

    def kill(self) -> None:
        """Kill Ray's processes of the node at once, as when its machine loses power; kernels and guards, in sessions of
        their own, are left to find out."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()
        self.process.wait(10)


class Cluster:
    """A head that has no processors, and nodes with a pretended GPU each."""

    def __init__(self, sweep: faults.Sweep):
        self.sweep = sweep
        (sweep.folder / "site").mkdir()
        (sweep.folder / "site" / "sitecustomize.py").write_text(ARRIVE)
        options = ["--head", "--port=0", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
        head = Node(sweep, "none", *options, "--object-store-memory=80000000", f"--temp-dir={sweep.folder}/ray").started()
        self.address = re.search(STARTED, head.log.read_text())[1]
        self.nodes = [head]

    def join(self, gpu: str = "pretended-gpu") -> Node:
        """A further node, which may still be starting."""
        options = [f"--address={self.address}", "--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000"]
        self.nodes.append(Node(self.sweep, gpu, *options))
        return self.nodes[-1]

    def stop(self) -> None:
        """End it, and what it has left."""
        for node in self.nodes:
            node.kill()
        self.sweep.clear()


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A cluster of two nodes with the same hardware."""
    sweep = faults.Sweep(tmp_path_factory.mktemp("cluster"), SWEEP)
    made = Cluster(sweep)
    try:
        for _ in range(2):
            made.join().started()
        yield made
    finally:
        made.stop()


@pytest.fixture
def sweep(running):
    """Its sweep, with no record yet."""
    yield running.sweep
    shutil.rmtree(running.sweep.folder / "r", ignore_errors=True)
    running.sweep.journal_file.unlink(missing_ok=True)


def kernel(sweep):
    """A kernel in the middle of a case."""
    def busy():
        begun = {entry["pid"] for entry in sweep.journal("begins")} - {entry["pid"] for entry in sweep.journal("saved")}
        return next((process for process in sweep.kernels() if process.pid in begun), None)

    return faults.until(busy, 60, "a case in hand")


def test_nodes_of_the_same_hardware_share_a_sweep_and_a_kernel_feels_nothing_of_the_engine(running, sweep):
    process = sweep.start("--address", running.address)
    one = kernel(sweep)
    assert "OMP_NUM_THREADS" not in one.environ()
    assert one.environ()["CUDA_VISIBLE_DEVICES"] == "0"
    assert one.nice() == 0
    assert int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{one.pid}/status").read_text())[1], 16) == 0
    done = sweep.end(process)
    assert (done.code, sweep.statuses()) == (0, dict.fromkeys(RECORDS, "ok")), done.err
    assert len(sweep.journal("saved")) == len(RECORDS)
    assert not list(sweep.results.glob("[!p]*"))
