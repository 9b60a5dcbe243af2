"""What other processes use and how the wall clock steps is in the record, and no duration depends on either."""

import contextlib
import subprocess
import sys
import time
from datetime import timedelta

import psutil
import pytest
import torch

from lib.chapters import method
from lib.experiments import measure
from lib.instruments import device, noise
from lib.instruments.device import Cpu
from lib.instruments.noise import CpuSeconds
from lib.records import results
from plain import one

BUSY_LOOP = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


@pytest.mark.parametrize(
    ("after", "percent"),
    [
        (CpuSeconds(110.0, 1020.0, 510.0, 55.0), 25.0),  # of 20 s of two cores 10 busy, 5 of them one's own
        (CpuSeconds(110.0, 1020.0, 504.9, 55.0), 0.0),  # counters are coarse
        (CpuSeconds(110.0, 1020.0, 520.0, 50.0), 100.0),
        (CpuSeconds(100.4, 1001.0, 501.0, 50.0), None),  # too soon
        (CpuSeconds(110.0, 1000.0, 500.0, 50.0), None),  # a system that does not count
    ],
)
def test_the_share_of_others_is_what_is_busy_but_for_ones_own(after, percent):
    assert noise.others_percent(CpuSeconds(100.0, 1000.0, 500.0, 50.0), after) == percent


@contextlib.contextmanager
def stranger():
    """A process that computes and is nobody's child, since its parent is gone."""
    spawn = f"subprocess.Popen([sys.executable, '-c', {BUSY_LOOP!r}], stdout=subprocess.DEVNULL).pid"
    script = f"import subprocess, sys; print({spawn})"
    started = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    process = psutil.Process(int(started.stdout))
    try:
        yield process
    finally:
        process.kill()


@contextlib.contextmanager
def child():
    """A child of this process that computes."""
    with subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


RUN = {"SWEEP_RUN": "a run"}


@pytest.mark.parametrize(
    ("works", "variables", "own"),
    [
        (child, {}, True), (stranger, {}, False),
        (stranger, RUN, True),  # another kernel of the same supervisor, which is the parent
        (stranger, RUN | {"RAY_RAYLET_PID": "{pid}"}, True),  # on a node of a cluster workers have Ray's in common
    ],
)  # fmt: skip
def test_work_is_ones_own_if_a_child_does_it_or_another_kernel_of_the_sweep(monkeypatch, works, variables, own):
    with works() as process:
        for name in ("SWEEP_RUN", "RAY_RAYLET_PID"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value.format(pid=process.pid))
        if len(variables) == 1:
            monkeypatch.setattr(psutil.Process, "ppid", lambda _: process.pid)
        before, begun = noise.cpu_seconds(), process.cpu_times().user
        while (spent := process.cpu_times().user - begun) < 0.3 or time.monotonic() < before.at + noise.LEAST_SECONDS:
            time.sleep(0.05)
        after = noise.cpu_seconds()
    assert after.busy - before.busy > spent - 0.1  # counters are coarse
    assert (after.own - before.own > 0.2) == own
    assert noise.others_percent(before, after) > 0 or own


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
