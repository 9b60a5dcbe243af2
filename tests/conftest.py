"""What the tests share: a results folder of their own, and records to fill it with."""

import gc
from types import MappingProxyType

import pytest
from browser import chromium, installed_chromium, jupyterlab, rendered  # noqa: F401
from simulated import Simulated

from lib import digest, results


@pytest.fixture
def one_thread():
    """For operations so small that on a busy machine the threads would mostly wait for one another."""
    import torch  # which most tests do without

    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


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
        environment=MappingProxyType({}), started="2026-01-01T00:00:00+00:00", **metrics,
    ):  # fmt: skip
        return results.save(
            machine=machine, experiment=experiment, case=case or {"variant": "naive", "seq_len": 64}, round=round,
            status=status, metrics=metrics, environment={"hardware": "a test", "machine": machine} | environment,
            code=code or digest.code(experiment), started=started, seconds=1.0,
        )  # fmt: skip

    return save


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
