"""The page is the executed notebooks, in order, without what a reader does not need, and loads nothing."""

import copy
import re

import bs4
import pandas as pd
import pytest

import small_report
from lib import records, sources, watched
from lib.report import __main__ as command
from lib.report import answers, page
from small_report import MACHINE


@pytest.fixture(scope="module")
def parsed(report):
    return bs4.BeautifulSoup(report.text, "html.parser")


def section(parsed, name) -> bs4.Tag:
    return parsed.find("section", id=name)


def texts(tag, selector) -> list[str]:
    """Return the texts of what a CSS selector finds."""
    return [found.get_text() for found in tag.select(selector)]


def test_chapters_stand_in_their_order_and_the_summary_first(parsed):
    names = ["summary", "step", "kernels", "attention", "adam", "precision", "warmup", "published", "method"]
    assert [section.get("id") for section in parsed.find_all("section")] == names
    assert [link.get("href").removeprefix("#") for link in parsed.select("nav > div a")] == names


def test_the_summary_quotes_the_answers_and_figures_of_the_others_and_leaves_out_what_is_missing(parsed):
    summary = section(parsed, "summary")
    lines = {label.get_text(): text.get_text() for label, text in map(bs4.Tag.find_all, summary.select("tbody tr"))}
    for label, chapter in {"time, alone": "step", "attention": "attention", "optimizer": "adam"}.items():
        assert lines.pop(label) == section(parsed, chapter).select_one(".answer").get_text(strip=True)
    assert lines == {}
    original = section(parsed, "step").find("svg")
    assert summary.find("svg")["aria-label"] == original["aria-label"]
    assert summary.find("svg").get_text() == original.get_text()


@pytest.mark.usefixtures("in_report")
def test_the_answers_of_the_last_report_are_kept_and_loaded():
    loaded = answers.load(MACHINE)
    assert set(loaded) == {"step", "attention", "adam", "adam_ms", "figure:ladder", "figure:lengths"}
    assert loaded["adam_ms"] == "4.2"
    assert answers.load() == loaded
    assert answers.load("plain-3c") == {}


def test_ids_are_unique_and_those_of_headings_name_their_chapter(parsed):
    ids = [tag["id"] for tag in parsed.find_all(id=True)]
    assert len(ids) == len(set(ids))
    assert parsed.find("h2", id="attention-attention")
    assert parsed.find("h3", id="attention-predict")
    fragments = {link["href"][1:] for link in parsed.select("a[href^='#']")}
    assert fragments <= set(ids)


def texts_of(section):
    """Return the texts of a chapter in their order, without the code."""
    shown = copy.copy(section)
    for fold in shown.select("details.code"):
        fold.decompose()
    return list(shown.stripped_strings)


def test_a_chapter_has_its_own_order_and_no_plain_table(parsed):
    assert texts_of(section(parsed, "adam")) == [
        "The optimizer", "Which AdamW is fastest?", "bf16 on this machine: not measured by this sweep", "Nothing yet",
        "Fused AdamW is fastest.", "adam/fused.r1.json: skipped: checksum",
    ]  # fmt: skip


def test_a_chapter_without_any_record_is_its_question_and_one_line(parsed):
    assert texts_of(section(parsed, "kernels")) == ["Kernels", "Which ones run?", "Not measured by this sweep."]


def test_code_is_folded_but_that_of_parameters_and_measuring_is_not_shown(parsed):
    attention = section(parsed, "attention")
    assert "secret-measure-code" not in attention.get_text()
    code = " ".join(texts(attention, "details.code"))
    assert "from lib.report import plots" in code
    assert "report.figure(" in code
    assert 'variant = "naive"' not in attention.get_text()
    assert "whoever runs this" not in section(parsed, "step").get_text()


def test_details_are_folded(parsed):
    fold = section(parsed, "step").select_one("details.detail")
    assert "for who wants to know" in fold.get_text()
    assert fold.find("svg")
    assert not section(parsed, "step").find(re.compile("h[1-6]"), string="In detail")


def test_warnings_and_what_is_missing_are_lines_said_once_below_the_answer_and_progress_does_not_appear(parsed):
    lines = [(line.find_parent("section")["id"], line.get_text()) for line in parsed.select("p.missing")]
    assert lines == [
        ("summary", "With switches on: not measured by this sweep"),
        ("summary", "What to switch on: gains over the rung before, and prices: not measured by this sweep"),
        ("kernels", "Not measured by this sweep."),
        ("attention", "bf16 on this machine: not measured by this sweep"),
        ("adam", "bf16 on this machine: not measured by this sweep"),
        ("adam", "adam/fused.r1.json: skipped: checksum"),
    ]
    assert re.search("sdpa is.*Predict.*not measured by", section(parsed, "attention").get_text(), re.DOTALL)
    assert not section(parsed, "adam").select("pre:not(details pre)")


