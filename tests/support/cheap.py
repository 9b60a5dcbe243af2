"""A cheap experiment, whose cases behave as they say, and sweeps of it as processes of their own.

`python tests/support/cheap.py NAME [options]` is `python -m lib.sweep NAME [options]` with the notebooks of the folder
$CHEAP. Its kernels load no torch: they follow the plan as `lib.experiments.measure` does, and keep a journal.
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

ROOT = Path(__file__).resolve().parents[2]
CODE = "c0de" * 4  # stands for the digest of the code that measures, which may change while tests run


@dataclass(frozen=True)
class Cheap:
    """Case `number`, which takes `pause_ms` and then does what its `behaviour` says."""

    experiment: ClassVar[str] = "cheap"
    number: int
    behaviour: str
    pause_ms: int
    device: str

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
    "exit": lambda: sys.exit(0),
    "sleep": lambda: time.sleep(1000),
    "children": children,
}


def run(seconds, round):
    """Follow the plan: note the case in hand, measure it, save its record."""
    from lib import records

    records.digest = lambda experiment: CODE
    plan_file = Path(os.environ["SWEEP_PLAN"])
    plan = json.loads(plan_file.read_text())
    for index, entry in enumerate(plan["cases"]):
        if time.time() > plan["deadline"]:
            return
        began = time.time()
        records.write(plan_file.with_name("note.json"), json.dumps({"begun": index + 1, "saved": index}))
        case = entry["case"]
        note(case["number"], plan["round"], share=plan["slots"], seconds=entry["seconds"])
        time.sleep(case["pause_ms"] / 1000)
        status, metrics = "ok", {"total_ms": [1.0]}
        if case["behaviour"] == "oom":
            status, metrics = "oom", {"fresh": index == 0, "limit_bytes": 2**60}
        elif case["behaviour"] == "failed":
            status, metrics = "failed", {"reason": "KeyError: a bug"}
        elif case["behaviour"] == "once" and len(journal(Path(os.environ["CHEAP"]), case["number"])) < 2:
            BEHAVIOURS["kill"]()
        elif case["behaviour"] in BEHAVIOURS:
            BEHAVIOURS[case["behaviour"]]()
        environment = json.loads(os.environ["CHEAP_ENVIRONMENT"])
        taken = time.time() - began
        saved = index
        if metrics.get("fresh", True):
            records.save(records.create("cheap", case, plan["round"], status, metrics, environment, seconds=taken))
            saved += 1
        records.write(plan_file.with_name("note.json"), json.dumps({"begun": saved, "saved": saved}))
        if saved == index:
            return


def note(number, round, **facts):
    """Add a line to the journal, whole even when several processes write."""
    entry = {"number": number, "round": round, "pid": os.getpid(), "time": time.time(), **facts}
    file = os.open(Path(os.environ["CHEAP"], "journal"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{json.dumps(entry)}\n".encode())
    os.close(file)


def journal(folder, number=None):
    """The cases of one number, or all, in the order in which they began; a line torn by a kill is left out."""
    entries = []
    if (folder / "journal").exists():
        for line in (folder / "journal").read_text().splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
    return [entry for entry in entries if number in (None, entry["number"])]


PARAMETERS = 'number = [1]\nbehaviour = "ok"\npause_ms = 1\ndevice = "cpu"\nseconds = 0.1\nround = 0\nmachine = ""'
MEASURE = "import cheap\nrecords = cheap.run(seconds, round)"


def settle(folder):
    """Put the experiment and its notebook in the place of the project's."""
    from lib import catalog, notebooks, records

    records.digest = lambda experiment: CODE
    notebooks.NOTEBOOKS = folder
    notebooks.SWEEPS = folder / "sweeps"
    catalog.CATALOG.clear()
    catalog.CATALOG["cheap"] = catalog.Experiment(title="Cheap")
    sys.modules["lib.experiments.cheap"] = sys.modules["cheap"]
    from lib.instruments import environment

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
