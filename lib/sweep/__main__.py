"""Plan and run a sweep, or show its progress, with `python -m lib.sweep`.

Slow modules are imported only after the lock is taken, so that a second sweep ends at once.
"""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from lib import cli, notebooks, paths
from lib.records import atomic
from lib.sweep import lock, progress
from lib.sweep.lock import Busy

FAILED, BAD_INPUT, CANNOT_WRITE, BUSY = 1, 2, 74, 75  # the last two as in sysexits.h
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
AGAIN = {"stale": ("stale",), "retry": ("failed", "crashed", "timeout", "oom")}  # what an option measures again


class Stopped(BaseException):
    """Raised when a signal asks the sweep to stop."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def parser() -> argparse.ArgumentParser:
    """Build the parser of this command line."""
    names = ", ".join(notebooks.sweeps()).replace("%", "%%")  # argparse formats help texts with %
    made = cli.parser(
        "lib.sweep",
        "Run a sweep, or continue it: cases that have a record are not measured again.\n"
        "`status` shows the progress of the sweeps on these results.",
        (
            "smoke",
            "report",
            "gpu --dry",
            "gpu --budget 3000",
            "gpu --shard 2/4",
            "gpu --address HOST:6379",
            "status",
        ),
        {
            FAILED: "a notebook or case failed, crashed or took too long, or a record was refused; the rest is done",
            BAD_INPUT: cli.BAD_INPUT,
            CANNOT_WRITE: "the results or the scratch folder cannot be written",
            BUSY: "another sweep is running on these results",
            130: "stopped by Ctrl-C; the same command continues",
            143: "stopped by SIGTERM or SIGHUP; the same command continues",
        },
    )
    made.add_argument("sweep", help=f"a file in notebooks/sweeps ({names}), report (the quick one here), or status")
    made.add_argument("--budget", default="inf", help="stop between cases after this many seconds")
    made.add_argument("--noisy", metavar="SECONDS", help="then measure noisy cases once more, no longer than this")
    made.add_argument("--dry", action="store_true", help="list the cases, predict memory and duration; run nothing")
    made.add_argument("--stale", action="store_true", help="measure again what other code or another PyTorch measured")
    made.add_argument(
        "--retry", action="store_true", help="measure again what failed, crashed, took too long or got no memory"
    )
    made.add_argument("--shard", default="1/1", metavar="K/N", help="run shard K of N; other processes run the others")
    made.add_argument("--address", metavar="HOST:PORT", help="run on the Ray cluster with this head")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code (see `parser`)."""
    given = parser().parse_args(arguments)
    given.sweep = given.sweep.removesuffix(".yaml")
    given.again = frozenset(kind for option, kinds in AGAIN.items() if getattr(given, option) for kind in kinds)
    if given.sweep == "status":
        statuses = progress.statuses(paths.results())
        return _say("\n".join(map(progress.line, statuses)) or "no sweep has run on these results yet")
    try:
        given.shard = lock.parse(given.shard)
        given.budget, given.noisy = (_parse_seconds(option, getattr(given, option)) for option in ("budget", "noisy"))
        if given.dry:
            return _dry(given)
        paths.refuse_foreign(paths.results())
    except ValueError as error:
        return _say(error, BAD_INPUT)
    try:
        with _stopping_on_signals(), lock.held(given.shard, paths.results()):
            return _supervise(given)
    except Busy as busy:
        return _say(f"busy: {progress.owner(paths.results(), busy.shard)}", BUSY)
    except atomic.CannotWrite as error:
        return _say(error, CANNOT_WRITE)
    except Stopped as stopped:
        return _say("stopped; the same command continues from here", SIGNALS[stopped.number])


