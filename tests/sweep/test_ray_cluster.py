"""A sweep on a cluster loses nothing when a worker, a node or the supervisor dies; all of them are processes here."""

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import clusters
import faults
from lib.records import code_digest
from lib.sweep import __main__, ray_cluster, ray_worker
from lib.sweep.lock import WHOLE

with_ray = pytest.mark.skipif(ray_cluster.ray is None, reason="Ray cannot be imported")
CASES = faults.count(3, 12)  # of each of two kernels; one more than a test has a kernel killed in
KERNELS, RECORDS = 2, dict.fromkeys(range(1, 2 * CASES + 1), "ok")
BLOCK = "{{number: {}, pause_ms: 800, device: cuda}}"
SWEEP = f"cheap: [{BLOCK.format([*RECORDS][:CASES])}, {BLOCK.format([*RECORDS][CASES:])}]"


@pytest.fixture(scope="module")
def running():
    """A cluster of two nodes with the same hardware."""
    with clusters.cluster_for(SWEEP) as found:
        for _ in range(2):
            found.join()
        yield found


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


def whole(sweep, done):
    """The records are those of an undisturbed sweep, and nothing else is left."""
    assert (done.code, sweep.statuses()) == (0, RECORDS), done.err
    assert {path.name for path in sweep.results.iterdir() if path.is_dir()} == {"pretended-gpu"}
    assert not sweep.kernels()


@with_ray
@pytest.mark.faults(0, "kill -9 of workers and of a node of a cluster")
def test_nodes_share_a_sweep_whose_kernels_feel_nothing_of_ray_and_one_that_is_killed_costs_the_case_in_hand_alone(
    running, sweep, tally
):
    process = sweep.start("--address", running.address)
    other, number = in_hand(sweep)
    assert other.nice() == psutil.Process().nice()
    assert "OMP_NUM_THREADS" not in other.environ()
    assert other.environ()["CUDA_VISIBLE_DEVICES"] == "0"
    assert int(re.search(r"SigBlk:\s*(\w+)", Path(f"/proc/{other.pid}/status").read_text())[1], 16) == 0
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
    if faults.TORTURE:
        in_hand(sweep, running.join())  # a new node takes part
    other.resume()
    whole(sweep, sweep.end(process))


@pytest.mark.torture
@with_ray
@pytest.mark.faults(0, "SIGTERM and kill -9 of a cluster's supervisor")
def test_a_supervisor_that_ends_while_it_plans_or_later_leaves_no_kernel_and_the_next_goes_on(running, sweep, tally):
    for turn in range(faults.count(3, 20)):
        before, commands = sweep.records(), len(sweep.journal("command"))
        process = sweep.start("--address", running.address)
        faults.until(lambda: len(sweep.journal("command")) > commands, 60, "the start of the command")  # noqa: B023
        if len(before) < len(RECORDS) // 2 and turn % 4:
            in_hand(sweep)
        else:
            faults.moment(8)
        name, code = ("SIGTERM", 143) if turn % 2 else ("SIGKILL", 137)
        with tally.injection():
            assert process.poll() is None, "it ended by itself"
            faults.hit(process, name)
            done = sweep.end(process, 5)
            assert done.code == code, done.err
            assert len(faults.lines(done.err)) <= (name == "SIGTERM"), done.err
            faults.until(lambda: not sweep.kernels(), 5, "the end of all kernels")
            sweep.unchanged(before)
    whole(sweep, sweep.run("--address", running.address))


@pytest.mark.torture
@with_ray
def test_a_node_of_other_hardware_does_all_of_the_sweep_under_its_own_name(running, sweep):
    node = running.join("other-gpu")
    done = sweep.run("--address", running.address)
    node.kill()
    records = [json.loads(file.read_text()) for file in sweep.results.glob("*/*/*.json")]
    found = Counter((record["environment"]["machine"], record["case"]["number"]) for record in records)
    assert found == Counter((gpu, number) for gpu in ("pretended-gpu", "other-gpu") for number in RECORDS), done.err
    assert len(sweep.journal("saved")) == 2 * len(RECORDS)
    assert len({entry["pid"] for entry in sweep.journal("begins")}) == 2 * KERNELS


@pytest.mark.torture
@with_ray
def test_each_gpu_of_a_node_has_a_run_of_its_own_and_what_needs_the_node_runs_alone():
    gpu = "{{number: [{}], pause_ms: 3000, device: cuda}}"
    text = f"cheap: [{gpu.format('11, 12')}, {gpu.format('21, 22')}, {{number: [51, 52], device: cpu}}]"
    with clusters.cluster_for(text, gpus=2) as found:
        done = found.sweep.run("--address", found.address)
        assert (done.code, len(found.sweep.records())) == (0, 6), done.err
        faults.kernels_side_by_side(found.sweep.journal(), {"0", "1"}, None)


@with_ray
def test_a_wrong_token_is_bad_input_in_one_line(running, sweep, monkeypatch):
    monkeypatch.setitem(sweep.variables, "RAY_AUTH_TOKEN", secrets.token_hex(32))
    done = sweep.run("--address", running.address)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert "InvalidAuthToken" in done.err
    monkeypatch.setitem(sweep.variables, "RAY_AUTH_TOKEN_PATH", str(sweep.folder / "no such file"))
    monkeypatch.delitem(sweep.variables, "RAY_AUTH_TOKEN")
    done = sweep.run("--address", running.address)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err


