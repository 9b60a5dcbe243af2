"""Counts the faults that tests inject and what became of them; runs sweeps as processes and looks at what they leave.

Knows only the command line of a sweep, the files of its records and what the cheap experiment notes in its journal.
"""

import contextlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import psutil

import cheap
from lib.records import results

ROOT = Path(__file__).resolve().parents[2]
BAR = re.compile(r"\d\d:\d\d elapsed")
TORTURE = os.environ.get("TORTURE", "0") not in ("", "0")


def count(small: int, full: int) -> int:
    """How many faults a test injects: `full` in `make torture`, `small` otherwise."""
    return full if TORTURE else small


@dataclass
class Tally:
    """Faults of one kind: how many were injected, and why some were lost; `notes` are measured numbers to show.

    A test without the fixture `tally` injects one, which is lost when the test fails."""

    number: int
    fault: str
    injected: int = 0
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def injection(self, faults: int = 1) -> Iterator[None]:
        """So many faults, lost together when an assertion of the block fails; the test goes on with the next. With 0
        what must hold after all of them: one is lost when it does not. After another exception the test ends."""
        self.injected += faults
        try:
            yield
        except Exception as error:
            self.reasons += [str(error) or type(error).__name__] * max(1, faults)
            if not isinstance(error, AssertionError):
                raise

    def check(self) -> None:
        """Raise AssertionError unless faults were injected and all of them survived."""
        assert self.injected, f"{self.fault}: nothing was injected"
        reasons = "\n".join(dict.fromkeys(self.reasons))
        assert not self.reasons, f"{len(self.reasons)} of {self.injected} lost: {reasons}"


def table(reports: list) -> str:
    """The table of faults by their number, from the reports of tests that have a tally: injected, survived, lost."""
    rows = []
    for report, found in ((report, Tally(**dict(report.user_properties)["tally"])) for report in reports):
        ran, lost = not report.skipped, max(len(found.reasons), int(report.failed))
        notes = found.notes if ran else [report.longrepr[2].removeprefix("Skipped: ")]
        injected = max(found.injected, int(ran))
        rows.append((found.number, found.fault, injected, max(0, injected - lost), lost, "; ".join(notes)))
    counted = pd.DataFrame(rows, columns=["", "fault", "injected", "survived", "lost", "notes"])
    how = {"injected": "sum", "survived": "sum", "lost": "sum", "notes": lambda notes: "; ".join(filter(None, notes))}
    return counted.groupby(["", "fault"], as_index=False).agg(how).to_string(index=False)


