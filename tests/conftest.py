"""What tests of several folders share."""

import gc
import os

import pytest

import cheap
from lib import records
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
    from lib.parallel import ranks

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
def former_precision():
    """What a case sets for the whole process is undone."""
    import torch

    former = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(former)


@pytest.fixture
def own_results(tmp_path, monkeypatch):
    """An empty results folder, used by this process and the kernels it starts, and no records in git."""
    monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(records, "REFERENCE", tmp_path / "reference")
    return tmp_path / "results"


@pytest.fixture
def save_record(own_results):
    """Save a record of a made-up machine; fields not given have plain values."""

    def save(experiment, case, round=1, machine="test-1c", status="ok", **metrics):
        around = {"hardware": "a test", "machine": machine}
        return records.save(records.create(experiment, case, round, status, metrics, around))

    return save


@pytest.fixture
def cheap_sweep():
    """Make a sweep from the text of its file; it is ended and removed after the test."""
    sweeps = []

    def make(text, **options):
        sweeps.append(cheap.Sweep(text, **options))
        return sweeps[-1]

    yield make
    for sweep in sweeps:
        sweep.remove()


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
