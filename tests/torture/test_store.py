"""The store against damaged files: each is found, shown nowhere, set aside, counted and measured again."""

import os
import random
import shutil
import tracemalloc

import pytest

import reference
from damage import DAMAGES, TIME
from faults import count
from lib import notebooks, paths
from lib.chapters import records as chapter
from lib.records import __main__, damaged, results
from lib.records.record import parse
from lib.report import __main__ as report
from lib.report import tables, tidy
from lib.report.document import page

CASE = {"variant": "naive", "seq_len": 64}
MACHINE = "test-1c"
KEPT = results.REFERENCE / reference.MACHINE / "step"
pytestmark = pytest.mark.filterwarnings("ignore:.* left out")


@pytest.fixture
def stored(save_record, kept):
    """The file of a record in a store that holds nothing else, with nothing kept in git."""
    return save_record(case=CASE, total_ms=[float(TIME)], small_error=[1e-7], flops=7, names=["one", "two"])


def shown() -> str:
    """All that tables, the statement on damage and the command line show of the store."""
    records = results.load("attention", MACHINE)
    table = tables.show(tidy.medians(records, "total_ms"), "variant seq_len total_ms", "Times")
    parts = [table, *chapter.damage()]
    texts = [table._repr_markdown_(), table._repr_latex_() or "", *(part._repr_html_() for part in parts)]
    return "".join([*texts, str(records.to_dict()), __main__._list(__main__.parser().parse_args(["list"]))])


def assert_found(file, kind="") -> str:
    """A damaged file is found and its value shown nowhere; it is renamed in its place and counted for the same reason,
    which is returned."""
    moved_to = file.with_name(f"{file.name}.damaged")
    assert results.status(file) is None, kind
    with pytest.warns(UserWarning, match="left out"):
        assert len(results.load("attention", MACHINE, round=1)) == 0, kind
    seen = damaged.losses()
    assert list(seen["where"]) == [damaged.STORE], kind
    text = shown()
    assert "1 in the store" in text, kind
    assert TIME not in text, kind
    assert damaged.clean_store(alone=True) == 1, kind
    assert not os.path.lexists(file), kind
    assert os.path.lexists(moved_to), kind
    moved = damaged.losses()
    assert list(moved["where"]) == [damaged.ASIDE], kind
    looped = moved_to.is_symlink() and os.readlink(moved_to) == file.name  # a link to itself is none under another name
    assert looped or list(moved["reason"]) == list(seen["reason"]), kind
    text = shown()
    assert "1 set aside" in text, kind
    assert TIME not in text, kind
    if moved_to.is_file():
        moved_to.unlink()
    return seen["reason"].iloc[0]


@pytest.mark.faults(7, "a damaged record of many kinds")
def test_a_damaged_record_is_found_shown_nowhere_set_aside_counted_and_measured_again(stored, tally):
    whole = stored.read_bytes()
    parse(whole)
    for number, (kind, damage) in enumerate(DAMAGES.items(), 1):
        with tally.injection():
            stored.write_bytes(damage(whole))
            os.utime(stored, (number, number))  # times of files are coarser than this loop
            assert stored.read_bytes() != whole
            assert_found(stored, kind)
    stored.write_bytes(whole)
    assert results.status(stored) == "ok"
    assert damaged.clean_store(alone=True) == 0


def refused(content: bytes) -> bool:
    try:
        parse(content)
    except ValueError as error:
        return "\n" not in str(error)
    return False


@pytest.mark.faults(7, "a record cut short or with one bit turned, at every byte")
def test_a_record_cut_short_at_any_byte_or_of_which_any_bit_is_turned_is_found(tally):
    measured = [file for file in KEPT.glob("*.r1.json") if results.status(file) == "ok"]
    content, chance = min(measured, key=lambda file: file.stat().st_size).read_bytes(), random.Random(2)
    parse(content)
    for position, byte in enumerate(content):
        with tally.injection():
            assert refused(content[:position]), f"cut to {position}"
        for bit in chance.sample(range(8), count(1, 8)):
            turned = content[:position] + bytes([byte ^ 1 << bit]) + content[position + 1 :]
            with tally.injection():
                assert refused(turned), f"bit {bit} of byte {position}"


@pytest.mark.faults(7, "a record of 1 GB")
def test_a_file_of_a_gigabyte_is_refused_without_being_read(stored, tally):
    with stored.open("r+b") as file:
        file.truncate(2**30)
    with tally.injection():
        tracemalloc.start()
        assert "size: got 1,024 MiB" in assert_found(stored)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 50e6


def a_link(to):
    return lambda file: file.symlink_to(to)


