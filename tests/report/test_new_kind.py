"""Chapters of the new kind stand on the page as they are written, which is rendered again only for something new."""

import os

import bs4
import pytest

import small_report
from lib import paths, records, sources
from lib.report import page
from small_report import MACHINE, at, record, write_notebook

TITLE = ("# Steps\n\nHow long are they?", "")
PARAMETERS = ("", 'machine = ""', "parameters")
EMPTY = ("", "report.show(table.iloc[:0], 'By length')")
MEASURE = """
from lib import records as stored
from lib import report

records = stored.load("{name}", machine)
records
"""
TABLE = ("", "table = report.table(records)\ntable", "notebook-only")
CHAPTERS = {
    "adam": [
        TITLE, PARAMETERS, ("", MEASURE.format(name="adam"), "measure"), TABLE, EMPTY, ("## Nothing yet", ""), EMPTY,
        ("", "report.answer('adam', f'It takes {report.ms(table.iloc[0], \"total\")}.')"),
        ("## More", ""), ("", "report.show(table.iloc[:0], 'By width')"),
    ],
    "step": [
        TITLE, ("- Change it.", "", "by-hand"), PARAMETERS, ("", MEASURE.format(name="step"), "measure"), TABLE,
        ("## Never reached", ""), ("", "1 / 0"),
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of a report with two chapters, of which the second has no records, and the page."""
    folder = tmp_path_factory.mktemp("new")
    for name, cells in CHAPTERS.items():
        write_notebook(folder / "notebooks" / f"{name}.ipynb", cells)
    with at(folder), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "CATALOG", ["adam", "step"])
        records.save(record(round=1, probe=1.0))
        assert page.render([MACHINE]) == {}
        yield folder


@pytest.fixture
def parsed(folder):
    return bs4.BeautifulSoup((folder / "report.html").read_text(), "html.parser")


def texts(parsed, chapter):
    """Return the texts of a chapter's blocks in their order, without the code."""
    section = parsed.find("section", id=chapter)
    for fold in section.select("details.code"):
        fold.decompose()
    return [text.strip() for text in section.stripped_strings]


def test_a_chapter_has_its_own_order_and_each_line_once_and_no_plain_table(parsed):
    assert texts(parsed, "adam") == [
        "Steps", "How long are they?", "By length: not measured by this sweep", "Nothing yet",
        "It takes 2.00 ms.", "More", "By width: not measured by this sweep",
    ]  # fmt: skip


def test_a_chapter_without_any_record_is_its_question_and_one_line(parsed):
    assert texts(parsed, "step") == ["Steps", "How long are they?", "Not measured by this sweep."]


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


def test_a_page_with_a_failed_chapter_is_never_up_to_date(report):
    assert report.exit_code == 1
    assert sources.of_page(report.file) == ""


def test_a_page_of_records_that_git_keeps_says_so(folder, monkeypatch):
    written = {}
    monkeypatch.setattr(page, "execute", lambda machines: ({}, {}))
    monkeypatch.setattr(records, "is_in_git", lambda machine: machine == MACHINE)
    monkeypatch.setattr(page, "facts", lambda machine: {"warnings": [], "hardware": small_report.HARDWARE})
    monkeypatch.setattr(records, "write", lambda file, text: written.update({file.name: text}))
    page.render([MACHINE])
    assert f"These are stored records of {MACHINE}: nothing was measured here." in written["report.html"]