def _say(text: object, code: int = 0) -> int:
    """Print a text, to standard error unless `code` is 0; return the code. Ignores a closed pipe."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr if code else sys.stdout, flush=True)
    return code


def _dry(given: argparse.Namespace) -> int:
    from lib.sweep import duration, plan, sweep_file

    name = sweep_file.picked(given.sweep)
    tasks = plan.in_shard(plan.planned(name, dry=True), given.shard)
    lasts = [duration.sentence(tasks, given.again)] if tasks else []
    return _say("\n".join([f"the sweep {name}", plan.dry(tasks), *lasts]))


@contextlib.contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """Raise Stopped at the first signal to stop; signals ignored before (`nohup`) stay ignored."""

    def stop(number: int, _) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    former = {number: signal.getsignal(number) for number in SIGNALS}
    handled = [number for number, handler in former.items() if handler is not signal.SIG_IGN]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in handled:
            if signal.getsignal(number) is stop:  # otherwise it is stopping and ignores further signals
                signal.signal(number, former[number])


@contextlib.contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay signals to stop during the block: an exception would break imports of compiled code."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _supervise(given: argparse.Namespace) -> int:
    with _signals_delayed():
        from lib.records import damaged
        from lib.sweep import plan, supervisor, sweep_file

    os.environ["RESULTS"] = str(paths.results().resolve())
    with contextlib.ExitStack() as stack:
        try:
            given.sweep = sweep_file.picked(given.sweep)
            boxes = stack.enter_context(_boxes(given))
            tasks = list({id(task): task for box in boxes for task in box.tasks}.values())
            for task in tasks:
                paths.within(paths.results(), task.machine, task.experiment)
                paths.within(paths.runs(), task.machine)
        except ValueError as error:
            return _say(error, BAD_INPUT)
        if hardware := sorted({f"{task.environment['hardware']} ({task.device})" for task in tasks}):
            _say(f"measuring on {', '.join(hardware)}: the sweep {given.sweep}")
        damaged.clean_store(given.shard == lock.WHOLE)
        keys = [(task.machine, name) for task in tasks for name in task.todo(given.again)]
        if not keys:
            return _say(f"{given.sweep}: every case has a record; nothing to measure")
        done = sum(len(task.cases) - len(task.unavailable) for task in tasks) - len(keys)
        took_s = {key: plan.earlier_s(key[1]) for key in keys}
        lanes = sum(max(1, len(box.slots)) for box in boxes)
        shown = progress.Progress(paths.results(), given.shard, given.sweep, done, took_s, lanes)
        sweeping, state = supervisor.Supervisor(boxes, shown, given.budget, given.again), "stopped"
        try:
            sweeping.run()
            if given.noisy and not given.address:
                sweeping.run_more(plan.further_rounds(tasks), given.noisy)
            state = "failed" if sweeping.failures else "done"
        finally:
            shown.close(state)
        _say(plan.summary(tasks))
        for failure in sweeping.failures:
            _say(failure, FAILED)
        return _say(f"to retry these: {_retry_command(given)}", FAILED) if sweeping.failures else 0


@contextlib.contextmanager
def _boxes(given: argparse.Namespace) -> Iterator[list]:
    """Yield the boxes that run the sweep: this machine, or the nodes of a cluster."""
    from lib.sweep import plan, supervisor

    if given.address:
        with _signals_delayed():
            from lib.sweep import ray_cluster

        with ray_cluster.boxes(given.address, given.sweep, given.shard) as boxes:
            yield boxes
    else:
        tasks = plan.in_shard(plan.planned(given.sweep), given.shard)
        with supervisor.local(tasks, plan.pins(tasks)) as boxes:
            yield boxes


def _retry_command(given: argparse.Namespace) -> str:
    """Return the command that measures again only what failed."""
    words = [f"{cli.interpreter()} -m lib.sweep {given.sweep} --retry"]
    words += ["--stale"] if given.stale else []
    words += [f"--shard {given.shard}"] if given.shard != lock.WHOLE else []
    words += [f"--address {given.address}"] if given.address else []
    return " ".join(words)


def _parse_seconds(option: str, text: str | None) -> float | None:
    """Parse the seconds of an option; None if it is not given. Raises ValueError."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise ValueError(f"{option}: got {text!r}, expected a positive number of seconds")


if __name__ == "__main__":
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)  # does not wait for threads whose kernels were just killed
