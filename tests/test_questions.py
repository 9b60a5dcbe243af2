"""The assignment's questions: their data agree with the chapters, and no status says more than was run."""

import itertools
import json
import re

import nbformat
import pandas as pd
import pytest
from ruamel.yaml import YAML

from lib import notebooks, records
from lib.catalog import CATALOG
from lib.paths import REFERENCE
from lib.sweep import sweep_file

ASKED = YAML(typ="safe").load(notebooks.NOTEBOOKS / "questions.yaml")
PARTS = ASKED["parts"]
MEASURED = [part for part in PARTS if part["status"] == "measured"]


def sizes(part):
    return {field: values for field, values in part["cases"].items() if isinstance(values, list)}


def test_points_are_those_of_the_handouts_and_each_problem_has_parts():
    for edition, total in {2025: 107, 2026: 137}.items():
        points = {problem: worth[edition] for problem, worth in ASKED["points"].items() if edition in worth}
        assert sum(points.values()) == total == ASKED["total"][edition]
        assert {part["problem"] for part in PARTS if edition in part["edition"]} == set(points)
    rows = [(part["problem"], part["part"], edition) for part in PARTS for edition in part["edition"]]
    assert len(set(rows)) == len(rows)


def test_each_part_quotes_answers_that_some_chapter_gives():
    # of `f"parallel.{way}"` any way counts
    patterns = []
    for file in notebooks.NOTEBOOKS.glob("*.ipynb"):
        for cell in nbformat.read(file, as_version=4).cells:
            for key in re.findall(r'report\.answer\(f?"([^"]+)"', cell.source):
                patterns.append(re.sub(r"\\{[^}]*\\}", ".+", re.escape(key)))
    # keys that a table holds, as those of `compile`
    reference_keys = set(itertools.chain(*[json.loads(file.read_text()) for file in REFERENCE.glob("*/answers.json")]))
    for key in itertools.chain(*[part["keys"] for part in PARTS]):
        assert key in reference_keys or any(re.fullmatch(pattern, key) for pattern in patterns), key


def test_what_is_measured_names_fields_and_sizes_of_its_cases():
    for part in PARTS:
        assert part["status"] in ("measured", "theory", "built")
        # what quotes nothing is itself the answer, which begins in bold
        assert part["keys"] or part["text"].startswith("**"), part
    for part in MEASURED:
        assert set(part["cases"]) <= set(CATALOG[part["experiment"]].fields)
        assert sizes(part)
        assert part["device"] in ("any", "GPU", "H100", "B200")


# some sizes that 2026 alone asks for are in no sweep
@pytest.mark.parametrize("part", [part for part in MEASURED if 2025 in part["edition"]])
def test_the_gpu_sweep_has_every_case_that_2025_asks_for(part):
    blocks = [block for block in sweep_file.load("gpu") if block.experiment == part["experiment"]]
    planned = pd.DataFrame([vars(case) for block in blocks for case in block.cases])
    for field, value in part["cases"].items():
        if not isinstance(value, list):
            planned = planned[planned[field] == value]
    has = planned[list(sizes(part))].itertuples(index=False, name=None)
    assert set(itertools.product(*sizes(part).values())) <= set(has)


@pytest.mark.parametrize(
    ("hardware", "device", "left_out", "lost", "status"),
    [
        ("NVIDIA H100", "cuda", 0, 0, "as asked"),
        ("NVIDIA H100", "cuda", 1, 0, "another size"),
        ("NVIDIA H100", "cuda", 0, 1, "another size"),
        ("a processor", "cpu", 0, 0, "another device"),
        ("a processor", "cpu", 1, 0, "another device and size"),
        ("NVIDIA A100", "cuda", 0, 0, "another device"),
        ("NVIDIA H100", "cuda", 0, 9, "not measured"),
    ],
)
def test_a_status_says_as_asked_only_of_every_size_on_the_device(own_results, hardware, device, left_out, lost, status):
    (part,) = [part for part in PARTS if part["problem"] == "leaderboard" and 2025 in part["edition"]]
    part = part | {"cases": part["cases"] | {"seq_len": [16384, 32768]}, "keys": ["one", "two"]}
    for length in part["cases"]["seq_len"][left_out:]:
        case = {field: values[0] for field, values in sizes(part).items()} | {"seq_len": length, "device": device}
        case = dict.fromkeys(CATALOG["attention"].fields, 0) | case
        around = {"hardware": hardware, "machine": "test-1c"}
        records.save(records.create("attention", case, 1, "ok", {"total_ms": [1.0]}, around))
    answers = dict.fromkeys(part["keys"][lost:], "An answer.")
    names = run_cells(answers, "judge")
    assert names["judge"](part, names["own_tables"], answers) == status
    if status == "as asked":
        assert names["judge"](part | {"instead": "Another tool."}, names["own_tables"], answers) == "another tool"


def test_the_status_is_that_of_the_gpu_whose_answer_stands_first(own_results, monkeypatch):
    monkeypatch.setattr(records, "REFERENCE", REFERENCE)
    case = dict.fromkeys(CATALOG["attention"].fields, 0) | {"variant": "tiled", "seq_len": 1024, "device": "cpu"}
    around = {"hardware": "a processor", "machine": "test-1c"}
    records.save(records.create("attention", case, 1, "ok", {"total_ms": [1.0]}, around))
    parts = run_cells({"flash": "An answer of the processor."}, "texts")["parts"]
    (told,) = parts[(parts["problem"] == "leaderboard") & (parts["device"] == "H100")].itertuples()
    assert (told.status, told.is_beside) == ("as asked", True)


def run_cells(answers, last):
    """Run the notebook's cells up to the one that makes a name, and return all names."""
    names = {}
    for cell in nbformat.read(notebooks.NOTEBOOKS / "questions.ipynb", as_version=4).cells:
        if cell.cell_type == "code" and last not in names:
            exec(cell.source, names)
            if "answers" in cell.source and "asked" not in names:
                names["answers"] = answers
    return names
