"""A sweep on a Ray cluster: records come back through Ray, and a lost worker or node loses nothing."""

import contextlib
import signal

import psutil
import pytest

import cheap

pytest.importorskip("ray")

# in every process of a node: the cheap experiment in the place of the project's
ARRIVE = """
import os, pathlib
if "CHEAP" in os.environ and "RAY_RAYLET_PID" in os.environ:
    import cheap
    cheap.settle_when_imported()
"""
NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


@pytest.fixture
def start_cluster(cheap_sweep, monkeypatch):
    """Start a head without processors, as a process of this machine; nodes can join it."""
    from ray.cluster_utils import Cluster

    started = []

    def start(sweep):
        (sweep.folder / "site").mkdir()
        (sweep.folder / "site" / "sitecustomize.py").write_text(ARRIVE)
        paths = f"{sweep.folder / 'site'}:{sweep.variables['PYTHONPATH']}"
        for name, value in (sweep.variables | {"PYTHONPATH": paths, "RAY_worker_niceness": "0"}).items():
            monkeypatch.setenv(name, value)
        started.append(Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}))
        return started[-1]

    yield start
    for cluster in started:
        cluster.shutdown()


def workers(sweep):
    """The workers of Ray that have a kernel of this sweep."""
    parents = []
    for kernel in sweep.kernels():
        with contextlib.suppress(psutil.Error):
            parents.append(kernel.parent())
    return [parent for parent in parents if parent]


def test_lost_workers_and_nodes_lose_nothing(cheap_sweep, start_cluster):
    sweep = cheap_sweep("rounds: 2\ncheap: [{number: [1, 2, 3, 4, 5, 6], pause_ms: 400}, {number: 7, behaviour: oom}]")
    cluster = start_cluster(sweep)
    first_node = cluster.add_node(**NODE)
    process = sweep.start("--address", cluster.address)
    try:
        cheap.until(lambda: len(sweep.statuses()) > 1, "the first records", 120)
        (worker,) = cheap.until(lambda: workers(sweep), "a worker")
        worker.send_signal(signal.SIGKILL)
        before = len(sweep.statuses())
        cheap.until(lambda: len(sweep.statuses()) > before + 1, "records after the loss of a worker", 120)
        cluster.add_node(**NODE)
        cluster.remove_node(first_node, allow_graceful=False)
        printed, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, printed
    expected = {(number, round): "ok" for number in range(1, 7) for round in (1, 2)}
    statuses = sweep.statuses()
    # two nodes may have both rounds in hand, so that the second does not know yet how the first ended
    without_memory = {key: statuses.pop(key) for key in [(7, 1), (7, 2)] if key in statuses}
    assert statuses == expected
    assert set(without_memory.values()) == {"oom"}
    assert printed.splitlines()[-1] == f"12 ok, {len(without_memory)} oom, 0 left"


def test_without_a_cluster_it_is_refused_in_one_line(here, capsys):
    from lib.sweep.__main__ import main

    here.write("cheap: {number: 1}")
    assert main(["cheap", "--address", "127.0.0.1:9"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("address: no Ray cluster answers at 127.0.0.1:9")
