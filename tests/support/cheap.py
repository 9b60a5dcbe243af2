"""A cheap experiment, whose cases behave as they say: well, or in each of the ways in which a case can go wrong.

`python tests/support/cheap.py NAME [options]` is `python -m lib.sweep NAME [options]` with this experiment and the
notebooks of the folder $CHEAP. It knows nothing of measuring, and its kernels load no torch unless a case wants it.
"""

import collections
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

CODE = "c0de" * 4  # what stands for the digest of the code that measured
GPU = "pretended-gpu"


def _raise() -> None:
    raise KeyError("a bug of the case")


def for_ever() -> None:
    """Wait, and never come back."""
    while True:
        time.sleep(1000)


def _spin() -> None:
    """A loop in C, which holds the interpreter's lock and looks at no signal."""
    collections.deque(itertools.repeat(None), maxlen=0)


def _deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for_ever()


def _have_children() -> None:
    """Two processes in sessions of their own, one of which ignores what can be ignored."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 1000; sleep 1000"], start_new_session=True)


def _with_children() -> None:
    _have_children()
    for_ever()


def _eat() -> None:
    """Take memory until the system ends this process, within the memory group $CHEAP_GROUP, which is small."""
    Path(os.environ["CHEAP_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(2**20)))


BEHAVIOURS = {
    "ok": lambda: None,
    "raise": _raise,
    "exit": lambda: sys.exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": for_ever,
    "spin": _spin,
    "deaf": _deaf,
    "children": _with_children,
    "orphans": _have_children,
    "eat": _eat,
    "oom": lambda: None,  # see `measure`
    "unfinished": lambda: None,  # after the last case, see `last`
    "lingers": lambda: None,
}


@dataclass(frozen=True)
class Cheap:
    """The case of a `number`, which takes `pause_ms`; the one whose number is `at` behaves as `behaviour` says, the
    others well."""

    experiment: ClassVar[str] = "cheap"
    number: int
    behaviour: str
    at: int
    pause_ms: int
    device: str

    def unavailable(self) -> None:
        """Every machine can run it."""
        return

    def predicted_bytes(self) -> int:
        """Next to nothing."""
        return 1024


def note(event: str, **facts) -> None:
    """Add a line to the journal $CHEAP_JOURNAL, whole even when several processes write."""
    line = json.dumps({"event": event, "pid": os.getpid(), "time": time.time(), **facts}) + "\n"
    file = os.open(os.environ["CHEAP_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line.encode())
    os.close(file)


def pending(cases: list[Cheap], round: int) -> Iterator[Cheap]:
    """The cases that this kernel is to measure, in its order, until the sweep's time is up."""
    from lib.records import results

    named = {results.called("cheap", asdict(case), round): case for case in cases}
    began = time.monotonic()
    for name in json.loads(Path(os.environ["SWEEP_CASES"]).read_text()):
        if time.monotonic() - began > float(os.environ["SWEEP_SECONDS_LEFT"]):
            return
        yield named[name]


def measure(case: Cheap, round: int, samples: int) -> None:
    """Behave as the case says, and save its record, if it comes to that.

    Where torch finds no memory all cases are measured as those of the house are."""
    from lib.records import results

    note("begins", number=case.number, round=round, pin=os.environ.get("CUDA_VISIBLE_DEVICES"))
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter()
    time.sleep(case.pause_ms / 1000)
    if case.behaviour == "oom":
        import torch

        from lib.experiments import measure as house

        settle_in()
        with house.recording(case, round) as record:
            record.metrics["total_ms"] = [1.0]
            if case.number == case.at:
                torch.empty(2**60, dtype=torch.uint8, device=case.device)
        return
    if case.number == case.at:
        BEHAVIOURS[case.behaviour]()
    here = surroundings(case.device)
    results.save(
        experiment="cheap", case=asdict(case), round=round, status="ok",
        metrics={"total_ms": [1 + number / 7 for number in range(samples)]}, environment=here, code=CODE,
        started=started, seconds=time.perf_counter() - began,
    )  # fmt: skip
    note("saved", number=case.number, round=round)


def last(cases: list[Cheap]) -> None:
    """The last cell."""
    note("last cell")
    if cases[0].behaviour == "unfinished":
        os._exit(0)
    if cases[0].behaviour == "lingers":
        for_ever()


CELLS = (
    """number = [1]
behaviour = "ok"
at = 0
pause_ms = 0
device = "cpu"
warmup = 0
samples = 6
target_percent = 0
seconds = 0
pairs = 0
round = 0""",
    """import itertools
import cheap
listed = [value if isinstance(value, list) else [value] for value in (number, behaviour, at, pause_ms, device)]
grid = [cheap.Cheap(*point) for point in itertools.product(*listed)]""",
    """for case in cheap.pending(grid, round):
    cheap.measure(case, round, samples)""",
    "cheap.last(grid)",
)


def write(folder: Path) -> None:
    """Write the notebook of this experiment, and what `surroundings` reads, into a folder."""
    import cells  # which takes nbformat, and kernels do without

    cells.write(folder / "cheap.ipynb", *CELLS)
    (folder / "surroundings.json").write_text(_here())


@functools.cache
def _here() -> str:
    """Where this is, as JSON; takes torch and git."""
    from lib.instruments import environment

    return json.dumps(environment.describe("cpu"))


def surroundings(device: str) -> dict:
    """The environment of a record, as a process with torch found it; on `cuda`, of a GPU that only pretends to be."""
    found = json.loads(Path(os.environ["CHEAP"], "surroundings.json").read_text())
    pretended = {"machine": GPU, "hardware": GPU, "device": "cuda"} if device == "cuda" else {}
    return found | pretended | {"run": os.environ.get("SWEEP_RUN", "by hand")}


def settle_in() -> None:
    """Add the experiment to the house: its case, its code, and GPUs where none are, if the case asks for some."""
    from lib.sweep.__main__ import _signals_delayed

    with _signals_delayed():
        from lib.catalog import CATALOG, Experiment
        from lib.experiments import cases
        from lib.instruments import environment
        from lib.instruments.device import Cpu, Cuda
        from lib.records import code_digest

    CATALOG["cheap"], cases.EXPERIMENTS["cheap"] = Experiment(title="Cheap", metric="total_ms"), Cheap
    code_digest.code = lambda *_: CODE
    if "CHEAP_GPUS" in os.environ:
        Cuda.models = lambda _: [GPU] * 8
        Cuda.free_bytes, Cuda.total_bytes = Cpu.free_bytes, Cpu.total_bytes
        machine, describe = environment.machine, environment.describe
        environment.machine = lambda device: GPU if device == "cuda" else machine(device)
        environment.describe = lambda device: surroundings(device) if device == "cuda" else describe(device)


def first_settle_in(function: Callable) -> Callable:
    """Make a function settle in before it does anything else: only then, since that takes torch."""

    @functools.wraps(function)
    def settled(*arguments):
        settle_in()
        return function(*arguments)

    return settled


def main() -> int:
    """The command line of a sweep."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # as in a terminal, also where the tests run in the background
    from lib import notebooks

    notebooks.NOTEBOOKS = Path(os.environ["CHEAP"])
    notebooks.SWEEPS = notebooks.NOTEBOOKS / "sweeps"
    from lib.sweep import __main__

    __main__._supervise = first_settle_in(__main__._supervise)
    note("command")
    code = __main__.main(sys.argv[1:])
    note("leaves", torch="torch" in sys.modules)
    return code


if __name__ == "__main__":
    import cheap  # whose class has the same name in every process

    code = cheap.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as `lib.sweep.__main__` does
