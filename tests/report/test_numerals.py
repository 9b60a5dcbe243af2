"""Every number that a sentence of the report shows went through the formatting of a computed value or names the case,
and every sentence that was measured names the records that it rests on."""

import ast
import functools
import json
import re
import warnings

import pytest

from lib import notebooks
from lib.records import results
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement
from lib.stats import digits

CHAPTERS = sorted((notebooks.NOTEBOOKS / "report").glob("*.ipynb"))
NUMERAL = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")
MACHINE = "epyc-2c"
WRITE_UPS = {"000", "001", "002", "003", "004"}  # what the report calls its sources
WITHOUT_RECORDS = ("derived", "published", NO_DATA)


def sources(chapter) -> list[str]:
    cells = json.loads(chapter.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(source: str, names: dict):
    """Run a cell; what its last line shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture(params=CHAPTERS, ids=lambda file: file.stem)
def chapter(request, monkeypatch, own_results):
    """The cells of a chapter, the sentences that they show of the records in git, and every numeral that came from a
    computed value."""
    shown: set[str] = set()
    for name in ("number", "interval", "count", "exact"):
        plain = getattr(digits, name)

        def watched(*values, plain=plain):
            text = plain(*values)
            shown.update(NUMERAL.findall(text))
            return text

        monkeypatch.setattr(digits, name, watched)
    monkeypatch.setattr(warnings, "warn", lambda *args, **kwargs: None)
    found: list = []
    names: dict = {"display": lambda *shown: found.extend(shown)}
    cells = [re.sub(r'^machine = ".*"$', f'machine = "{MACHINE}"', cell, flags=re.M) for cell in sources(request.param)]
    for cell in cells:
        found.append(run(cell, names))
    return cells, [one for one in found if isinstance(one, Statement)], shown


@functools.cache
def lacks() -> list[str]:
    """What the machine says that it is without, in its own words."""
    records = (results.read(file) for file in results.files(MACHINE))
    return [text for record in records for text in record["environment"].get("lacks", [])]


def test_every_numeral_is_computed_and_what_was_measured_names_its_records(chapter):
    cells, said, shown = chapter
    steps = published_table("end_to_end")
    texts = [*lacks(), *steps["hardware"], *steps["model"]]
    lacking = {numeral for text in set(texts) for numeral in NUMERAL.findall(text)}
    written = {numeral for cell in cells for numeral in NUMERAL.findall(cell)}
    for one in said:
        case = {numeral for name in one.records for numeral in re.findall(r"\d+", name)}
        case |= lacking | WRITE_UPS
        rest = {n for n in set(NUMERAL.findall(one.text)) - shown - written if n.replace(",", "") not in case}
        assert not rest, (one.text, rest)
    files = {f"{file.parent.name}/{file.stem}" for file in results.files(MACHINE)}
    for one in said:
        measured = re.sub("|".join(WITHOUT_RECORDS), "", one.verdict).strip()
        assert one.records or not measured, one.text
        assert set(one.records) <= files, one.text
