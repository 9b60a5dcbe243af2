"""The command lines tell what they do, and that over the records finds, shows and exports them."""

import json
import shlex
import subprocess
import sys

import pandas as pd
import pytest

from lib import cli, paths
from lib.experiments import calibration, nsys
from lib.records import __main__ as shell
from lib.records import long_form, results
from lib.report import __main__ as report
from lib.report import self_check
from lib.sweep import __main__ as sweep

CASE = {"variant": "naive", "seq_len": 64}
PARSERS = {module.__name__: module.parser for module in (sweep, report, calibration, nsys, self_check, shell)}


@pytest.fixture
def records(save_record, monkeypatch, tmp_path):
    """Three records of two cases, and nothing kept in git."""
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "none")
    for round in (1, 2):
        save_record(case=CASE, round=round, total_ms=[2.0, 3.0], device_name="a name", nothing_ms=[], flops=7)
    save_record(case=CASE | {"variant": "sdpa"}, status="oom")
    return save_record


def run(capsys, *words):
    code = shell.main(list(words))
    return code, *capsys.readouterr()


@pytest.mark.parametrize("name", PARSERS)
def test_help_has_examples_that_parse_and_exit_codes(name, capsys):
    with pytest.raises(SystemExit) as ended:
        PARSERS[name]().parse_args(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    examples = told.split(cli.EXAMPLES)[1].split(cli.EXITS)[0].strip().splitlines()
    assert examples
    for example in examples:
        *program, module = shlex.split(example)[:3]
        assert program == ["python", "-m"]
        assert module == PARSERS[name]().prog.split()[-1]
        PARSERS[name]().parse_args(shlex.split(example)[3:])
    assert "  0   success" in told.split(cli.EXITS)[1]


def test_the_records_have_their_command_line_as_a_module():
    asked = [sys.executable, "-m", "lib.records", "show", "nothing"]
    done = subprocess.run(asked, capture_output=True, text=True, cwd=paths.ROOT)
    assert done.returncode == 2
    assert "record: got 'nothing', expected a name" in done.stderr


def test_without_a_filter_the_list_counts(records, capsys):
    code, out, _ = run(capsys, "list")
    assert code == 0
    heads, row = (line.split() for line in out.splitlines())
    assert dict(zip(heads, row, strict=True)) == {
        "experiment": "attention", "machine": "test-1c", "cases": "2", "records": "3", "ok": "2", "oom": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--experiment", "attention"], 3),
        (["--where", "variant == 'naive'"], 2),
        (["--where", "variant in ['naive', 'sdpa'] and 32 < seq_len <= 64"], 3),
        (["--where", "status == 'oom'"], 1),
        (["--where", "not (status == 'ok' or round > 1)"], 1),
        (["--where", "status == 'oom' and variant == 'naive'"], 0),
        (["--machine", "test-1c", "--where", "status in ('crashed', 'timeout')"], 0),
        (["--experiment", "attention", "--where", "stale == '' # a comment\n"], 3),
    ],
)
def test_with_filters_the_list_has_a_line_a_record(records, capsys, words, found):
    code, out, err = run(capsys, "list", *words)
    assert code == (0 if found else 1)
    assert out.count("attention/") == found
    assert bool(err) == (not found)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["list", "--experiment", "atention"], "nearest: attention"),
        (["list", "--machine", "test-2c"], "nearest: test-1c"),
        (["list", "--where", "varient == 'naive'"], "nearest: variant"),
        (["list", "--where", "index == 0"], "expected one of"),
        (["list", "--where", "variant=naive"], "expected a condition such as"),
        (["list", "--where", "seq_len"], "true or false"),
        (["list", "--where", "variant > 3"], "where: "),
        (["list", "--where", "seq_len is None"], "where: "),
        (["list", "--where", "not " * 20_000 + "seq_len"], "expected a condition such as"),
        (["list", "--where", " and ".join(["seq_len > 1"] * 3_000)], "where: "),
        (["show", "attention/naive-64.r3"], "'attention/naive-64.r"),
        (["show", "attention/naive-64.r1", "--machine", "test-2c"], "nearest: test-1c"),
        (["export", "records.cvs"], "nearest: .csv"),
    ],
)
def test_bad_input_is_refused_in_one_line_with_the_nearest_name(records, capsys, words, nearest):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert nearest in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "query",
    [
        "variant.to_csv({file!r}) == 1",
        "@pd.Series([1]).to_csv({file!r})",
        "variant == open({file!r}, 'w')",
        "__import__('os').system('touch ' + {file!r})",
        "variant == f'{{variant.to_csv({file!r})}}'",
        "#\u2028x = variant.to_csv({file!r})\nvariant == 'a'",
        "variant == 'a\u2028x = variant.to_csv({file!r})\u2028'",
        "variant == 'a\x0cx = variant.to_csv({file!r})\x0c'",
    ],
)
def test_nothing_is_executed_through_a_condition(records, capsys, tmp_path, query):
    code, out, _ = run(capsys, "list", "--where", query.format(file=str(tmp_path / "file")))
    assert code in (1, 2)
    assert not out
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("words", [["list"], ["show", "attention/naive-64.r1"], ["export", "records.csv"]])
def test_without_records_nothing_is_found(own_results, monkeypatch, capsys, words):
    monkeypatch.setattr(results, "REFERENCE", own_results / "none")
    assert run(capsys, *words)[0] == 1


def test_a_record_is_shown_with_its_case_environment_and_metrics(records, capsys):
    code, out, _ = run(capsys, "show", "attention/naive-64.r2")
    assert code == 0
    for line in ("attention/naive-64.r2: ok", "  seq_len: 64", "  hardware: a test", "  flops: 7", "2.50", "n = 2"):
        assert line in out


@pytest.mark.parametrize(("ending", "read"), [("csv", pd.read_csv), ("parquet", pd.read_parquet)])
def test_what_is_exported_has_a_row_a_sample(records, capsys, tmp_path, ending, read):
    file = tmp_path / "folder" / f"records.{ending}"
    code, out, _ = run(capsys, "export", str(file))
    assert code == 0
    assert "9 rows of 3 records" in out
    table = read(file)
    assert list(table) == long_form.COLUMNS
    times = table[table["metric"] == "total_ms"]
    assert list(times[["round", "index", "value"]].itertuples(index=False, name=None)) == [
        (1, 0, 2.0), (1, 1, 3.0), (2, 0, 2.0), (2, 1, 3.0),
    ]  # fmt: skip
    assert json.loads(times["case"].iloc[0]) == CASE
    assert set(table.loc[table["metric"] == "device_name", "text"]) == {"a name"}
    (failed,) = table[table["status"] == "oom"].to_dict("records")
    assert pd.isna(failed["value"])


def test_a_table_among_the_metrics_is_exported_by_its_columns(records):
    records(experiment="memory", case=CASE, largest={"function": ["f", "g"], "each_mib": [1.5, 2.5]})
    table = long_form.long({"memory": results.load("memory", "test-1c")})
    rows = table[["metric", "index", "value", "text"]].astype(object).where(lambda cell: cell.notna(), None)
    assert rows.to_numpy().tolist() == [
        ["largest.function", 0, None, "f"], ["largest.function", 1, None, "g"],
        ["largest.each_mib", 0, 1.5, None], ["largest.each_mib", 1, 2.5, None],
    ]  # fmt: skip
