"""A sweep on a cluster loses nothing when a worker, a node or the supervisor dies; all of them are processes here."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import faults
import psutil
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")

from lib import cluster, digest, worker  # noqa: E402
from lib import sweep as command  # noqa: E402
from lib.share import WHOLE  # noqa: E402

pytestmark = pytest.mark.xdist_group("cluster")
STARTED = "--address='([0-9.]+:[0-9]+)'"
SWEEP = "cheap: [{number: [1, 2, 3], pause_ms: 1000, device: cuda}, {number: [4, 5, 6], pause_ms: 1000, device: cuda}]"
KERNELS, RECORDS = 2, dict.fromkeys(range(1, 7), "ok")
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
        faults.until(lambda: "To terminate the Ray runtime" in self.log.read_text(), 60, "the start of a node")
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
        head = Node(
            sweep, "none", *options, "--object-store-memory=80000000", f"--temp-dir={sweep.folder}/ray"
        ).started()
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
        for _ in range(2):  # one after the other: Ray gives up on a node that starts too slowly
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
        begun, saved = (Counter(entry["pid"] for entry in sweep.journal(event)) for event in ("begins", "saved"))
        return next((pid for pid in begun - saved if psutil.pid_exists(pid)), None)

    return psutil.Process(faults.until(busy, 60, "a case in hand"))


def worker_of(one):
    """The process of Ray's that has started a kernel."""
    return one.parent()


def test_nodes_of_the_same_hardware_share_a_sweep_and_a_kernel_feels_nothing_of_the_engine(running, sweep):
    process = sweep.start("--address", running.address)
    one = kernel(sweep)
    assert one.nice() == 0
    assert "OMP_NUM_THREADS" not in one.environ()
    assert one.environ()["CUDA_VISIBLE_DEVICES"] == "0"
    assert int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{one.pid}/status").read_text())[1], 16) == 0
    done = sweep.end(process)
    whole(sweep, done)
    assert len({entry["pid"] for entry in sweep.journal("begins")}) == KERNELS
    assert len(sweep.journal("saved")) == len(RECORDS)


def whole(sweep, done):
    """The records are those of an undisturbed sweep, and nothing else is left."""
    assert (done.code, sweep.statuses()) == (0, RECORDS), done.err
    assert {path.name for path in sweep.results.iterdir() if path.is_dir()} == {"pretended-gpu"}
    assert not sweep.kernels()


def test_workers_and_nodes_that_are_killed_cost_the_case_in_hand_alone(running, sweep):
    process = sweep.start("--address", running.address)
    for _ in range(faults.count(1, 10)):
        one = kernel(sweep)
        worker_of(one).kill()
        one.wait(5)
    one = kernel(sweep)
    raylet = worker_of(one).parent()
    next(node for node in running.nodes if node.process.pid == os.getsid(raylet.pid)).kill()
    one.wait(5)
    running.join().started()  # which takes its place
    whole(sweep, sweep.end(process))


def test_a_supervisor_that_ends_leaves_no_kernel_and_the_next_goes_on(running, sweep):
    before = {}
    for name, code in [("SIGTERM", 143), ("SIGKILL", 137)] * faults.count(1, 5):
        process = sweep.start("--address", running.address)
        one = kernel(sweep)
        faults.hit(process, name)
        one.wait(5)
        assert sweep.end(process, 5).code == code
        assert not sweep.kernels()
        assert {stem: sweep.records()[stem] for stem in before} == before
        before = sweep.records()
    whole(sweep, sweep.run("--address", running.address))


def test_a_node_of_other_hardware_does_all_of_the_sweep_under_its_own_name(running, sweep):
    node = running.join("other-gpu").started()
    done = sweep.run("--address", running.address)
    node.kill()
    records = [json.loads(file.read_text()) for file in sweep.results.glob("*/*/*.json")]
    found = Counter((record["environment"]["machine"], record["case"]["number"]) for record in records)
    assert found == Counter((gpu, number) for gpu in ("pretended-gpu", "other-gpu") for number in RECORDS), done.err


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "must be HOST:PORT"),
        ("127.0.0.1:x", "must be HOST:PORT"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        ("127.0.0.1:9", "no Ray cluster answers"),
    ],
)
def test_an_address_without_a_cluster_is_bad_input_in_one_line(own_results, capsys, address, said):
    assert command.main(["smoke", "--address", address]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(cluster, "ray", None)
    with pytest.raises(ValueError, match=r"pip install -e \.\[cluster\]"), cluster.boxes("127.0.0.1:1", "smoke", WHOLE):
        pass


def view(**changed):
    task = SimpleNamespace(experiment="step", code=digest.code("step"))
    return worker.View(**({"tasks": [task], "sweep": worker.digest("smoke"), "nicer_by": 0} | changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sweep": "0"}, "its sweep smoke is another one"),
        ({"tasks": [SimpleNamespace(experiment="step", code="0")]}, "its code of step is another one"),
        ({"nicer_by": 15}, "RAY_worker_niceness=0"),
    ],
)
def test_a_node_that_would_measure_something_else_is_refused(changed, said):
    cluster.check(view(), "smoke")
    with pytest.raises(ValueError, match=said):
        cluster.check(view(**changed), "smoke")
