"""What tests of cases share."""

import pytest

from lib.instruments import noise


@pytest.fixture(autouse=True)
def _undone(former_precision, one_thread):
    """A case's precision and the tests' number of threads are for one test."""


@pytest.fixture
def no_probe(monkeypatch):
    monkeypatch.setattr(noise, "probe", lambda device: [1.0])
