"""What other processes use and how the wall clock steps is in the record, and no duration depends on either."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import timedelta

import pandas as pd
import psutil
import pytest
import torch

from lib.chapters import method
from lib.experiments import measure
from lib.instruments import device, noise
from lib.instruments.device import Cpu
from lib.instruments.noise import CpuSeconds
from lib.paths import ROOT
from lib.records import results
from lib.report import tidy
from plain import one

BUSY_LOOP = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@pytest.mark.parametrize(
    ("after", "percent"),
    [
        (CpuSeconds(110.0, 1020.0, 510.0, 55.0), 25.0),  # of 20 s of two cores 10 busy, 5 of them one's own
        (CpuSeconds(110.0, 1020.0, 505.0, 55.0), 0.0),
        (CpuSeconds(110.0, 1020.0, 504.9, 55.0), 0.0),  # counters are coarse
        (CpuSeconds(110.0, 1020.0, 520.0, 50.0), 100.0),
        (CpuSeconds(100.4, 1001.0, 501.0, 50.0), None),  # too soon
        (CpuSeconds(110.0, 1000.0, 500.0, 50.0), None),  # a system that does not count
    ],
)
def test_the_share_of_others_is_what_is_busy_but_for_ones_own(after, percent):
    assert noise.others_percent(CpuSeconds(100.0, 1000.0, 500.0, 50.0), after) == percent


def seen(seconds, *arguments):
    """The share of others while another process runs for so long, or this one where it has no arguments."""
    before = noise.cpu_seconds()
    process = subprocess.Popen(arguments) if arguments else None
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05 if process else 0)
    after = noise.cpu_seconds()
    if process:
        process.kill()
        process.wait()
    return before, after


def test_the_work_of_a_child_is_ones_own_and_that_of_another_process_is_not():
    before, after = seen(1.2, sys.executable, "-c", BUSY_LOOP)
    spent = after.own - before.own
    assert spent > 0.1
    # the same seconds, had the process been no child of this one
    stranger = replace(after, own=after.own - spent)
    own, others = (noise.others_percent(before, each) for each in (after, stranger))
    assert others - own == pytest.approx(100 * spent / (after.all - before.all), abs=0.2)


def test_a_busy_loop_in_a_process_that_is_no_descendant_is_noticed():
    spawn = f"subprocess.Popen([sys.executable, '-c', {BUSY_LOOP!r}], stdout=subprocess.DEVNULL).pid"
    script = f"import subprocess, sys; print({spawn})"
    started = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    stranger = psutil.Process(int(started.stdout))  # its parent is gone, so that it is nobody's child here
    try:
        before, after = seen(1.5, sys.executable, "-c", "import time; time.sleep(20)")
        assert noise.others_percent(before, after) > 5
        assert stranger.is_running()
    finally:
        stranger.kill()


def recorded(during=lambda: None):
    case = one("ceilings")
    with measure.recording(case, 1):
        during()
    return results.read(measure.record_path(case, 1))


@pytest.mark.faults(11, "the wall clock stepped by an hour")
@pytest.mark.parametrize("hours", [1, -1])
def test_a_step_of_the_wall_clock_is_recorded_and_harms_no_duration(own_results, monkeypatch, hours):
    real = noise.now

    def step():
        monkeypatch.setattr(noise, "now", lambda: real() + timedelta(hours=hours))

    assert "clock_stepped_s" not in recorded()["environment"]
    record = recorded(step)
    assert record["environment"]["clock_stepped_s"] == pytest.approx(3600 * hours, abs=0.5)
    assert 0 < record["seconds"] < 600
    table = method.environments([results.load("ceilings", record["environment"]["machine"])])
    assert "steps of the wall clock, s" in set(table["what"])


@pytest.mark.parametrize(("percent", "said"), [(3.0, ""), (40.0, tidy.NOISY)])
def test_a_record_made_on_a_machine_that_others_use_is_noisy(percent, said):
    record = pd.Series({"noise_probe_ms": [1.0] * 20, "quietest_ms": 1.0, "environment": {"others_percent": percent}})
    assert tidy.disturbances(record) == said


KERNEL = """
import time
from lib.instruments import noise
before = noise.cpu_seconds()
time.sleep(1.0)
after = noise.cpu_seconds()
print(after.busy - before.busy, after.own - before.own)
"""


def test_kernels_that_run_side_by_side_are_no_others_to_each_other():
    """On a node of a cluster only their workers have a parent in common, which is this process here."""
    plain = {name: value for name, value in os.environ.items() if name not in ("SWEEP_RUN", "RAY_RAYLET_PID")}
    command = [sys.executable, "-c", KERNEL]
    worker = ["sh", "-c", '"$@"; true', "worker", *command]
    in_a_sweep, on_a_node = {"SWEEP_RUN": "a run"}, {"SWEEP_RUN": "a run", "RAY_RAYLET_PID": str(os.getpid())}
    sibling = subprocess.Popen([sys.executable, "-c", BUSY_LOOP])
    try:
        kernels = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=plain | told)
            for command, told in ((command, {}), (command, in_a_sweep), (worker, on_a_node))
        ]
        for kernel, together in zip(kernels, (False, True, True), strict=True):
            used, own = map(float, kernel.communicate()[0].split())
            assert (own > 0.1) == together  # what the sibling used, on a busy machine a small part of a core
            assert own <= used + 0.2
    finally:
        sibling.kill()
        sibling.wait()


def test_on_a_gpu_the_probe_warms_up_and_lasts_fifty_milliseconds(monkeypatch):
    class Gpu(Cpu):
        least_s = (0.2, 0.1)

    plans = []
    monkeypatch.setattr(noise.timing, "measure", lambda i, clock, plan: (plans.append(plan), noise.timing.Samples())[1])
    for kind in (Cpu(), Gpu()):
        monkeypatch.setitem(device.KINDS, "cpu", kind)
        noise.probe("cpu")
    assert [(plan.samples, plan.least_s) for plan in plans] == [(10, (0.0, 0.0)), (10, (0.05, 0.05))]


def test_the_probe_takes_ten_times_and_computes_in_single_precision_whatever_the_case_beside_it(
    monkeypatch, former_precision
):
    seen, original = [], torch.mm
    monkeypatch.setattr(
        torch, "mm", lambda *a, **k: (seen.append(torch.get_float32_matmul_precision()), original(*a, **k))[1]
    )
    torch.set_float32_matmul_precision("high")
    times = noise.probe("cpu")
    assert len(times) == 10
    assert min(times) > 0
    assert (set(seen), torch.get_float32_matmul_precision()) == ({"highest"}, "high")
