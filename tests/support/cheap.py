"""A cheap experiment, whose cases behave as they say, and sweeps of it as processes of their own.

`python tests/support/cheap.py NAME [options]` is `python -m lib.sweep NAME [options]` with the notebooks of the folder
$CHEAP. Its kernels load no torch: `measure` takes the place of that of `lib.experiments.attempt`, and keeps a journal.
"""

import contextlib
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psutil

from lib.catalog import Experiment

ENTRY = Experiment(title="Cheap", fields=("number", "behaviour", "pause_ms", "device"))
ROOT = Path(__file__).resolve().parents[2]
earlier_cases = 0  # that this process has measured
CODE = "c0de" * 4  # stands for the digest of the code that measures, which may change while tests run


@dataclass(frozen=True)
class Cheap:
    """Case `number`, which takes `pause_ms` and then does what its `behaviour` says."""

    experiment: ClassVar[str] = "cheap"
    number: int = 1
    behaviour: str = "ok"
    pause_ms: int = 1
    device: str = "cpu"

    def __post_init__(self):
        from lib import validate

        validate.fields(self)
        validate.choice("behaviour", self.behaviour, [*BEHAVIOURS, "oom", "failed", "once", "unavailable"])

    def unavailable(self):
        return "it says so" if self.behaviour == "unavailable" else None


def children():
    """A temporary folder, and two processes in sessions of their own, one of which ignores what can be ignored."""
    tempfile.mkdtemp()
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 1000; sleep 1000"], start_new_session=True)
    time.sleep(1000)


BEHAVIOURS = {
    "ok": lambda: None,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": lambda: time.sleep(1000),
    "children": children,
}


def measure(case, round, seconds, slots=1):
    """Take the place of `attempt.measure`: note a case in the journal, do what it says, and return its record."""
    global earlier_cases
    from lib import records

    began = time.time()
    started = records.now()
    entry = {"number": case.number, "round": round, "pid": os.getpid(), "seconds": seconds}
    with Path(os.environ["CHEAP"], "journal").open("a") as file:
        file.write(f"{json.dumps(entry)}\n")
    time.sleep(case.pause_ms / 1000)
    status, metrics = "ok", None
    if case.behaviour == "oom":
        status, metrics = "oom", {"fresh": earlier_cases == 0, "limit_bytes": 2**60}
    elif case.behaviour == "failed":
        status, metrics = "failed", {"reason": "KeyError: a bug"}
    elif case.behaviour == "once" and len(journal(Path(os.environ["CHEAP"]), case.number)) < 2:
        BEHAVIOURS["kill"]()
    elif case.behaviour in BEHAVIOURS:
        BEHAVIOURS[case.behaviour]()
    earlier_cases += 1
    return record(vars(case), round, status, metrics, started=started, seconds=time.time() - began)


def record(case, round, status="ok", metrics=None, **options):
    """Make the record of a case, a dict, as if it were measured here."""
    from lib import records

    environment = json.loads(os.environ["CHEAP_ENVIRONMENT"])
    return records.create("cheap", case, round, status, metrics or {"total_ms": [1.0]}, environment, **options)


def journal(folder, number=None):
    """The cases of one number, or all, in the order in which they began."""
    file = folder / "journal"
    lines = file.read_text().splitlines() if file.exists() else []
    return [entry for entry in map(json.loads, lines) if number in (None, entry["number"])]


# what a reader has saved: a sweep passes every axis, so that none of it matters
PARAMETERS = (
    'number = [99 for _ in "ab"]\nbehaviour: str = "kill"\nanother = 1\nseconds = 9.0\nround = 0\nmachine = "x"'
)
MEASURE = """
import cheap
cheap.settle_names()
from lib.experiments import measure
records = measure.run("cheap", vars())
records
"""


def settle_names():
    """Put the experiment, and how a case is measured, in the place of the project's."""
    from lib import catalog, watched

    watched.digest = lambda experiment: CODE
    catalog.CATALOG.clear()
    catalog.CATALOG["cheap"] = ENTRY
    sys.modules["lib.experiments.cheap"] = sys.modules["lib.experiments.attempt"] = sys.modules["cheap"]


def settle(folder):
    """Put the experiment and its notebook in the place of the project's."""
    settle_names()
    from lib import notebooks
    from lib.instruments import environment

    notebooks.NOTEBOOKS = folder
    notebooks.SWEEPS = folder / "sweeps"

    os.environ["CHEAP_ENVIRONMENT"] = json.dumps(environment.describe("cpu"))


def settle_when_imported():
    """Settle as soon as something imports the sweep's plan: a process of Ray that needs neither stays as it is."""
    sys.meta_path.insert(0, _Settler())


class _Settler:
    def find_spec(self, name, path=None, target=None):
        if name == "lib.sweep.plan":
            sys.meta_path.remove(self)
            settle(Path(os.environ["CHEAP"]))


class Sweep:
    """A sweep in a folder of its own, with a short name, since sockets lie in it."""

    def __init__(self, text, measure=MEASURE):
        import nbformat
        from nbformat import v4

        self.folder = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
        self.results = self.folder / "r" / "results"
        (self.folder / "sweeps").mkdir()
        (self.folder / "tmp").mkdir()
        cells = [v4.new_code_cell(PARAMETERS), v4.new_code_cell(measure), v4.new_code_cell("1 / 0  # never reached")]
        cells[0].metadata["tags"] = ["parameters"]
        cells[1].metadata["tags"] = ["measure"]
        nbformat.write(v4.new_notebook(cells=cells), self.folder / "cheap.ipynb")
        self.write(text)
        self.variables = {
            "CHEAP": str(self.folder), "RESULTS": str(self.results), "TMPDIR": str(self.folder / "tmp"),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def write(self, text):
        (self.folder / "sweeps" / "cheap.yaml").write_text(text)

    def start(self, *options):
        """The command, in a session of its own, as in a terminal."""
        if options != ("status",):
            options = ("cheap", *options)
        command = [sys.executable, str(ROOT / "tests/support/cheap.py"), *options]
        return subprocess.Popen(
            command, cwd=ROOT, env=os.environ | self.variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *options):
        """Run the command to its end; return its exit code and what it printed."""
        process = self.start(*options)
        printed, _ = process.communicate(timeout=240)
        return process.returncode, printed

    def statuses(self):
        """The status of each record, by number and round; `damaged` where it is not whole."""
        from lib import records

        statuses = {}
        for file in self.results.glob("*/cheap/*.json"):
            number, round = int(file.stem.split("-")[0]), int(file.stem.rpartition(".r")[2])
            assert (number, round) not in statuses, f"two records of {number}, round {round}"
            try:
                statuses[number, round] = records.read(file)["status"]
            except ValueError:
                statuses[number, round] = "damaged"
        return statuses

    def files(self):
        return {file.name: file.read_bytes() for file in self.results.glob("*/cheap/*.json")}

    def begun(self, number=None):
        return journal(self.folder, number)

    def processes(self):
        """All processes of this sweep, however far removed: those with its folder in their environment."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("CHEAP") == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
        return processes

    def kernels(self):
        return [process for process in self.processes() if "ipykernel_launcher" in " ".join(process.cmdline())]

    def remove(self):
        """Kill and remove what is left of it."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def until(condition, what, seconds=60):
    """Wait until something is true, and return it. Raises AssertionError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return value


if __name__ == "__main__":
    import cheap  # whose class has the same name in every process

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    cheap.settle(Path(os.environ["CHEAP"]))
    runpy.run_module("lib.sweep", run_name="__main__", alter_sys=True)
