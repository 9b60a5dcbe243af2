"""What the tests share: a results folder of their own, and records to fill it with."""

import gc
import itertools
import os
import subprocess
import tempfile
from pathlib import Path
from types import MappingProxyType

import pytest

import faults
from browser import chromium, installed_chromium, jupyterlab, rendered  # noqa: F401
from lib.records import code_digest, results
from simulated import Simulated

os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # a process of tests need not try out each instruction set


@pytest.fixture
def one_thread():
    """For operations so small that on a busy machine the threads would mostly wait for one another."""
    import torch  # which most tests do without

    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


@pytest.fixture(scope="session")
def two_ranks():
    """Two ranks that start once, since importing torch takes seconds."""
    from lib.parallel import ranks  # which takes torch

    with ranks.World(2) as world:
        yield world


@pytest.fixture(scope="module")
def forget_graphs():
    """No test finds what those of another file have compiled."""
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def closed_figures():
    """No test leaves a figure open."""
    import matplotlib.pyplot as plt

    yield
    plt.close("all")


@pytest.fixture
def former_precision():
    """What a case sets for the whole process is undone."""
    import torch

    former = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(former)


@pytest.fixture
def own_results(tmp_path, monkeypatch):
    """An empty results folder, used by this process and the kernels it starts."""
    monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def save_record(own_results):
    """Save a record of a made-up machine; fields not given have plain values."""

    def save(
        experiment="attention", case=None, round=1, machine="test-1c", status="ok", code="",
        environment=MappingProxyType({}), started="2026-01-01T00:00:00+00:00", seconds=1.0, **metrics,
    ):  # fmt: skip
        return results.save(
            experiment=experiment, case=case or {"variant": "naive", "seq_len": 64}, round=round, status=status,
            metrics=metrics, environment={"hardware": "a test", "machine": machine} | environment,
            code=code or code_digest.code(experiment), started=started, seconds=seconds,
        )  # fmt: skip

    return save


@pytest.fixture
def save_rounds(save_record):
    """Save three rounds of a case, their metrics from a function of the round and of changes; load them."""

    def save(experiment, case, metrics, **changed):
        for round in (1, 2, 3):
            save_record(experiment, case, round, **metrics(round, **changed))
        return results.load(experiment, "test-1c")

    return save


@pytest.fixture
def save_timed(save_record):
    """Save three rounds of a case that takes `ms`; in pairs with a baseline, and with a plain case, of these times."""

    def save(experiment, case, ms, baseline_ms=None, plain_ms=None, **metrics):
        for round in (1, 2, 3):
            noise = [1 + 0.001 * round + 0.001 * ((i + round) % 4) for i in range(8)]
            times = {"total_ms": ms, "paired_ms": baseline_ms and ms, "baseline_ms": baseline_ms}
            times |= {"plain_paired_ms": plain_ms and ms, "plain_baseline_ms": plain_ms}
            found = {name: [mean * factor for factor in noise] for name, mean in times.items() if mean}
            save_record(experiment, case, round, **found | metrics)
        return results.load(experiment, "test-1c")

    return save


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty folder in the place of the one that git keeps."""
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "reference")
    return tmp_path / "reference"


@pytest.fixture
def keep(kept):
    """Move a record that was saved to where git keeps it."""

    def keep(file):
        target = kept.joinpath(*file.parts[-3:])
        target.parent.mkdir(parents=True, exist_ok=True)
        file.rename(target)

    return keep


@pytest.fixture
def planted(tmp_path, monkeypatch, own_results):
    """Puts a sweep of that name and text where the sweeps are, from which nothing may be run."""
    import jupyter_client  # noqa: F401  # before: it would keep the replacement of Popen for later tests

    from lib import notebooks

    folder = tmp_path / "sweeps"
    folder.mkdir()
    monkeypatch.setattr(notebooks, "SWEEPS", folder)
    for where, name in ((subprocess, "Popen"), (os, "fork"), (os, "posix_spawn"), (os, "system")):
        monkeypatch.setattr(where, name, lambda *_, **__: pytest.fail("a process was started"))

    def plant(name, text):
        file = folder / f"{name}.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return plant


@pytest.fixture
def simulated():
    return Simulated()


@pytest.fixture(scope="module")
def little_garbage():
    """Thousands of measurements each collect garbage first, which is slow while there is much that is none."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_configure(config):
    config.addinivalue_line("markers", "faults(number, what): injects faults of a kind, many of them in `make torture`")
    config.addinivalue_line("markers", "long: takes more than a minute, so runs first")
    config.addinivalue_line("markers", "torture: slow, or random and large; runs in `make torture` alone")


def pytest_collection_modifyitems(config, items):
    """Leave what is marked `torture` to `make torture`, and begin with what is `long`, so that nobody waits for it.

    A test under the mark `faults` has a tally, which travels in its report."""
    left = [item for item in items if item.get_closest_marker("torture") and not faults.TORTURE]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        if mark := item.get_closest_marker("faults"):
            item.stash[TALLY] = faults.Tally(*mark.args)
            item.user_properties.append(("tally", vars(item.stash[TALLY])))


TALLY = pytest.StashKey[faults.Tally]()


@pytest.fixture
def tally(request):
    """The count of the faults that the test injects, under its mark `faults`; any that is lost fails it."""
    return request.node.stash[TALLY]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    """After a test that counts faults, its tally decides."""
    done = yield
    if "tally" in pyfuncitem.funcargs:
        pyfuncitem.funcargs["tally"].check()
    return done


@pytest.fixture
def sweep_of():
    """Makes a sweep of the cheap experiment from the text of its file; it is ended and removed after the test."""
    made = []

    def sweep_of(text):
        # not the test's own folder, whose name is too long for that of a socket
        made.append(faults.Sweep(Path(tempfile.mkdtemp(prefix="s-", dir="/tmp")), text))
        return made[-1]

    yield sweep_of
    for sweep in made:
        sweep.remove()


def pytest_terminal_summary(terminalreporter):
    """The table of `make torture`."""
    ended = (terminalreporter.stats.get(key, []) for key in ("passed", "failed", "skipped"))
    counted = [report for report in itertools.chain(*ended) if "tally" in dict(report.user_properties)]
    if faults.TORTURE and counted:
        terminalreporter.section("faults")
        terminalreporter.write_line(faults.table(counted))
