"""What a file, a name or a value says is never run and never followed out of the folders that are meant."""

import os
import re
import shutil
import time
import tracemalloc
from pathlib import Path

import nbformat
import pytest

from lib import notebooks
from lib.instruments import environment
from lib.records import __main__ as shell
from lib.records import results
from lib.report import __main__ as report
from lib.report.document import page
from lib.sweep import __main__ as sweep
from lib.sweep import sweep_file

AXIS = "[8, " + "8, " * 100 + "8]"
LAUGHS = "a: &a [1, 1]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "a billion laughs": (LAUGHS, "an alias, .a, expected its value"),
    "an object": ("!!python/object/apply:os.system ['touch CANARY']", "a tag, .*, expected none"),
    "10 MB": (b"attention: {}\n" + b"#" * 10_000_000, "longer than 16,384 bytes"),
    "brackets": ("[" * 15_000, "at most 10 nested"),
    "many keys": (f"{{{','.join(map(str, range(3_000)))}}}", "expected one of"),
    "one long value": (f"attention: {{seq_len: {'9' * 15_000}}}", "a value of 15000 characters"),
    "a long axis of what cannot be": (f"attention: {{seq_len: [[{'1,' * 7_000}]]}}", r"\(list\), expected int"),
    "a product of axes": (f"attention: {{seq_len: {AXIS}, d_head: {AXIS}, batch_size: {AXIS}}}", "more than 100,000"),
    "many blocks of many rounds": (f"rounds: 1000\nattention: [{'{}, ' * 4_000}]", "more than 100,000"),
    "not UTF-8": (b"attention: \xff\xfe", "not UTF-8 text"),
    "a zero in a name": ("atten\0tion: {}", "not valid YAML"),
    "a line break in a name": ('"atten\\ntion": {}', r"'atten\\ntion'.*nearest: attention"),
    "a terminal's command": ('"\\e[2J": {}', r"'.x1b\[2J'"),
}  # fmt: skip


@pytest.mark.faults(13, "a hostile sweep file")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_within_a_second_and_100_mb(planted, capsys, monkeypatch, tmp_path, name):
    text, said = HOSTILE[name]
    file = planted("planted", text)
    monkeypatch.chdir(tmp_path)
    began = time.process_time()
    assert sweep.main(["planted"]) == 2
    assert time.process_time() - began < 1
    out, err = capsys.readouterr()
    assert re.search(said, err)
    assert (out, len(err.splitlines())) == ("", 1)
    assert len(err) < 500
    assert not Path("CANARY").exists()
    tracemalloc.start()
    with pytest.raises(ValueError, match=said):
        sweep_file.read(file)
    assert tracemalloc.get_traced_memory()[1] < 100e6
    tracemalloc.stop()


NAMES = ("../outside", "{folder}/planted", "", "link", "gone", "folder", "pipe", "planted\0", "n" * 300, "*", "PLANTED")


