"""The folder of records is the same one in every process, wherever that works."""

from pathlib import Path

import pytest

from lib import paths


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("", paths.ROOT / "reports/results"),
        ("mine/results", paths.ROOT / "mine/results"),
        ("../beside", paths.ROOT.parent / "beside"),
        ("~/results", Path.home() / "results"),
        ("/somewhere", Path("/somewhere")),
    ],
)
def test_a_folder_of_results_does_not_depend_on_the_working_folder(tmp_path, monkeypatch, setting, meant):
    monkeypatch.setenv("RESULTS", setting)
    monkeypatch.chdir(tmp_path)
    assert paths.results() == meant
