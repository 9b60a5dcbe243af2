"""What the tests of sweeps share: the cheap experiment in this process."""

import json
import sys

import pytest

import cheap
from lib import catalog, notebooks, watched
from lib.instruments import environment


@pytest.fixture
def here(cheap_sweep, monkeypatch):
    """Put the cheap experiment in the place of the project's, in this process; returns its sweep."""
    sweep = cheap_sweep("cheap:")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", sweep.folder)
    monkeypatch.setattr(notebooks, "SWEEPS", sweep.folder / "sweeps")
    monkeypatch.setitem(catalog.CATALOG, "cheap", cheap.ENTRY)
    monkeypatch.setitem(sys.modules, "lib.experiments.cheap", cheap)
    monkeypatch.setattr(watched, "digest", lambda experiment: cheap.CODE)
    for name, value in sweep.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CHEAP_ENVIRONMENT", json.dumps(environment.describe("cpu")))
    return sweep
