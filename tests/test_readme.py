"""The README tells what the records in git say, and which code measured them."""

import json
import re

from lib import records
from lib.paths import REFERENCE, ROOT

README = (ROOT / "README.md").read_text()
MACHINES = sorted({match[1] for match in re.finditer(r"reports/reference/([\w-]+)", README)})
ROW = re.compile(r"^\| (?!question|---)[^|]+ \| (.+) \|$", re.MULTILINE)


def test_each_answer_of_the_readme_is_an_answer_of_the_records_beside_it():
    machine = "epyc-2c-1419"
    answers = json.loads((REFERENCE / machine / "answers.json").read_text())
    rows = ROW.findall(README.partition("## What it found")[2].partition("## Why")[0])
    assert len(rows) == 5
    assert set(rows) <= set(answers.values())


def test_the_readme_names_the_machines_and_commits_of_the_records_in_git():
    assert sorted({file.parent.name for file in REFERENCE.glob("*/*.jsonl")}) == MACHINES
    for file in REFERENCE.glob("*/*.jsonl"):
        # a record whose checksum is wrong does not parse
        loaded = [records.parse(line) for line in file.read_text().splitlines()]
        assert {record["environment"]["machine"] for record in loaded} == {file.parent.name}
        for commit in {record["environment"]["commit"] for record in loaded}:
            assert commit[:8] in README


def test_the_readme_is_short_and_links_lead_somewhere():
    assert len(README.splitlines()) <= 120
    for file in [*ROOT.glob("*.md"), ROOT / "lib" / "README.md", ROOT / "notebooks" / "sweeps" / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_no_report_in_git_shows_what_a_library_warns_of():
    for file in REFERENCE.glob("*/report.md"):
        assert not re.search(r"^\*.*(deprecated|fragmented|invalid value|divide by zero).*\*$", file.read_text(), re.M)


def test_no_answer_in_git_tells_a_value_that_is_missing():
    for file in REFERENCE.glob("*/answers.json"):
        for key, text in json.loads(file.read_text()).items():
            assert not re.search(r"\bnan\b", text), key
