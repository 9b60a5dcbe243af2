"""A stored report is what its records give, and where it is not, the chapter and the words are named."""

import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lib import notebooks
from lib.records import code_digest, results, staleness
from lib.report import __main__
from lib.report.document import page, page_diff

PAGE = """<html><head><meta name="inputs" content="{digest}"><meta name="machines" content="test-1c other-2c"></head>
<section id="01_method"><h2>Method</h2><p>A step takes {step} ms.</p>
<figure class="plot"><svg><path d="M {path} 0"></path><text>1</text></svg><figcaption><b class="label">Figure 1.</b>
Times.</figcaption></figure></section>
<section id="02_step"><p>Nothing.</p><figure class="table"><figcaption><b class="label">Table 1.</b> All.</figcaption>
<table><tr><td>naive</td><td>{cell}</td></tr></table></figure></section><p>End.</p></html>"""
PLAIN = {"digest": "a1", "step": "2.5", "path": "3", "cell": "7.5"}


def page_of(**changed):
    return PAGE.format(**PLAIN | changed)


def test_a_page_of_which_only_the_digest_changed_still_follows():
    assert page_diff.difference(page_of(), page_of(digest="b2")) == ""
    assert page_diff.machines(page_of()) == ["test-1c", "other-2c"]


@pytest.mark.parametrize(
    ("changed", "chapter", "said"),
    [
        ({"step": "2.6"}, "01_method", "-A step takes 2.5 ms.\n+A step takes 2.6 ms."),
        ({"path": "4"}, "01_method", "-1 Figure 1. Times. [drawn "),
        ({"cell": "7.6"}, "02_step", "-naive 7.5\n+naive 7.6"),
    ],
)
def test_what_differs_is_shown_below_its_chapter(changed, chapter, said):
    found = page_diff.difference(page_of(), page_of(**changed))
    assert found.startswith(f"--- stored {chapter}\n+++ now {chapter}\n@@")
    assert found.count("---") == 1
    assert said in found


def test_any_single_digit_counts():
    whole = page_of()
    for digit in re.finditer(r"\d", whole.split("</head>")[1]):
        at = digit.start() + whole.index("</head>") + len("</head>")
        changed = whole[:at] + str((int(whole[at]) + 1) % 10) + whole[at + 1 :]
        assert page_diff.difference(changed, whole), whole[at - 9 :]


def test_of_many_differences_the_first_are_shown():
    stored, now = (page_of(cell="".join(f"<li>{i * factor}" for i in range(1, 99))) for factor in (1, 1000))
    assert re.search(r"\n\.\.\. and \d+ more lines$", page_diff.difference(stored, now))


def test_a_chapter_that_only_one_page_has_is_named():
    shorter = re.sub(r'<section id="02.*</section>', "", page_of(), flags=re.DOTALL)
    assert "+++ now 02_step\n@@ -0,0" in page_diff.difference(shorter, page_of())
    assert "--- stored 02_step" in page_diff.difference(page_of(), shorter)


@pytest.fixture
def rendered(tmp_path, monkeypatch, own_results):
    """A report of one chapter, which prints a number and draws a figure of one record."""
    kept = results.read(min(results.REFERENCE.glob("*/attention/*.r1.json")))
    record = {name: value for name, value in kept.items() if name not in ("schema", "checksum")}
    around = kept["environment"] | {"machine": "test-1c", "torch": staleness.installed()}
    record |= {"environment": around, "code": code_digest.code("attention")}
    results.save(**record)
    cells = [
        new_code_cell("machine = 'test-1c'", metadata={"tags": ["parameters"]}),
        new_markdown_cell("# One chapter"),
        new_code_cell(
            "from lib.records import results\nfrom lib.report import plots, sentences, tidy\n"
            "records = results.load('attention', machine)\n"
            "sentences.values(records, {}, 'It takes {} ms.', 'total_ms')"
        ),
        new_code_cell(
            "times = tidy.medians(records, 'total_ms')\n"
            "plots.show(plots.lines(*plots.axes(), times, 'seq_len', 'total_ms', 'variant'), 'Time.', 'A line', times)"
        ),
    ]
    nbformat.write(new_notebook(cells=cells, metadata={"language_info": {"name": "python"}}), tmp_path / "01_one.ipynb")
    monkeypatch.setattr(notebooks, "CHAPTERS", tmp_path)
    assert __main__.main(["--machine", "test-1c"]) == 0
    return record


def test_the_check_fails_once_a_record_has_changed(rendered, capsys):
    assert "It takes " in page.page().read_text()
    assert __main__.main(["--check"]) == 0
    assert "is up to date" in capsys.readouterr().out
    metrics = rendered["metrics"]
    results.save(**rendered | {"metrics": metrics | {"total_ms": [2 * ms for ms in metrics["total_ms"]]}})
    before = page.page().read_text()
    assert __main__.main(["--check"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"\+\+\+ now 01_one\n(.*\n)+-It takes [\d.,]+ .*\n(.*\n)*\+It takes [\d.,]+ ", said)
    assert "does not match its records" in said
    assert page.page().read_text() == before


def test_there_must_be_a_report_to_check(own_results, capsys):
    assert __main__.main(["--check"]) == 1
    assert "no report to check" in capsys.readouterr().err
