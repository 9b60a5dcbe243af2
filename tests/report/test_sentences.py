"""Every number in a sentence of the report is computed or names the case, and what was measured names its records."""

import re

import pytest

from executed import OF_OTHERS, shown, sources
from lib import notebooks
from lib.records import results
from lib.report import sentences, tidy
from lib.report.hypotheses import NOT_MEASURED
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement
from lib.report.tables import Table
from reference import MACHINE
from said import NUMERAL, said_in
from two_variants import CASE

CHAPTERS = sorted(notebooks.CHAPTERS.glob("*.ipynb"))
# a value and its unit; percentages of a test's level are the method's
MEASURED = re.compile(
    r"\d[\d.,]*(?:\s|&nbsp;|\\,)*"
    r"(?:[µumn]s|s|seconds?|minutes?|hours?|[kKMGT]i?B(?:/s)?|[kMGT]?FLOPs?(?:/s)?|[kMG]?Hz|[×x]|times)(?![\w-])"
)
WRITE_UPS = {"000", "001", "002", "003", "004"}  # what the report calls its sources
WITHOUT_RECORDS = ("derived", "published", NO_DATA)
NEED_NONE = {  # so many tables, figures and lists of a chapter are shown without records, as theory or published
    "01": 3, "03": 1, "04": 3, "05": 3, "06": 2, "07": 1, "08": 1, "09": 2, "10": 3, "11": 3, "12": 2, "13": 4,
    "81": 1, "82": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def known():
    """The numerals that a sentence may take over: names, versions, and what published tables and the machine say."""
    steps, versions = published_table("end_to_end"), results.load("peers", MACHINE)["peer_version"].dropna()
    records = (results.read(file) for file in results.files(MACHINE))
    lacks = [text for record in records for text in record["environment"].get("lacks", [])]
    texts = {*versions, *lacks, *steps["hardware"], *steps["model"]}
    return WRITE_UPS | {numeral for text in texts for numeral in NUMERAL.findall(text)}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda file: file.stem)
def test_every_numeral_is_computed_and_what_was_measured_names_its_records(own_results, rendered, known, chapter):
    own = {numeral for text in sources(chapter) for numeral in NUMERAL.findall(text)}
    files = {f"{file.parent.name}/{file.stem}" for file in results.files(MACHINE)}
    shown_there = said_in(rendered.parent / "chapters" / MACHINE / chapter.name)
    assert shown_there
    for one in shown_there:
        text, numerals = one["text"], {numeral for name in one["records"] for numeral in re.findall(r"\d+", name)}
        rest = set(NUMERAL.findall(text)) - known - own - set(one["computed"])
        assert not {numeral for numeral in rest if numeral.replace(",", "") not in numerals}, text
        measured = re.sub("|".join(WITHOUT_RECORDS), "", one["verdict"]).strip()
        assert one["records"] or not measured, text
        assert set(one["records"]) <= files, text


@pytest.mark.parametrize("chapter", [file for file in CHAPTERS if file.stem[:2] != "84"], ids=lambda file: file.stem)
def test_without_records_no_number_of_the_machine_is_shown(own_results, chapter):
    found = shown(chapter, machine="no-machine")
    said = [one for one in found if isinstance(one, Statement)]
    assert not {one.text for one in said if one.verdict == NO_DATA and re.search(r"\b\d(?! warm-ups)", one.text)}
    pages = [one._repr_html_() for one in found]
    assert not any("no-machine/" in page or re.search(r">\s*nan\b", page) for page in pages)
    if chapter.stem[:2] in OF_OTHERS:  # the write-ups' tables, which have numbers of their own
        return
    assert {mark for one in said for mark in one.verdict.split(", ")} <= set(WITHOUT_RECORDS)
    assert not any("this report" in page for page in pages)
    rest = [one for one, page in zip(found, pages, strict=True) if page and not isinstance(one, Statement)]
    assert len(rest) == NEED_NONE.get(chapter.stem[:2], 0)
    verdicts = {verdict for one in rest if isinstance(one, Table) for verdict in one.frame.get("verdict", [])}
    assert verdicts <= {NOT_MEASURED}


def written(text: str) -> list[str]:
    """Return the numbers with a unit in a text, formulas left out."""
    return MEASURED.findall(re.sub(r"\$+[^$]+\$+", "", text))


def test_no_measured_number_with_its_unit_stands_in_prose_written_by_hand():
    found = {chapter.stem: written("\n".join(sources(chapter, "markdown"))) for chapter in CHAPTERS}
    assert not {name: numbers for name, numbers in found.items() if numbers}
    assert written("1.7× faster, 3.5 ms at $2 s$, 12&nbsp;GB/s and 2 GiB; 4 samples") == [
        "1.7×", "3.5 ms", "12&nbsp;GB/s", "2 GiB"
    ]  # fmt: skip


def test_a_comparison_says_what_its_interval_shows(records):
    tiled, naive = CASE | {"variant": "tiled"}, CASE
    said = sentences.compare(records, tiled, naive, "tiled", "naive", "here")
    assert said.verdict == "faster"
    assert said.text == "Here, tiled is 2.00× (1.97 to 2.03) faster than naive."
    assert sentences.compare(records, naive, tiled, "naive", "tiled").verdict == "slower"
    assert sentences.compare(records, naive, naive, "naive", "itself").verdict == "same"


def test_without_data_no_number_is_said(records):
    nothing = tidy.select(records, variant="absent")
    for said in (
        sentences.compare(nothing, CASE, CASE, "a", "b"),
        sentences.values(nothing, CASE, "it takes {} ms", "total_ms"),
        sentences.exponent(nothing, "total_ms", "seq_len", {}, "time"),
    ):
        assert said.verdict == sentences.NO_DATA
        assert not any(character.isdigit() for character in said.text)


def test_a_difference_that_is_not_shown_is_not_said(save_record):
    for round, factor in ((1, 0.5), (2, 1.0), (3, 2.0)):
        save_record(case=CASE, round=round, total_ms=[1.0] * 8)
        save_record(case=CASE | {"variant": "tiled"}, round=round, total_ms=[factor] * 8)
    data = results.load("attention", "test-1c")
    said = sentences.compare(data, CASE | {"variant": "tiled"}, CASE, "tiled", "naive")
    assert said.verdict == "unclear"
    assert "is unclear" in said.text


def test_the_exponent_of_a_power_law_is_found(records):
    said = sentences.exponent(records, "total_ms", "seq_len", {"variant": "naive"}, "the time")
    assert said.text.startswith("The time grows about as T² (exponent 2.0")
    assert said.quantities[0].name.endswith("/total_ms/exponent")