def a_full_folder(file):
    file.mkdir()
    (file / "inside").write_text(TIME)


@pytest.mark.faults(7, "no file in the place of a record")
@pytest.mark.parametrize("stand_in", [a_full_folder, a_link("nowhere"), a_link("."), os.mkfifo, "loop"])
def test_what_is_no_file_in_the_place_of_a_record_is_set_aside_unopened(stored, tally, stand_in):
    stored.unlink()
    if stand_in == "loop":
        stand_in = a_link(stored.name)
    stand_in(stored)
    with tally.injection():
        assert_found(stored)


@pytest.mark.faults(7, "a record in the place of another")
@pytest.mark.parametrize("place", ["naive-64.r2", "naive-64", "../adam/naive-64.r1", "../../test-2c/attention/x"])
def test_a_whole_record_in_the_place_of_another_is_damaged(stored, tally, place):
    copy = stored.parent / f"{place}.json"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stored, copy)
    with tally.injection():
        assert results.status(copy) is None
        assert results.status(stored) == "ok"
        assert damaged.clean_store(alone=True) == 1
        assert results.status(stored) == "ok"
        assert damaged.losses()["reason"].tolist() == ["location: the file holds a record that belongs elsewhere"]
    assert results.machines() == [MACHINE]


def test_the_report_counts_what_is_damaged_and_shows_none_of_it(stored, tmp_path, monkeypatch):
    whole = stored.read_bytes()
    for number, damage in enumerate(DAMAGES.values()):
        (stored.parent / f"naive-{number}.r1.json").write_bytes(damage(whole))
    (stored.parent / "naive-big.r1.json").mkdir()
    stored.write_bytes(whole[:-1])
    elsewhere = stored.parents[1] / "adam" / "<b>bold\udcff.r1.json"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"")
    chapters = tmp_path / "chapters"
    chapters.mkdir()
    every = sorted((notebooks.NOTEBOOKS / "report").glob("*.ipynb"))
    for source in every[-count(1, len(every)) :]:  # the last tells of the records
        shutil.copyfile(source, chapters / source.name)
    monkeypatch.setattr(notebooks, "CHAPTERS", chapters)
    assert report.main(["--machine", MACHINE]) == 0
    text = page.page().read_text()
    assert f"Damaged record files: {len(DAMAGES) + 3} in the store." in text
    assert TIME not in text
    before = page.inputs(MACHINE)
    assert damaged.clean_store(alone=True) == len(DAMAGES) + 3
    assert page.inputs(MACHINE) != before


def test_without_damage_the_report_says_that_all_files_are_whole(stored):
    (said,) = chapter.damage()
    assert said.text == "All record files are valid: 1 of 1."
    assert "amaged" not in __main__._list(__main__.parser().parse_args(["list"]))
    stored.unlink()
    assert chapter.damage()[0].verdict == "no data"


def test_what_is_refused_overwrites_nothing_and_no_name_leads_out_of_the_store(stored):
    for name in ("attention/naive-64.r1", "../../x", "/etc/passwd", "a/\0", "x" * 300, "", ".."):
        for content in (b"one", b"two"):
            damaged.refuse("../../elsewhere", name, content, "case: not asked for\n\x1b[31m")
    kept = list(results.folder().glob("*/*/*.refused"))
    assert sorted(file.read_bytes()[:3] for file in kept) == [b"one"] * 7 + [b"two"] * 7
    assert {entry.name for entry in results.folder().parent.iterdir()} == {"results"}
    assert set(damaged.losses()["reason"]) == {"case: not asked for [31m"}
    assert results.machines() == [MACHINE]
    kept[0].write_bytes(b"")
    assert "" in set(damaged.losses()["reason"])


def test_what_is_set_aside_overwrites_nothing_and_may_have_a_long_name(stored):
    content, long = stored.read_bytes()[:-1], stored.with_name("é" * 125 + ".json")
    for number in (1, 2, 3):
        stored.write_bytes(content + bytes([number]))
        damaged.set_aside(stored)
    damaged.set_aside(stored)  # another sweep has done it already
    long.write_bytes(content)
    assert damaged.clean_store(alone=True) == 1
    assert len({file.read_bytes() for file in stored.parent.iterdir()}) == len(damaged.losses()) == 4


def test_what_is_not_ours_is_left_where_it_is(stored):
    others = [stored.with_name("notes.txt"), results.folder() / ".lock", stored.parent.parent / "list.json"]
    others += [stored.with_name("draft.tmp"), paths.runs() / "model.tmp", paths.runs() / "a/b/c/x.0123abcd.tmp"]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_text("mine")
    assert damaged.clean_store(alone=True) == 0
    assert all(other.read_text() == "mine" for other in others)
