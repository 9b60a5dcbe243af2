"""The title page says what was measured."""

from lib.records import code_digest, results
from lib.report.document import title


def test_the_title_names_machine_days_versions_commits_and_records(own_results, save_record):
    around = {"hardware": "a test", "machine": "test-1c", "torch": "2.11.0", "python": "3.12.1", "uncommitted": False}
    for round, day, commit in ((1, "2026-01-01", "abc"), (2, "2026-02-03", "def")):
        results.save(
            machine="test-1c", experiment="attention", case={"variant": "naive"}, round=round, status="ok",
            metrics={"total_ms": [1.0]}, environment=around | {"commit": commit}, code=code_digest.code("attention"),
            started=f"{day}T00:00:00+00:00", seconds=1.0,
        )  # fmt: skip
    facts = title.facts("test-1c")
    assert facts["Machine"] == "a test"
    assert facts["Measured"] == "1 January 2026 to 3 February 2026"
    assert (facts["PyTorch"], facts["Python"], facts["Commit"]) == ("2.11.0", "3.12.1", "abc, def")
    assert facts["Records"] == "2, of 1 cases in 2 rounds"
