"""The page is rendered again only for something new, whatever that is."""

import os

import pytest

from lib import paths, records, sources
from lib.report import page
from small_report import MACHINE, at, record, write_notebook


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of a report, whose page was rendered without executing its notebooks."""
    folder = tmp_path_factory.mktemp("new")
    write_notebook(folder / "notebooks" / "step.ipynb", [("# Steps", "")])
    with at(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "execute", lambda machines: ({}, {}))
        records.save(record(round=1, probe=1.0))
        page.render([MACHINE])
        yield folder


def test_where_nothing_is_new_the_page_is_not_rendered_again(folder, capsys, monkeypatch):
    before = (folder / "report.html").stat()
    for file in (folder / "results").rglob("*.json"):
        # as if unpacked a moment ago
        os.utime(file)
    records.save(record(round=0, probe=1.0))
    assert sources.main() == 0
    assert capsys.readouterr().out.split(": ") == [
        "nothing is new since this page was rendered", f"{folder / 'report.html'}\n",
    ]  # fmt: skip
    assert (folder / "report.html").stat() == before


def test_what_is_new_or_without_any_record_makes_the_page_out_of_date(folder, tmp_path, monkeypatch):
    second = records.save(record(round=2, probe=1.0))
    assert sources.main() == 1
    second.unlink()
    assert sources.main() == 0
    monkeypatch.setenv("RESULTS", str(tmp_path))
    monkeypatch.setattr(records, "REFERENCE", tmp_path)
    assert sources.main() == 1


def test_whatever_a_page_is_rendered_from_changes_its_digest(folder, tmp_path, monkeypatch):
    digests = [sources.of_page(folder / "report.html"), sources.digest([MACHINE, "other-2c"])]
    second = records.save(record(round=2, probe=1.0))
    digests.append(sources.digest([MACHINE]))
    second.unlink()
    assert sources.digest([MACHINE]) == digests[0]
    (folder / "notebooks" / "step.ipynb").write_text("{}")
    digests.append(sources.digest([MACHINE]))
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    (tmp_path / "lib" / "report").mkdir(parents=True)
    for text in ("x = 1", "x = 2"):
        (tmp_path / "lib" / "report" / "show.py").write_text(text)
        digests.append(sources.digest([MACHINE]))
    assert len(set(digests)) == len(digests)
