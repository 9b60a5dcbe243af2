"""A sweep on a cluster loses nothing when a worker, a node or the supervisor dies; all of them are processes here."""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import faults
import psutil
import pytest

from lib import cluster, digest, worker
from lib import sweep as command
from lib.share import WHOLE

with_ray = pytest.mark.skipif(cluster.ray is None, reason="Ray cannot be imported")
STARTED = "--address='([0-9.]+:[0-9]+)'"
CASES = faults.count(3, 12)  # of each of two kernels; one more than a test has a kernel killed in
KERNELS, RECORDS = 2, dict.fromkeys(range(1, 2 * CASES + 1), "ok")
BLOCK = "{{number: {}, pause_ms: 800, device: cuda}}"
SWEEP = f"cheap: [{BLOCK.format([*RECORDS][:CASES])}, {BLOCK.format([*RECORDS][CASES:])}]"
ARRIVE = """
import os, pathlib, sys
if "CHEAP" in os.environ:  # in every process of a node: the cheap experiment, and the GPU of this node
    import cheap
    from lib import notebook
    cheap.GPU = os.environ["CHEAP_GPU"]
    notebook.NOTEBOOKS = pathlib.Path(os.environ["CHEAP"])
    notebook.SWEEPS = notebook.NOTEBOOKS / "sweeps"
    sys.meta_path.insert(0, cheap._Late())
"""


class Node:
    """A node of Ray in processes of its own, which runs once it is made."""

    def __init__(self, sweep: faults.Sweep, gpu: str, *options: str):
        own = {"CHEAP_GPU": gpu, "CHEAP_GPUS": "1", "RAY_worker_niceness": "15"}
        own["PYTHONPATH"] = f"{sweep.folder / 'site'}:{sweep.variables['PYTHONPATH']}"
        self.variables = os.environ | sweep.variables | own
        self.variables.pop("OMP_NUM_THREADS")
        ray = Path(sys.executable).with_name("ray")
        self.command = [ray, "start", "--block", "--disable-usage-stats", "--object-store-memory=80000000", *options]
        self.log = sweep.folder / f"{gpu}-{time.monotonic_ns()}"
        for _ in range(3):  # on a busy machine Ray gives up on a node that starts too slowly
            self.start()
            with contextlib.suppress(AssertionError):
                faults.until(self.settled, 40, "the start of a node")
            if self.runs() and self.settled():
                return
            self.kill()
        raise AssertionError(self.log.read_text()[-500:])

    def runs(self) -> bool:
        """Whether it has not been killed."""
        return self.process.poll() is None

    def settled(self) -> bool:
        """Whether it runs, or has given up."""
        return "To terminate the Ray runtime" in self.log.read_text() or not self.runs()

    def start(self) -> None:
        """Start its processes."""
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                self.command, env=self.variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd=faults.ROOT,
            )  # fmt: skip

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
        self.sweep, token = sweep, secrets.token_hex(32)
        sweep.variables |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}  # nobody else on the network is let in
        (sweep.folder / "site").mkdir()
        (sweep.folder / "site" / "sitecustomize.py").write_text(ARRIVE)
        options = ["--head", "--port=0", "--num-cpus=0", "--num-gpus=0", "--include-dashboard=false"]
        head = Node(sweep, "none", *options, f"--temp-dir={sweep.folder}/ray")
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


@pytest.fixture(scope="module")
def running():
    """A cluster of two nodes with the same hardware."""
    # not a folder of the tests, whose name is too long for that of a socket
    sweep = faults.Sweep(Path(tempfile.mkdtemp(prefix="s-", dir="/tmp")), SWEEP)
    made = Cluster(sweep)
    try:
        for _ in range(2):
            made.join()
        yield made
    finally:
        made.stop()
        sweep.remove()


@pytest.fixture
def sweep(running):
    """Its sweep, with no record yet."""
    yield running.sweep
    shutil.rmtree(running.sweep.folder / "r", ignore_errors=True)
    running.sweep.journal_file.unlink(missing_ok=True)


def in_hand(sweep, of=None, but=()):
    """A kernel in the middle of a case, when its earlier ones are in the store: of a node, if one is given, and of none
    of these cases. With its case."""

    def found():
        if not {entry["number"] for entry in sweep.journal("saved")} <= sweep.statuses().keys():
            return None
        last = {entry["pid"]: entry for entry in sweep.journal() if entry["event"] in ("begins", "saved")}
        for pid, entry in last.items():
            if entry["event"] == "begins" and entry["number"] not in but and psutil.pid_exists(pid):
                one = psutil.Process(pid)
                if of is None or session(one) == of.process.pid:
                    return one, entry["number"]
        return None

    return faults.until(found, 60, "a case in hand")


def session(one):
    """The session of the worker of a kernel, which is that of its node."""
    with contextlib.suppress(psutil.Error, OSError, AttributeError):
        return os.getsid(one.parent().pid)


@with_ray
def test_nodes_of_the_same_hardware_share_a_sweep_and_a_kernel_feels_nothing_of_the_engine(running, sweep):
    process = sweep.start("--address", running.address)
    one, _ = in_hand(sweep)
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


@with_ray
@pytest.mark.faults(0, "kill -9 of workers and of a node of a cluster")
def test_workers_and_nodes_that_are_killed_cost_the_case_in_hand_alone_and_a_new_node_takes_part(running, sweep, tally):
    process = sweep.start("--address", running.address)
    other, number = in_hand(sweep)
    other.suspend()  # so that there is something left to do
    node = next(node for node in running.nodes[1:] if node.runs() and node.process.pid != session(other))
    hit = {number}
    for _ in range(CASES - 2):
        one, number = in_hand(sweep, node, but=hit)
        with tally.injection():
            one.parent().kill()
            one.wait(5)
        hit.add(number)
    one, _ = in_hand(sweep, node, but=hit)  # a case that is hit twice is given up
    with tally.injection():
        node.kill()
        one.wait(5)
    in_hand(sweep, running.join())
    other.resume()
    whole(sweep, sweep.end(process))


@with_ray
@pytest.mark.faults(0, "SIGTERM and kill -9 of a cluster's supervisor")
def test_a_supervisor_that_ends_leaves_no_kernel_and_the_next_goes_on(running, sweep, tally):
    before = {}
    for name, code in [("SIGTERM", 143), ("SIGKILL", 137)] * faults.count(1, 5):
        process = sweep.start("--address", running.address)
        one, _ = in_hand(sweep)
        with tally.injection():
            faults.hit(process, name)
            one.wait(5)
            assert sweep.end(process, 5).code == code
            assert not sweep.kernels()
            assert {stem: sweep.records()[stem] for stem in before} == before
        before = sweep.records()
    whole(sweep, sweep.run("--address", running.address))


@with_ray
def test_a_node_of_other_hardware_does_all_of_the_sweep_under_its_own_name(running, sweep):
    node = running.join("other-gpu")
    done = sweep.run("--address", running.address)
    node.kill()
    records = [json.loads(file.read_text()) for file in sweep.results.glob("*/*/*.json")]
    found = Counter((record["environment"]["machine"], record["case"]["number"]) for record in records)
    assert found == Counter((gpu, number) for gpu in ("pretended-gpu", "other-gpu") for number in RECORDS), done.err


@with_ray
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
    cluster.refuse_other(view(), "smoke")
    with pytest.raises(ValueError, match=said):
        cluster.refuse_other(view(**changed), "smoke")