@pytest.mark.faults(13, "a name that leads elsewhere")
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_none_of_the_sweeps_is_refused_and_nothing_read(planted, capsys, monkeypatch, name):
    folder = planted("planted", "attention: {}").parent
    outside = folder.parent / "outside.yaml"
    outside.write_text("attention: {}")
    (folder / "link.yaml").symlink_to(outside)
    (folder / "gone.yaml").symlink_to(folder / "nothing")
    (folder / "folder.yaml").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    monkeypatch.setattr(sweep_file, "read", lambda file: pytest.fail(f"{file} was read"))
    monkeypatch.chdir(folder)
    assert sweep.main([name.replace("{folder}", str(folder))]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "nearest: planted" in err
    assert len(err) < 200


def test_a_link_among_the_sweeps_is_one_of_them(planted):
    file = planted("planted", "attention: {}")
    file.with_name("again.yaml").symlink_to(file)
    assert list(notebooks.sweeps()) == ["again", "planted"]
    assert len(sweep_file.load("again")) == 1


def test_a_file_that_cannot_be_read_is_refused_in_one_line(planted, capsys, monkeypatch):
    planted("planted", "attention: {}")
    monkeypatch.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert sweep.main(["planted"]) == 2
    assert capsys.readouterr().err == "planted.yaml: cannot be read: Permission denied\n"


def test_without_any_sweep_a_name_is_refused_and_the_help_stands(planted, capsys):
    assert sweep.main(["quick"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    planted("100%s{0}", "attention: {}")
    assert "100%s{0}" in sweep.parser().format_help()


@pytest.mark.faults(13, "a name that leads elsewhere")
@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a\\b", "..", ".", "", "x\0", "ä" * 150])
def test_no_name_of_a_machine_an_experiment_or_a_case_leads_out_of_the_results(save_record, own_results, name):
    for hostile in ({"machine": name}, {"experiment": name}, {"case": {"variant": f"{name}{name}/"}}):
        with pytest.raises(ValueError, match="expected the name of one file or folder"):
            save_record(**hostile, code="0" * 16)
    assert not list(own_results.parent.rglob("*.json"))


@pytest.mark.faults(13, "a link that leads elsewhere")
@pytest.mark.parametrize("linked", ["test-1c", "test-1c/attention", "test-1c/attention/naive-64.r1.json"])
def test_no_link_leads_out_of_the_results(save_record, own_results, tmp_path, linked):
    outside, link = tmp_path / "outside", own_results / linked
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "record.json" if linked.endswith(".json") else outside)
    with pytest.raises(ValueError, match="a link out of"):
        save_record(total_ms=[1.0])
    assert not list(outside.rglob("*"))


def test_the_results_may_be_anywhere_and_hold_links_to_one_another(save_record, own_results, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "first-1c").mkdir(parents=True)
    own_results.symlink_to(elsewhere)
    (own_results / "test-1c").symlink_to(elsewhere / "first-1c")
    assert save_record(total_ms=[1.0]).exists()
    assert list(elsewhere.rglob("*.json"))


@pytest.mark.faults(13, "a name that leads elsewhere")
@pytest.mark.parametrize("name", ["../x", "", "x\0", "n" * 300, "test-1c/../test-1c", "test-?c"])
def test_a_machine_that_is_not_there_is_refused_on_every_command_line(
    save_record, monkeypatch, tmp_path, capsys, name
):  # fmt: skip
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "reference")
    save_record(total_ms=[1.0])
    monkeypatch.setattr(page, "render", lambda *_: pytest.fail("it was rendered"))
    monkeypatch.chdir(tmp_path)
    for main, words in (
        (report.main, ["--machines", name]),
        (report.main, ["--machine", name]),
        (report.main, ["markdown", "--machine", name]),
        (report.main, ["latex", "1", "--machines", name]),
        (report.main, ["verdicts", "--machine", name]),
        (shell.main, ["list", "--machine", name]),
        (shell.main, ["show", "attention/naive-64.r1", "--machine", name]),
        (shell.main, ["export", "x.csv", "--machine", name]),
        (shell.main, ["list", "--experiment", name]),
        (shell.main, ["show", name]),
        (shell.main, ["show", f"attention/{name}/../naive-64.r1"]),
    ):
        assert main(words) == 2, words
        out, err = capsys.readouterr()
        assert (out, len(err.splitlines())) == ("", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"results"}


FAILING = """import os
import subprocess
os.write(2, b"a line for the log")
subprocess.run(["no-such-program"], env=dict(os.environ))"""


@pytest.mark.faults(14, "a secret in the environment")
def test_a_secret_in_the_environment_stays_there_also_when_a_cell_fails(own_results, monkeypatch, tmp_path, capfd):
    secret = "canary-5c0ffee5"
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DATABASE_PASSWORD", secret):
        monkeypatch.setenv(name, secret)
    shutil.copytree(notebooks.NOTEBOOKS, tmp_path / "notebooks")
    failing = nbformat.read(tmp_path / "notebooks" / "ceilings.ipynb", as_version=4)
    failing.cells.append(nbformat.v4.new_code_cell(FAILING))
    nbformat.write(failing, tmp_path / "notebooks" / "ceilings.ipynb")
    content = "ceilings: {operation: copy, rows: 8, columns: 1, device: cpu, warmup: 0, samples: 6, target_percent: 0}"
    (tmp_path / "cheap.yaml").write_text(content)
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(notebooks, "SWEEPS", tmp_path)
    chapters = tmp_path / "notebooks" / "report"
    for chapter in {*chapters.iterdir()} - {chapters / "90_records.ipynb"}:  # which shows every record
        chapter.unlink()
    monkeypatch.setattr(notebooks, "CHAPTERS", chapters)
    assert sweep.main(["cheap"]) == 1
    assert report.main(["--machine", environment.machine("cpu")]) == 0
    out, err = capfd.readouterr()
    assert "FileNotFoundError" in err
    assert secret not in out + err
    written = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert {file.suffix for file in written if file.is_relative_to(results.runs())} == {".ipynb", ".log"}
    assert any(b"FileNotFoundError" in content for file, content in written.items() if file.suffix == ".ipynb")
    assert {file.suffix for file in written} >= {".json", ".html"}
    assert not [file for file, content in written.items() if secret.encode() in content]
