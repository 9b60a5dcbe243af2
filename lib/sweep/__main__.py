"""The command line of sweeps, `python -m lib.sweep`: plans one, supervises it, and says how far it is and what failed.

What is heavy is imported once the results folder is known to be free.
"""

import argparse
import contextlib
import math
import os
import signal
import sys
from collections.abc import Iterator

from lib import cli, notebooks, paths
from lib.records import atomic
from lib.sweep import lock, progress
from lib.sweep.lock import Busy, Shard

FAILED, BAD_INPUT, CANNOT_WRITE, BUSY = 1, 2, 74, 75  # the last two as in sysexits.h
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
AGAIN = {"stale": ("stale",), "retry": ("crashed", "timeout")}  # the records that an option asks for anew


class Stopped(BaseException):
    """A signal asked the sweep to stop."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    names = ", ".join(notebooks.sweeps()).replace("%", "%%")  # which argparse would take for a format
    made = cli.parser(
        "lib.sweep",
        "Run a sweep, or go on with it: what has its record is not measured again.\n"
        "`status` says how far those are that run on these results.",
        (
            "smoke",
            "quick",
            "gpu --dry",
            "gpu --budget 3000",
            "gpu --shard 2/4",
            "gpu --address HOST:6379",
            "status",
        ),
        {
            FAILED: "a notebook failed, a case crashed or took too long, or a record was refused; all else is measured",
            BAD_INPUT: cli.BAD_INPUT,
            CANNOT_WRITE: "the results, or the scratch folder, cannot be written",
            BUSY: "another sweep has these results in hand",
            130: "stopped by Ctrl-C; the same command goes on",
            143: "stopped by SIGTERM or SIGHUP; the same command goes on",
        },
    )
    made.add_argument("sweep", help=f"one of {names}: a file of notebooks/sweeps; or status")
    made.add_argument("--budget", default="inf", help="stop between cases after so many seconds")
    made.add_argument("--dry", action="store_true", help="list the cases with their predicted memory, run nothing")
    made.add_argument("--stale", action="store_true", help="measure what older code or another torch measured again")
    made.add_argument("--retry", action="store_true", help="measure what crashed or took too long again")
    made.add_argument("--shard", default="1/1", metavar="K/N", help="do the K-th of N shards, beside those of others")
    made.add_argument("--address", metavar="HOST:PORT", help="run on the Ray cluster whose head is there")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns its exit code (see `parser`)."""
    given = parser().parse_args(arguments)
    if given.sweep == "status":
        return _tell()
    try:
        shard, budget = lock.parse(given.shard), _seconds(given.budget)
        if given.dry:
            return _dry(given.sweep, shard)
        paths.refuse_foreign(paths.results())
    except ValueError as error:
        return _say(error, BAD_INPUT)
    try:
        with _signals(), lock.held(shard, paths.results()):
            return _supervise(given, shard, budget)
    except Busy as busy:
        return _say(f"busy: {progress.owner(paths.results(), busy.shard)}", BUSY)
    except atomic.CannotWrite as error:
        return _say(error, CANNOT_WRITE)
    except Stopped as stopped:
        return _say("stopped; the same command goes on from here", SIGNALS[stopped.number])


def _say(text: object, code: int = 0) -> int:
    """Print what is good news, and to standard error what comes with an exit code, which is returned. That nobody can
    read it any more is no reason to fail."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr if code else sys.stdout, flush=True)
    return code


def _tell() -> int:
    told = progress.told(paths.results())
    return _say("\n".join(map(progress.line, told)) or "no sweep has run on these results yet")


def _dry(name: str, shard: Shard) -> int:
    from lib.sweep import plan

    return _say(plan.dry(plan.in_shard(plan.planned(name), shard)))


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """For the block, the signals that ask to stop raise Stopped, once; but those that whoever started the sweep has it
    ignore, as `nohup` does, are ignored."""

    def stop(number: int, _) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    former = {number: signal.getsignal(number) for number in SIGNALS}
    heard = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in heard:
            if signal.getsignal(number) is stop:  # else it was asked to stop, and is not to be asked until it has
                signal.signal(number, former[number])


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """For the block the signals that ask to stop wait: it imports compiled code, which an exception would abort."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _supervise(given: argparse.Namespace, shard: Shard, budget: float) -> int:
    with _held_back():
        from lib.records import damaged
        from lib.sweep import plan, supervisor

    again = frozenset(kind for option, kinds in AGAIN.items() if getattr(given, option) for kind in kinds)
    os.environ["RESULTS"] = str(paths.results().resolve())
    with contextlib.ExitStack() as stack:
        try:
            boxes = stack.enter_context(_boxes(given, shard))
            tasks = list({id(task): task for box in boxes for task in box.tasks}.values())
            for task in tasks:
                paths.within(paths.results(), task.machine, task.experiment)
                paths.within(paths.runs(), task.machine)
        except ValueError as error:
            return _say(error, BAD_INPUT)
        damaged.tidy(shard == lock.WHOLE)
        if not any(task.todo(again) for task in tasks):
            return _say(f"{given.sweep}: every case has its record, nothing to measure")
        shown = _progress(boxes, tasks, given.sweep, shard, again)
        sweeping, state = supervisor.Supervisor(boxes, shown, budget, again), "stopped"
        try:
            sweeping.run()
            state = "failed" if sweeping.failures else "done"
        finally:
            shown.close(state)
        _say(plan.summary(tasks))
        for failure in sweeping.failures:
            _say(failure, FAILED)
        return _say(f"again, just these: {_command(given)}", FAILED) if sweeping.failures else 0


@contextlib.contextmanager
def _boxes(given: argparse.Namespace, shard: Shard) -> Iterator[list]:
    """Where the sweep is done: on this machine, or on those of a cluster."""
    from lib.sweep import plan, supervisor

    if given.address:
        with _held_back():
            from lib.sweep import ray_cluster

        with ray_cluster.boxes(given.address, given.sweep, shard) as boxes:
            yield boxes
    else:
        tasks = plan.in_shard(plan.planned(given.sweep), shard)
        with supervisor.local(tasks, plan.pins(tasks)) as boxes:
            yield boxes


def _progress(boxes: list, tasks: list, sweep: str, shard: Shard, again: frozenset[str]) -> progress.Progress:
    from lib.sweep import plan

    keys = [(task.machine, name) for task in tasks for name in task.todo(again)]
    done = sum(len(task.cases) - len(task.lacking) for task in tasks) - len(keys)
    lanes = sum(max(1, len(box.slots)) for box in boxes)
    return progress.Progress(paths.results(), shard, sweep, done, plan.known_seconds(tasks, keys), lanes)


def _command(given: argparse.Namespace) -> str:
    """The command that measures what failed, and only that."""
    words = [f"{cli.interpreter()} -m lib.sweep {given.sweep} --retry"]
    words += ["--stale"] if given.stale else []
    words += [f"--shard {given.shard}"] if given.shard != "1/1" else []
    words += [f"--address {given.address}"] if given.address else []
    return " ".join(words)


def _seconds(text: str) -> float:
    """The budget as a number. Raises ValueError unless it is a positive one."""
    try:
        budget = float(text)
    except ValueError:
        budget = math.nan
    if not budget > 0:
        raise ValueError(f"budget: {text!r} must be a positive number of seconds")
    return budget


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)  # without waiting for threads whose kernels have just been ended