def test_a_chapter_that_fails_is_a_box_and_the_page_goes_on(report, parsed):
    boxes = {box.find_parent("section")["id"]: box.get_text() for box in parsed.select(".failed")}
    assert list(boxes) == ["precision", "warmup", "published"]
    assert "ZeroDivisionError: division by zero" in boxes["precision"]
    assert "Kernel died" in boxes["warmup"]
    assert "published.ipynb: cannot be read: NotJSONError" in boxes["published"]
    assert "Never reached." in section(parsed, "precision").get_text()
    assert MACHINE in section(parsed, "method").get_text()
    assert report.exit_code == 1
    # such a page is never up to date
    assert sources.of_page(report.file) == ""
    assert [line.partition(":")[0] for line in report.stderr] == ["precision", "warmup", "published"]


def test_formulas_are_mathml_and_figures_inline_svg(parsed):
    attention = section(parsed, "attention")
    assert len(attention.select(".formula math")) == 2
    short, long = attention.select("p > math")
    assert long["tabindex"] == "0"  # it scrolls on a phone
    assert not short.has_attr("tabindex")
    assert "$" not in "".join(texts(attention, "p, .formula"))
    drawn = parsed.select("figure.plot svg")
    assert len(drawn) == 5
    for svg in drawn:
        assert len(svg["aria-label"]) > 10
        assert svg["role"] == "img"


def test_a_chapters_odd_text_is_shown_and_takes_nothing_else_away(parsed):
    method = section(parsed, "method")
    assert method.pre.get_text() == "## a comment\n"
    assert texts(method, "p > code, .formula > code") == [r"\frac{1}{", "x_{a}_{b}", r"\left( x"]
    assert [heading["id"] for heading in method.select("h3")] == ["method-层"]


def test_outputs_of_any_kind_are_shown_without_escapes(parsed):
    method = section(parsed, "method")
    assert method.img["src"].startswith("data:image/jpeg;base64,/9j/4")
    assert method.select("div.cell math")
    assert "red" in texts(method, "pre")


def test_nothing_is_loaded(report, parsed):
    loading = parsed.select("link[href], script[src], img[src], iframe, object, embed, [data-src], source, use")
    addresses = [tag.get("href") or tag.get("src") or tag.get("xlink:href") for tag in loading]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"@import|url\((?!#)", report.text)


def test_the_head_names_hardware_date_and_pytorch_and_counts_noise(parsed):
    head = parsed.find("header").get_text(" ")
    assert small_report.HARDWARE in head
    assert "24 November 2026, noise beside 1 of 3 records" in head
    assert "PyTorch 2.13.0" in head
    assert "Most noise probes" not in head
    assert "stale" not in head


@pytest.mark.usefixtures("in_report")
def test_the_head_tells_of_older_code_and_once_that_most_noise_probes_were_bad(monkeypatch):
    monkeypatch.setattr(watched, "digest", lambda experiment: "of today")
    monkeypatch.setattr(page.noise, "find_noisy", lambda frame: frame.index > 0)
    assert page.facts(MACHINE)["warnings"] == [
        "3 of 3 records are stale: older code measured them.",
        "Most noise probes were slow or unsteady, so times may be high: measure again when the machine is quiet.",
    ]


@pytest.mark.usefixtures("in_report")
def test_the_head_counts_noise_as_the_tables_do_beside_records_of_the_same_experiment(monkeypatch):
    quiet = records.load("adam", MACHINE).assign(noise_probe_ms=[[1.0] * 8] * 3)
    slower = pd.concat([quiet] * 2).assign(noise_probe_ms=[[2.0] * 8] * 6)
    monkeypatch.setattr(records, "load", lambda experiment, machine: quiet if experiment == "adam" else slower)
    facts = page.facts(MACHINE)
    assert facts["warnings"] == []
    assert facts["measured"].endswith("noise beside 0 of 9 records")


@pytest.mark.usefixtures("in_report")
def test_a_page_of_records_that_git_keeps_says_so(monkeypatch):
    written = {}
    monkeypatch.setattr(page, "execute", lambda machines: ({}, {}))
    monkeypatch.setattr(page, "facts", lambda machine: {"warnings": [], "hardware": small_report.HARDWARE})
    monkeypatch.setattr(records, "is_in_git", lambda machine: True)
    monkeypatch.setattr(records, "write", lambda file, text: written.update({file.name: text}))
    page.render([MACHINE])
    assert f"These are stored records of {MACHINE}: nothing was measured here." in written["report.html"]


@pytest.mark.usefixtures("in_report")
def test_bad_input_is_one_line_and_exit_code_2(capsys):
    assert command.main(["--machine", "plain-3c"]) == 2
    assert capsys.readouterr().err == "machine: got 'plain-3c', expected one of plain-2c (nearest: plain-2c)\n"


@pytest.mark.usefixtures("own_results")
def test_without_records_it_says_what_to_do(capsys):
    assert command.main([]) == 2
    assert "make report" in capsys.readouterr().err
