"""Run a sweep, continue it, or show its progress: `python -m lib.sweep NAME`."""

import argparse
import contextlib
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence

from lib import notebooks, validate
from lib.instruments import device
from lib.sweep import kernel, plan, progress, shard, supervise, sweep_file
from lib.sweep.ledger import Ledger
from lib.sweep.plan import Plan
from lib.sweep.progress import Progress
from lib.sweep.shard import Busy
from lib.sweep.supervise import Supervisor

FAILED = 1
BAD_INPUT = 2
IO_ERROR = 74  # this and the next as in sysexits.h
BUSY = 75
NO_READER = 141  # nobody reads what it prints; shells give this code
WORDS = ("report", "status")  # commands, which no sweep may be called
SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}


def sweep(options: argparse.Namespace) -> int:
    """Measure what a sweep's file asks for and no record has; return the exit code."""
    validate.at_least("budget", options.budget, 1)
    deadline = time.monotonic() + options.budget
    own_shard = shard.parse(options.shard)
    blocks = sweep_file.load(options.sweep, options.rounds)
    gpus = plan.pins()
    planned = plan.make(blocks, own_shard, max(1, len(gpus)))
    if options.dry:
        ledger = Ledger(planned.jobs, options.retry, options.stale)
        for label, statuses in ledger.statuses.items():
            print(f"{label}: {' '.join(statuses.values())}")
        for label, reason in planned.left_out.items():
            print(f"{label}: left out: {reason}")
        print(f"{options.sweep}: {progress.describe(ledger.counts())}")
        return 0
    missing = device.on("cuda").missing()
    if missing and all(block.options.needs == "cuda" for block in blocks):
        raise ValueError(f"{options.sweep}.yaml: needs cuda: {missing}; DRY=1 lists the cases")
    boxes = supervise.local_boxes(own_shard.scratch(), gpus)
    if options.address:
        # an optional package, which takes long to import
        from lib.sweep import ray

        boxes = ray.connect(options.address)
    received = _catch_signals()
    with shard.hold(own_shard):
        # what a killed supervisor has left
        kernel.clear(own_shard.scratch())
        # nodes of a cluster may yet come
        slots = max(1, sum(max(1, len(box.parts)) for box in boxes()))
        # read under the lock: until then another sweep may make these records
        ledger = Ledger(planned.jobs, options.retry, options.stale)
        shown = Progress(options.sweep, own_shard, ledger, slots)
        supervisor = Supervisor(boxes, shown, deadline, received)
        try:
            supervisor.run(planned.first)
            # the pace counts from here, even if a small case could not begin; a line has said so
            if not received and time.monotonic() <= deadline:
                shown.ends_first()
            supervisor.run(planned.jobs)
        finally:
            kernel.clear(own_shard.scratch())
            shown.close("stopped" if received else "ended")
    return _end(planned, ledger, supervisor.troubles, received)


def _end(planned: Plan, ledger: Ledger, troubles: list[str], received: list[int]) -> int:
    """Print the last lines, and return the exit code."""
    for reason, cases in Counter(planned.left_out.values()).items():
        print(f"{cases} left out: {reason}")
    counts = ledger.counts()
    print(progress.describe(counts), *troubles, sep="\n")
    if received:
        print("stopped; the same command continues")
        return SIGNALS[received[0]]
    if troubles or any(counts[status] for status in progress.BAD):
        return FAILED
    return 0


def _catch_signals() -> list[int]:
    """Catch the signals to end, and return a list that gets them; ignored ones (`nohup`) stay so."""
    received = []
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: received.append(number))
    return received


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    names = ", ".join(notebooks.sweeps())
    codes = "notebooks/sweeps/README.md lists the exit codes; the same command continues a sweep"
    parser = argparse.ArgumentParser("lib.sweep", description=__doc__, epilog=codes)
    parser.add_argument("sweep", help=f"a file in notebooks/sweeps ({names}), `report` (the quick one here), `status`")
    parser.add_argument("--rounds", type=int, help="processes for each case; a block that says `rounds: 1` keeps it")
    parser.add_argument("--budget", type=float, default=math.inf, help="end between cases after so many seconds")
    parser.add_argument("--shard", default="1/1", help="k/n: measure the k-th of n shares")
    parser.add_argument("--address", default="", help="host:port: measure on the Ray cluster with this head")
    parser.add_argument("--retry", action="store_true", help="repeat what ended badly or without memory")
    parser.add_argument("--stale", action="store_true", help="repeat also what another PyTorch measured")
    parser.add_argument("--dry", action="store_true", help="list the cases and run nothing")
    options = parser.parse_args(arguments)
    options.sweep = options.sweep.removesuffix(".yaml")
    try:
        if options.sweep in WORDS and options.sweep in notebooks.sweeps():
            raise ValueError(f"{options.sweep}.yaml: got a name that is a command, expected another one")
        if options.sweep == "status":
            print("\n".join(progress.statuses()))
            return 0
        if options.sweep == "report":
            options.sweep = "quick" if device.on("cuda").missing() else "quick-gpu"
        return sweep(options)
    except BrokenPipeError:
        return NO_READER
    except (ValueError, OSError, Busy) as error:
        print(error, file=sys.stderr)
        if isinstance(error, OSError):
            return IO_ERROR
        if isinstance(error, Busy):
            return BUSY
        return BAD_INPUT


if __name__ == "__main__":
    # without a standard output, as after `>&-`, a file would take its number
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    exit_code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    # does not wait for threads whose kernels were just killed
    os._exit(exit_code)
