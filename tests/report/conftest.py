"""What the tests of the page share: a report of a few small notebooks, rendered once, and a browser."""

import contextlib
import functools
import io
import shutil
from types import SimpleNamespace

import pytest

import small_report
from lib import catalog, notebooks, records
from lib.report import __main__ as command
from lib.report.table import table


@pytest.fixture(scope="session")
def reference():
    """The records kept in git, by experiment."""
    loaded = {}
    for experiment in catalog.CATALOG:
        loaded[experiment] = records.load(experiment, "xeon-2c-0e51")
    return loaded


@pytest.fixture(scope="session")
def reference_table(reference):
    """Return the table of an experiment's records in git, which is made once."""
    return functools.cache(lambda experiment: table(reference[experiment]))


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A rendered report: its `folder`, `file`, `text`, `exit_code` and lines of `stderr`. Three chapters fail."""
    folder = tmp_path_factory.mktemp("report")
    for name, cells in small_report.CHAPTERS.items():
        small_report.write_notebook(folder / "notebooks" / f"{name}.ipynb", cells)
    shutil.copy(notebooks.NOTEBOOKS / "summary.ipynb", folder / "notebooks")
    # a conflict is no notebook
    (folder / "notebooks" / "published.ipynb").write_text("<<<<<<< HEAD")
    stderr = io.StringIO()
    with small_report.at(folder):
        for number in (1, 2, 3):
            records.save(small_report.record(round=number, probe=2.0 if number == 3 else 1.0))
        with contextlib.redirect_stderr(stderr):
            exit_code = command.main(["--machine", small_report.MACHINE])
    file = folder / "report.html"
    return SimpleNamespace(
        folder=folder, file=file, text=file.read_text(), exit_code=exit_code, stderr=stderr.getvalue().splitlines()
    )


@pytest.fixture(scope="session")
def installed_chromium():
    return command.browser() or pytest.skip("there is no Chromium; `make .venv/browser` installs one where it can")


@pytest.fixture(scope="module")
def chromium(installed_chromium):
    """A running Chromium without a window; it ends with the module, since its event loop is in the way of kernels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def in_report(report):
    """The report's folders in place of the repository's."""
    with small_report.at(report.folder):
        yield report
