"""What tests of cases share."""

import pytest


@pytest.fixture(autouse=True)
def _undone(former_precision, one_thread):
    """A case's precision and the tests' number of threads are for one test."""
