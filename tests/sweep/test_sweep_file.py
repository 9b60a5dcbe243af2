"""A sweep file is read into cases, and a bad one is refused in one line."""

import re

import pytest

from lib.sweep import sweep_file


def read(here, text, **options):
    if isinstance(text, str):
        text = text.encode()
    (here.folder / "sweeps" / "cheap.yaml").write_bytes(text)
    return sweep_file.load("cheap", **options)


def test_a_list_is_swept_a_scalar_fixed_and_the_rest_are_defaults(here):
    (block,) = read(here, "cheap: {number: [1, 2], behaviour: [ok, kill]}")
    listed = [(case.number, case.behaviour, case.pause_ms) for case in block.cases]
    assert listed == [(1, "ok", 1), (1, "kill", 1), (2, "ok", 1), (2, "kill", 1)]
    assert block.options == sweep_file.Options(rounds=3, seconds=0.4, timeout=600, tier=1)


def test_options_of_the_file_hold_for_blocks_that_do_not_say_otherwise(here):
    blocks = "[{number: 1, tier: 2, timeout: 9.5, fresh: [number]}, {number: 2, rounds: 2}]"
    first, second = read(here, f"rounds: 5\nseconds: 1e-1\ncheap: {blocks}")
    assert first.options == sweep_file.Options(5, 0.1, 9.5, tier=2, fresh=["number"])
    assert second.options == sweep_file.Options(2, 0.1)


def test_other_rounds_leave_blocks_alone_that_need_one(here):
    text = "rounds: 3\ncheap: [{number: 1}, {number: 2, rounds: 5}, {number: 3, rounds: 1}]"
    assert [block.options.rounds for block in read(here, text, rounds=7)] == [7, 7, 1]
    with pytest.raises(ValueError, match="rounds: got 'x'"):
        read(here, "cheap: {rounds: x}", rounds=7)


BAD = {
    "": "file: got None, expected a mapping",
    "rounds: 3": "file: got no experiment",
    "cheep: {number: 1}": r"experiment: got 'cheep', expected one of .*\(nearest: cheap\)",
    "cheap: {numbr: 1}": r"cheap: got 'numbr', expected one of .*\(nearest: number\)",
    "cheap: {number: true}": r"cheap.number: got True \(bool\), expected int",
    "cheap: {number: 0}": "cheap.number: got 0, expected at least 1",
    "cheap: {number: []}": r"cheap.number: got \[\], expected at least one value",
    "cheap: {behaviour: okk}": r"cheap.behaviour: got 'okk', .*\(nearest: ok\)",
    "cheap: {number: 1, seconds: .nan}": "cheap.seconds: got nan, expected a finite number",
    "cheap: {number: 1, seconds: 1" + "0" * 400 + "}": "cheap.seconds: got 1000.*, expected a finite number",
    "cheap: {number: 1, seconds: -1}": "cheap.seconds: got -1, expected at least",
    "cheap: {number: 1, seconds: 0}": "cheap.seconds: got 0, expected at least",
    "cheap: {number: 1, timeout: 0}": "cheap.timeout: got 0, expected at least 1",
    "cheap: {number: 1, fresh: number}": r"cheap.fresh: got 'number' \(str\), expected list",
    "cheap: {number: 1, fresh: [numbr]}": r"cheap.fresh: got 'numbr', .*\(nearest: number\)",
    "cheap: {number: 1, needs: gpu}": "cheap.needs: got 'gpu', expected one of nothing, cuda, bf16, emulated_bf16",
    "timeout: soon\ncheap: {number: 1}": r"timeout: got 'soon' \(str\), expected float",
    "cheap: [{number: 1}, {number: [2, 1]}]": "cheap: the case 1-ok-1-cpu is there twice",
    "cheap: [1]": "cheap: got 1, expected a mapping",
    "cheap: []": "cheap: got no block",
    "cheap: {number: 1, number: 2}": "file: expected YAML: .*found duplicate key",
    "cheap: !!python/object/apply:os.system [ls]": "file: expected YAML",
    "cheap: {number: &a [1, *a]}": "cheap.number: got",
    "[" * 600: "file: expected YAML",
    "cheap: {number: !!int ''}": "file: expected YAML: string index",
    'cheap: "\\UFFFFFFFF"': "file: expected YAML",
    "%YAML 1.3\n---\ncheap: {number: 1}": "file: expected YAML: version minor part",
    b"\xff\xfe": "file: expected YAML: 'utf-8' codec",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: BAD[text][:40])
def test_a_bad_file_is_refused_in_one_line(here, text):
    with pytest.raises(ValueError, match=f"cheap.yaml: {BAD[text]}") as refused:
        read(here, text)
    assert "\n" not in str(refused.value)
    assert not here.results.exists()


def test_an_unknown_sweep_is_refused_with_the_nearest(here):
    with pytest.raises(ValueError, match=re.escape("sweep: got 'cheep', expected one of cheap (nearest: cheap)")):
        sweep_file.load("cheep")