def until(true: Callable, seconds: float, what: str):
    """What `true` returns as soon as it is true. Raises AssertionError when that takes more than so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
    return found


def moment(most: float) -> None:
    """Wait for a random time of at most so many seconds."""
    time.sleep(random.uniform(0, most))


@dataclass
class Done:
    """A sweep that has ended: its exit code (that of a shell where a signal ended it), what it printed, how long it
    ran."""

    code: int
    out: str
    err: str
    seconds: float


class Sweep:
    """A sweep in a folder of its own: the notebook, the sweep file, the records, the temporary files."""

    def __init__(self, folder: Path, text: str):
        self.folder, self.results = folder, folder / "r" / "results"
        (folder / "notebooks" / "sweeps").mkdir(parents=True)
        (folder / "tmp").mkdir()
        self.journal_file = folder / "journal"
        self.variables = {
            "RESULTS": str(self.results), "CHEAP": str(folder / "notebooks"), "CHEAP_JOURNAL": str(self.journal_file),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        cheap.write(folder / "notebooks")
        (folder / "notebooks" / "sweeps" / "cheap.yaml").write_text(text)
        self.started = 0

    def start(self, *options: str) -> subprocess.Popen:
        """The command of this sweep, in a session of its own, as in a terminal."""
        self.started += 1
        files = [self.folder / f"{name}{self.started}" for name in ("out", "err")]
        with files[0].open("w") as out, files[1].open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests/support/cheap.py"), "cheap", *options],
                env=os.environ | self.variables, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                start_new_session=True,
            )  # fmt: skip
        process.began, process.files = time.monotonic(), files
        return process

    def start_to(self, turn: int) -> subprocess.Popen:
        """The command of this sweep at a random moment: in every third turn of what comes before the first case, else
        of what comes with it and after. Raises AssertionError when it ends by itself."""
        commands, cases = len(self.journal("command")), len(self.journal("begins"))
        process = self.start()
        until(lambda: len(self.journal("command")) > commands, 60, "the start of the command")
        if turn % 3:
            until(lambda: len(self.journal("begins")) > cases, 60, "the first case")
        moment(1.5)
        assert process.poll() is None, "it ended by itself"
        return process

    def end(self, process: subprocess.Popen, seconds: float = 120) -> Done:
        """Wait for it to end. Raises AssertionError when that takes more than so many seconds, and ends it."""
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.clear()
            raise AssertionError(f"the sweep did not end within {seconds:g} s") from None
        out, err = (file.read_text(errors="replace") for file in process.files)
        return Done(code if code >= 0 else 128 - code, out, err, time.monotonic() - process.began)

    def run(self, *options: str) -> Done:
        """Start the command and wait for its end."""
        return self.end(self.start(*options))

    def records(self) -> dict[str, bytes]:
        """The files of the records, by the name of the file, without its ending."""
        return {file.stem: file.read_bytes() for file in self.results.glob("*/*/*.json")}

    def statuses(self) -> dict[int, str]:
        """The status of each record of the first round by the number of its case; `damaged` where it is not valid."""
        found = {}
        for file in self.results.glob("*/*/*.r1.json"):
            number = int(file.stem.split("-")[0])
            assert number not in found, f"two records of case {number}"
            found[number] = results.status(file) or "damaged"
        return found

    def unchanged(self, before: dict[str, bytes]) -> None:
        """Raise AssertionError unless all of these records are still as they were."""
        after = self.records()
        changed = [name for name, content in before.items() if after.get(name) != content]
        assert not changed, f"changed or lost: {changed}"

    def journal(self, event: str | None = None) -> list[dict]:
        """What the cases and commands noted, in the order of time; a line torn by a kill is left out."""
        if not self.journal_file.exists():
            return []
        found = []
        for line in self.journal_file.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [entry for entry in found if event in (None, entry["event"])]

    def processes(self, of: str = "") -> list[psutil.Process]:
        """All processes of this sweep with these words in their command, however far removed.

        They are those with its journal in their environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):  # another user's, or gone in the meantime
                belongs = process.environ().get("CHEAP_JOURNAL") == str(self.journal_file)
                if belongs and process.status() != psutil.STATUS_ZOMBIE and of in " ".join(process.cmdline()):
                    found.append(process)
        return found

    def kernels(self) -> list[psutil.Process]:
        """The kernel processes of this sweep."""
        return self.processes("ipykernel")

    def none_left(self, seconds: float = 5) -> None:
        """Raise AssertionError unless all of its processes are gone within so many seconds."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.processes(), seconds, "")
        left = [" ".join(process.cmdline())[:120] for process in self.processes() if process.is_running()]
        assert not left, f"after {seconds:g} s there are still {left}"

    def leftovers(self) -> list[str]:
        """Files that a write left behind: in the results whatever is no record and no file of the house, and folders of
        kernels among the temporary files."""
        unfinished = [str(file.relative_to(self.folder)) for file in self.results.rglob("*.tmp*")]
        return unfinished + [file.name for file in (self.folder / "tmp").iterdir()]

    def clear(self) -> None:
        """Kill what is left of it."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def remove(self) -> None:
        """End it all and remove the folder."""
        self.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def hit(process: subprocess.Popen, name: str) -> None:
    """Send a signal as a terminal or a queue would: SIGINT to the whole group in the foreground, others to the command
    alone."""
    with contextlib.suppress(ProcessLookupError):
        if name == "SIGINT":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, name))


def lines(text: str) -> list[str]:
    """What stands in standard error beside the bar."""
    return [line for line in text.replace("\r", "\n").splitlines() if line.strip() and not BAR.search(line)]


def kernels_side_by_side(journal: list[dict], pins: set[str], alone: str | None) -> None:
    """Raise AssertionError unless some kernels ran side by side, each on a GPU of its own, and those alone that had to.

    Cases above 50 need the whole machine, and then see the GPUs `alone`."""
    spans = {}
    for entry in journal:
        if entry["event"] == "begins":
            spans.setdefault(entry["pid"], entry | {"first": entry["time"]})
        if entry["event"] == "saved":
            spans[entry["pid"]]["last"] = entry["time"]
    beside = [
        (one, other)
        for one, other in itertools.combinations(spans.values(), 2)
        if one["first"] < other["last"] and other["first"] < one["last"]
    ]
    assert beside
    for one, other in beside:
        assert {one["pin"], other["pin"]} == pins, f"{one} beside {other}"
        assert max(one["number"], other["number"]) <= 50, f"{one} beside {other}"
    assert {span["pin"] for span in spans.values() if span["number"] <= 50} == pins
    assert {span["pin"] for span in spans.values() if span["number"] > 50} == {alone}