@with_ray
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nowhere", "expected HOST:PORT"),
        ("127.0.0.1:x", "expected HOST:PORT"),
        ("127.0.0.1:99999", "no Ray cluster answers"),
        ("127.0.0.1:9", "no Ray cluster answers"),
    ],
)
def test_an_address_without_a_cluster_is_bad_input_in_one_line(own_results, capsys, address, said):
    assert __main__.main(["smoke", "--address", address]) == 2
    found = capsys.readouterr().err
    assert said in found
    assert found.count("\n") == 1


def test_a_signal_ends_the_wait_for_what_the_cluster_does_not_answer():
    def stop(*_):
        raise KeyboardInterrupt

    former, for_ever = signal.signal(signal.SIGTERM, stop), threading.Event()
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(KeyboardInterrupt):
            ray_cluster._in_thread(for_ever.wait)
    finally:
        for_ever.set()
        signal.signal(signal.SIGTERM, former)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_without_ray_the_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(ray_cluster, "ray", None)
    with (
        pytest.raises(ValueError, match=r"pip install -e \.\[cluster\]"),
        ray_cluster.boxes("127.0.0.1:1", "smoke", WHOLE),
    ):
        pass


class Engine:
    """What `cluster` asks of Ray, answered by a list of what to return or raise, and whether the one node is alive."""

    def __init__(self, monkeypatch, answers=(), alive=(True,)):
        self.answers, self.alive, self.meanwhile = list(answers), list(alive), lambda: None
        monkeypatch.setattr(ray_cluster, "ray", self)
        monkeypatch.setattr(
            ray_cluster, "_here", SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: None))
        )
        monkeypatch.setattr(ray_cluster.time, "sleep", lambda _: None)

    def nodes(self):
        """The one node."""
        self.meanwhile()
        alive = self.alive.pop(0) if len(self.alive) > 1 else self.alive[0]
        return [{"NodeID": "a", "Alive": alive, "Resources": {"CPU": 1.0}}]

    def get(self, _, timeout):
        """The next answer."""
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


SLOW = ray_cluster.ray and ray_cluster.exceptions.GetTimeoutError()
LOST = ray_cluster.ray and ray_cluster.exceptions.WorkerCrashedError()


@with_ray
@pytest.mark.parametrize(
    ("answers", "alive", "gone", "gone_s"),
    [
        ([True], [True], False, 90),
        ([SLOW, SLOW, True], [True], False, 90),  # the next worker there is slow to start
        ([LOST, True], [True], False, 90),
        ([LOST, LOST], [True, True, False], True, 90),  # the cluster notices after a while
        ([], [False], True, 90),
        ([SLOW], [True], False, -1),  # it never answers, and the cluster holds it for alive
    ],
)
def test_a_node_that_is_slow_after_its_worker_died_is_not_taken_for_gone(monkeypatch, answers, alive, gone, gone_s):
    monkeypatch.setattr(ray_cluster, "_pinned", lambda _: {})
    monkeypatch.setattr(ray_cluster, "GONE_S", gone_s)
    Engine(monkeypatch, answers, alive)
    assert ray_cluster.Slot("a", "its name", 1, 1)._gone() == gone


@with_ray
def test_a_living_node_that_was_given_up_is_taken_in_again_but_not_one_that_is_just_dying(monkeypatch):
    nodes, box = ray_cluster.Nodes("smoke", WHOLE), ray_cluster.Box([], None, [])
    nodes._by_id["a"] = box
    engine = Engine(monkeypatch, alive=[True])
    nodes.update()
    assert nodes.boxes == [box]
    engine.meanwhile = nodes.boxes.clear  # given up after the cluster was asked whether it is alive
    nodes.update()
    assert nodes.boxes == []
    engine.meanwhile, engine.alive = lambda: None, [False]
    nodes.update()
    assert nodes.boxes == []
    assert not nodes._by_id


def view(**changed):
    task = SimpleNamespace(experiment="step", code=code_digest.code("step"))
    return ray_worker.View(**({"tasks": [task], "sweep": ray_worker.digest("smoke"), "extra_niceness": 0} | changed))


def test_nodes_of_the_same_hardware_share_their_tasks_and_other_hardware_cannot_come_late():
    nodes, task = ray_cluster.Nodes("smoke", WHOLE), {"experiment": "step", "parameters": {}, "alone": True}
    ours, theirs = (view(tasks=[SimpleNamespace(machine=name, **task)]) for name in "ab")
    first, second = (nodes._box("", "", (1, 1), ours, late) for late in (False, True))
    assert first.tasks is second.tasks
    with pytest.raises(ValueError, match="run the same command again"):
        nodes._box("", "", (1, 1), theirs, late=True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"sweep": "0"}, "its sweep file smoke differs"),
        ({"tasks": [SimpleNamespace(experiment="step", code="0")]}, "its code of step differs"),
        ({"extra_niceness": 15}, "RAY_worker_niceness=0"),
    ],
)
def test_a_node_that_would_measure_something_else_is_refused(changed, said):
    ray_cluster.refuse_mismatch(view(), "smoke")
    with pytest.raises(ValueError, match=said):
        ray_cluster.refuse_mismatch(view(**changed), "smoke")
