"""The title page says what was measured."""

from lib.report.document import title


def test_the_title_names_machine_days_versions_commits_and_records(save_record):
    around = {"torch": "2.11.0", "python": "3.12.1", "uncommitted": False, "commit": "abc"}
    save_record(environment=around, total_ms=[1.0])
    assert "Processor" not in title.facts("test-1c")
    around |= {"instruction_sets": ["AVX-512", "AMX"], "l2_mib": 2.0, "l3_mib": 32.0, "memory_mib": 24_064}
    started = "2026-02-03T00:00:00+00:00"
    save_record(environment=around | {"commit": "def"}, round=2, started=started, total_ms=[1.0])
    facts = title.facts("test-1c")
    assert facts["Machine"] == "a test"
    assert facts["Processor"] == "AVX-512, AMX · L3 32 MiB · 23.5 GiB"
    assert facts["Measured"] == "1 January 2026 to 3 February 2026"
    assert (facts["PyTorch"], facts["Python"], facts["Commit"]) == ("2.11.0", "3.12.1", "abc, def")
    assert facts["Records"] == "2, of 1 cases in 2 rounds"
