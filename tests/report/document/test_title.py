"""The title page says what was measured."""

from lib.records import code_digest, results
from lib.report.document import title


def test_the_title_names_machine_days_versions_commits_and_records(own_results, save_record):
    around = {"hardware": "a test", "machine": "test-1c", "torch": "2.11.0", "python": "3.12.1", "uncommitted": False}
    for round, day, commit in ((1, "2026-01-01", "abc"), (2, "2026-02-03", "def")):
        results.save(
            experiment="attention", case={"variant": "naive"}, round=round, status="ok",
            metrics={"total_ms": [1.0]}, environment=around | {"commit": commit}, code=code_digest.code("attention"),
            started=f"{day}T00:00:00+00:00", seconds=1.0,
        )  # fmt: skip
    facts = title.facts("test-1c")
    assert facts["Machine"] == "a test"
    assert facts["Measured"] == "1 January 2026 to 3 February 2026"
    assert (facts["PyTorch"], facts["Python"], facts["Commit"]) == ("2.11.0", "3.12.1", "abc, def")
    assert facts["Records"] == "2, of 1 cases in 2 rounds"


def test_the_title_has_the_processors_instructions_last_cache_and_memory(own_results, save_record):
    around = {"torch": "2.11.0", "python": "3.12.1", "uncommitted": False, "commit": "abc"}
    save_record(environment=around, total_ms=[1.0])
    assert "Processor" not in title.facts("test-1c")
    around |= {"instruction_sets": ["AVX-512", "AMX"], "l2_mib": 2.0, "l3_mib": 32.0, "memory_mib": 24_064}
    save_record(environment=around, round=2, total_ms=[1.0])
    assert title.facts("test-1c")["Processor"] == "AVX-512, AMX · L3 32 MiB · 23.5 GiB"
