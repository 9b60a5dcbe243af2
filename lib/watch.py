"""Watches a kernel from outside while it measures: shows how far it is, and stops it when a case takes too long.

It only looks whether the file of the next record exists, twice a second, so as not to disturb what is measured.
"""

import statistics
import threading
import time
from dataclasses import asdict
from pathlib import Path

import psutil
from tqdm import tqdm

from lib import measure, results


class Progress:
    """The bar of a whole sweep: experiment, case, done of all, and the time left by what the same case took
    when it was last measured, on whatever machine, scaled to this one by what is done so far."""

    def __init__(self, kernels: list):
        self.known: dict = {}
        self.spent, self.promised = 0.0, 0.0
        done = sum(
            len(measure.available(kernel.cases)) - len(measure.remaining(kernel.cases, kernel.round))
            for kernel in kernels
        )
        bar = "{desc} {bar} {n_fmt}/{total_fmt}, {elapsed} gone{postfix}"
        self.bar = tqdm(total=done, initial=done, unit="case", dynamic_ncols=True, bar_format=bar)
        self.recount(kernels)

    def recount(self, kernels: list) -> None:
        """Take what is left anew from the records, since a case that ends badly is left out of later rounds."""
        todo = [case for kernel in kernels for case in measure.remaining(kernel.cases, kernel.round)]
        known = [seconds for case in todo if (seconds := self._known_seconds(case))]
        self.typical = statistics.median(known) if known else 5.0
        self.left = sum(self._seconds(case) for case in todo)
        self.bar.total = self.bar.n + len(todo)

    def _known_seconds(self, case) -> float | None:
        """Seconds that a record of this case took, here or else on any machine."""
        if case not in self.known:
            pattern = f"*/{case.experiment}/{results.name(asdict(case))}.r*.json"
            found = (file for root in (results.folder(), results.REFERENCE) for file in root.glob(pattern))
            self.known[case] = next((results.read(file)["seconds"] for file in found if results.status(file)), None)
        return self.known[case]

    def _seconds(self, case) -> float:
        return self._known_seconds(case) or self.typical

    def case_done(self, case, seconds: float) -> None:
        """Count a case that took so many seconds, the start of its kernel included."""
        self.spent += seconds
        self.promised += self._seconds(case)
        self.left -= self._seconds(case)
        self._show_left()
        self.bar.update()

    def case_begins(self, kernel, case) -> None:
        """Show which case is in hand."""
        shown = f"{kernel.experiment}  {measure.record_path(case, kernel.round).stem}"
        self.bar.set_description_str(shown[:56].ljust(56), refresh=False)
        self._show_left()
        self.bar.refresh()

    def _show_left(self) -> None:
        pace = self.spent / self.promised if self.promised else 1.0
        minutes, seconds = divmod(round(max(0.0, self.left) * pace), 60)
        self.bar.set_postfix_str(f"about {minutes}:{seconds:02d} left", refresh=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self.bar.close()


class Watch:
    """Follows one kernel in a thread of its own for as long as the block runs, then stops whatever child
    processes it has left."""

    def __init__(self, kernel, progress: Progress):
        self.kernel, self.progress, self.timed_out = kernel, progress, False
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> "Watch":
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.over.set()
        self.thread.join()
        stop_children()

    def _follow(self) -> None:
        ended = False
        for case in measure.remaining(self.kernel.cases, self.kernel.round):
            self.progress.case_begins(self.kernel, case)
            began, started, path = time.monotonic(), time.time(), measure.record_path(case, self.kernel.round)
            while not _written(path, started):
                if ended:
                    return
                if time.monotonic() - began > self.kernel.timeout:
                    self.timed_out = True
                    stop_children()
                    return
                ended = self.over.wait(0.5)  # a record may still have come in the last half second
            self.progress.case_done(case, time.monotonic() - began)


def _written(path: Path, since: float) -> bool:
    """Whether the record has come; a file from before is a damaged one, about to be written anew."""
    return path.exists() and path.stat().st_mtime >= since - 1


def stop_children() -> None:
    """Kill every process that this one has started, and theirs."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        child.kill()
    psutil.wait_procs(children, timeout=5)
