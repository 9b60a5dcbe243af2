"""Make sweeps of the cheap experiment, for the tests of sweeps and of faults."""

import pytest

import cheap


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
