"""What tests of cases share."""

import pytest

from lib.experiments import on_ranks
from lib.instruments import noise


@pytest.fixture(autouse=True)
def _undone(former_precision, one_thread):
    """A case's precision and the tests' number of threads are for one test."""


@pytest.fixture(scope="module")
def same_ranks(two_ranks):
    """Cases on two ranks take those that all tests share."""
    on_ranks._worlds[2, "gloo"] = two_ranks
    yield
    on_ranks._worlds.clear()


@pytest.fixture
def no_probe(monkeypatch):
    monkeypatch.setattr(noise, "probe", lambda device: [1.0])
