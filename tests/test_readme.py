"""The README tells what the records in git say, and these are of today's code."""

import json
import re

import pytest

from lib import records
from lib.catalog import CATALOG
from lib.paths import REFERENCE, ROOT

README = (ROOT / "README.md").read_text()
MACHINES = sorted({match[1] for match in re.finditer(r"reports/reference/([\w-]+)", README)})
ROW = re.compile(r"^\| (?!question|---)[^|]+ \| (.+) \|$", re.MULTILINE)


def test_each_answer_of_the_readme_is_an_answer_of_the_records_beside_it():
    (machine,) = MACHINES
    answers = json.loads((REFERENCE / machine / "answers.json").read_text())
    rows = ROW.findall(README.partition("## What it found")[2].partition("## Why")[0])
    assert len(rows) == 5
    assert set(rows) <= set(answers.values())


@pytest.mark.parametrize("machine", sorted({file.parent.name for file in REFERENCE.glob("*/*.jsonl")}))
def test_records_in_git_are_of_todays_code(machine):
    stale = []
    for experiment in CATALOG:
        file = REFERENCE / machine / f"{experiment}.jsonl"
        # peers are measured by a sweep of their own
        lines = file.read_text().splitlines() if file.exists() else []
        for line in lines:
            if records.parse(line)["code"] != records.digest(experiment):
                stale.append(experiment)
    assert not stale


def test_the_readme_is_short_and_links_lead_somewhere():
    assert len(README.splitlines()) <= 110
    for file in [*ROOT.glob("*.md"), ROOT / "lib" / "README.md", ROOT / "notebooks" / "sweeps" / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"
