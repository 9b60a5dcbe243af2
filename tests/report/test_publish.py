"""What is published are the records, line by line, and a report that hosting pages show."""

import contextlib
import io
import json
import re
import xml.dom.minidom

import mistune
import nbformat
import pytest

from lib import records
from lib.report import __main__ as command
from lib.report import page
from small_report import CHAPTERS, MACHINE, at

NAMES = ["summary", *CHAPTERS]


@pytest.fixture(scope="module")
def published(report):
    """The folder that publishing wrote, and its exit code."""
    runs = report.folder / "runs" / MACHINE
    # the kernel of warmup died, so that its chapter is the notebook itself
    files = {name: runs / f"{name}.ipynb" for name in NAMES} | {"warmup": report.folder / "notebooks" / "warmup.ipynb"}
    executed = {name: nbformat.read(file, as_version=4) for name, file in files.items()}
    failed = {"precision": "ZeroDivisionError: division by zero"}
    with at(report.folder), pytest.MonkeyPatch.context() as patch:
        # the report's own chapters, which need not run again
        patch.setattr(page, "execute", lambda machines: (executed, failed))
        former = report.folder / "reference" / MACHINE
        (former / "figures").mkdir(parents=True)
        for name in ("adam.jsonl", "step.jsonl", "figures/former-1.svg"):
            (former / name).touch()
        stdout = io.StringIO()
        with contextlib.redirect_stdout(stdout):
            code = command.main(["publish"])
    return former, code, stdout.getvalue().splitlines()


@pytest.fixture(scope="module")
def text(published):
    return (published[0] / "report.md").read_text()


def test_each_record_is_a_line_and_other_experiments_stay(published, in_report):
    lines = (published[0] / "adam.jsonl").read_text().splitlines()
    assert [records.parse(line)["round"] for line in lines] == [1, 2, 3]
    files = sorted((in_report.folder / "results" / MACHINE / "adam").glob("*.json"))
    assert [json.loads(line) for line in lines] == [json.loads(file.read_text()) for file in files]
    assert (published[0] / "step.jsonl").read_text() == ""
    assert published[2][:2] == [
        "3 records of adam", "step.jsonl stays, but report.md does not tell of step: it was not measured here",
    ]  # fmt: skip


def test_a_chapter_that_fails_gives_exit_code_1_and_a_line_in_the_report(published, text):
    assert published[1] == 1
    assert "> **Stopped at an error:** `ZeroDivisionError: division by zero`" in text


def test_the_markdown_has_tables_answers_and_formulas_but_no_code(text):
    assert "| 2,048 | " in text
    assert "| seq len | naive, ms | sdpa, ms | tiled, ms | speedup | verdict | kept, MiB | limit |" in text
    assert "**Fused AdamW is fastest.**" in text
    assert "$T^2$" in text
    assert r"\mathrm{softmax}" in text
    assert not re.search(r"import |<style|<svg|<section|<table|style=|\\operatorname|secret", text)


def test_hosting_pages_read_the_tables_as_tables(text):
    parse = mistune.create_markdown(renderer=None, plugins=["table", "math"])
    tables = [token for token in parse(text) if token["type"] == "table"]
    assert len(tables) == 3
    assert [len(row["children"]) for row in tables[2]["children"][1]["children"]] == [8] * 4


def test_the_contents_lead_to_the_chapters(text):
    links = re.findall(r"^- \[.+\]\(#(.+)\)$", text, re.MULTILINE)
    assert links == NAMES
    assert re.findall(r'<a id="(.+?)">', text) == links
    assert text.index("](#adam)") < text.index("## ")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def test_the_markdown_has_odd_text_and_outputs_too(published, text):
    assert "```\n## a comment\n```" in text
    assert "### 层\n" in text
    assert "$y^2$" in text
    assert "    red\n" in text
    (name,) = re.findall(r"\((figures/.+?jpg)\)", text)
    assert (published[0] / name).read_bytes() == b"\xff\xd8\xff\xe0"


def test_figures_are_files_on_a_ground_of_their_own(published, text):
    folder, *_ = published
    images = re.findall(r"!\[(.+?)\]\((figures/.+?svg)\)", text)
    assert len(images) == 5
    assert sorted(name for _, name in images) == sorted(f"figures/{file.name}" for file in folder.glob("figures/*.svg"))
    for _, name in images:
        drawing = (folder / name).read_text()
        root = xml.dom.minidom.parseString(drawing).documentElement
        assert float(root.getAttribute("width")) > 100
        assert 'fill="#ffffff"/>' in drawing
        assert not re.search(r"var\(|currentColor", drawing)
