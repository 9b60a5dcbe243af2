"""What the tests of the page share: a report of a few small notebooks, rendered once."""

from types import SimpleNamespace

import nbformat
import pytest

import small_report
from browser import chromium, installed_chromium  # noqa: F401
from lib import records
from lib.report import answers, page


@pytest.fixture
def displayed(monkeypatch):
    """The outputs that answers and figures have displayed, as a notebook would keep them."""
    outputs = []

    def display(data, raw, metadata):
        outputs.append(nbformat.v4.new_output("display_data", data, metadata=metadata))

    monkeypatch.setattr(answers, "display", display)
    return outputs


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """A rendered report: its `folder`, its page as `text`, and the chapters that `failed`. One chapter does."""
    folder = tmp_path_factory.mktemp("report")
    for name, cells in small_report.CHAPTERS.items():
        small_report.write_notebook(folder / "notebooks" / f"{name}.ipynb", cells)
    small_report.write_notebook(folder / "notebooks" / "precision.ipynb", small_report.FAILING)
    with small_report.at(folder):
        for number in (1, 2, 3):
            records.save(small_report.record(round=number, probe=2.0 if number == 3 else 1.0))
        failed = page.render([small_report.MACHINE])
        text = page.target().read_text()
    return SimpleNamespace(folder=folder, text=text, failed=failed, file=folder / "report.html")


@pytest.fixture
def in_report(report):
    """The report's folders in place of the repository's."""
    with small_report.at(report.folder):
        yield report


@pytest.fixture
def one_chapter(tmp_path):
    """A folder with a notebook that works, and one record."""
    with small_report.at(tmp_path):
        cells = [("# The optimizer\n\nWhich?", ""), ("", "machine = ''", "parameters"), ("", "print(machine)")]
        small_report.write_notebook(tmp_path / "notebooks" / "adam.ipynb", cells)
        records.save(small_report.record())
        yield tmp_path
