"""Run a sweep, continue it, or show its progress: `python -m lib.sweep NAME`."""

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from lib import notebooks, records
from lib.instruments import device
from lib.sweep import plan, progress, shard, supervise, sweep_file
from lib.sweep.plan import Ledger, Plan
from lib.sweep.progress import Progress
from lib.sweep.shard import Busy, Shard
from lib.sweep.supervise import Box, Supervisor

FAILED = 1
BAD_INPUT = 2
CANNOT_WRITE = 74  # this and the next as in sysexits.h
BUSY = 75
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
EPILOG = """exit codes: 0 measured, or as much as the budget allowed; 1 some case failed, crashed or took too long;
2 bad input, nothing was run; 74 cannot write; 75 another sweep runs on these results; 130, 143 stopped by a signal.
The same command continues."""


def sweep(options: argparse.Namespace, own_shard: Shard) -> int:
    """Measure what a sweep's file asks for and no record has; return the exit code."""
    deadline = None
    if options.budget:
        deadline = time.time() + options.budget
    planned, boxes = _planned(options, own_shard)
    with shard.held(own_shard), supervise.cleared(own_shard.scratch()):
        ledger = Ledger(options.retry, options.stale)
        slots = sum(max(1, len(box.parts)) for box in boxes)
        shown = Progress(options.sweep, own_shard, planned.jobs, ledger, slots)
        stop = threading.Event()
        supervisor = Supervisor(boxes, ledger, shown, deadline, stop)
        state = "ended"
        with _signals_set(stop) as received:
            try:
                supervisor.run(planned.first)
                if shown.seconds:
                    shown.say(f"one case of each experiment: {progress.counted(shown.counts)}; {shown.expected_end()}")
                supervisor.run(planned.jobs)
            finally:
                if received:
                    state = "stopped"
                shown.close(state)
    for line in [*_left_out(planned), *progress.summary(planned.jobs, ledger), *supervisor.troubles]:
        print(line)
    if received:
        print("stopped; the same command continues")
        return SIGNALS[received[0]]
    counts = ledger.counts(planned.jobs)
    has_failed = supervisor.troubles or any(counts[status] for status in progress.BAD)
    if has_failed:
        return FAILED
    return 0


def _planned(options: argparse.Namespace, own_shard: Shard) -> tuple[Plan, list[Box]]:
    """Return the plan and the machines that carry it out: this one, or the nodes of a cluster. Starts no kernel."""
    if options.address:
        from lib.sweep import ray

        return ray.boxes(options.address, options.sweep, options.rounds, own_shard)
    blocks = sweep_file.load(options.sweep, options.rounds)
    missing = device.on("cuda").missing()
    if missing and all(block.needs == "cuda" for block in blocks):
        raise ValueError(f"{options.sweep}.yaml: needs cuda: {missing}; DRY=1 lists the cases")
    pins = plan.pins()
    planned = plan.make(blocks, own_shard, max(1, len(pins)))
    return planned, [supervise.local_box(own_shard.scratch(), pins)]


def _left_out(planned: Plan) -> list[str]:
    lines = []
    for reason, cases in planned.left_out.items():
        lines.append(f"{len(cases)} left out: {reason}")
    return lines


@contextlib.contextmanager
def _signals_set(stop: threading.Event) -> Iterator[list[int]]:
    """Set `stop` at a signal to end, and yield the list of those received; ignored ones (`nohup`) stay ignored."""
    received = []

    def note(number: int, _) -> None:
        received.append(number)
        stop.set()

    former = {}
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            former[number] = signal.signal(number, note)
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def dry(options: argparse.Namespace, own_shard: Shard) -> int:
    """List the cases of a sweep; run nothing."""
    planned = plan.make(sweep_file.load(options.sweep, options.rounds), own_shard)
    print(plan.table(planned).to_string(index=False))
    print(f"{options.sweep}: {progress.counted(Ledger(options.retry, options.stale).counts(planned.jobs))}")
    return 0


def _parser() -> argparse.ArgumentParser:
    names = ", ".join(notebooks.sweeps())
    parser = argparse.ArgumentParser("lib.sweep", description=__doc__, epilog=EPILOG)
    parser.add_argument("sweep", help=f"a file in notebooks/sweeps ({names}), `report` (the quick one here), `status`")
    parser.add_argument("--rounds", type=int, help="measure each case in so many processes, and only what is missing")
    parser.add_argument("--budget", type=float, help="end between cases after so many seconds")
    parser.add_argument("--shard", default="1/1", help="k/n: measure the k-th of n shares")
    parser.add_argument("--address", default="", help="host:port: measure on the Ray cluster with this head")
    parser.add_argument("--retry", action="store_true", help="repeat what ended badly or without memory")
    parser.add_argument("--stale", action="store_true", help="measure again also what another PyTorch measured")
    parser.add_argument("--dry", action="store_true", help="list the cases and run nothing")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    options = _parser().parse_args(arguments)
    options.sweep = options.sweep.removesuffix(".yaml")
    try:
        if options.sweep == "status":
            print("\n".join(progress.statuses()))
            return 0
        if options.sweep == "report":
            options.sweep = "quick" if device.on("cuda").missing() else "quick-gpu"
        own_shard = shard.parse(options.shard)
        for name in ("rounds", "budget"):
            value = getattr(options, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}: got {value:g}, expected a positive number")
        if options.dry:
            return dry(options, own_shard)
        return sweep(options, own_shard)
    except ValueError as error:
        return _refuse(error, BAD_INPUT)
    except records.CannotWrite as error:
        return _refuse(error, CANNOT_WRITE)
    except Busy as error:
        return _refuse(error, BUSY)
    except KeyboardInterrupt:
        return SIGNALS[signal.SIGINT]


def _refuse(error: Exception, code: int) -> int:
    """Print why nothing more is done, and return the exit code."""
    print(error, file=sys.stderr)
    return code


if __name__ == "__main__":
    exit_code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # does not wait for threads whose kernels were just killed
    os._exit(exit_code)
