"""The store against damaged files, kills in the middle of a write, and disks that take no more: whatever is no whole
record is found, shown nowhere, set aside, counted and measured again, and what was whole before stays so."""

import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import pytest
import storing
from faults import ROOT, count, moment

from lib import atomic, estimates, folders, inventory, notebook, quarantine, report, results, shell, tables
from lib.record import checksum, dump, parse

CASE = {"variant": "naive", "seq_len": 64}
TIME = "987.654321"  # what the record that is damaged measured, and nothing may show
MACHINE = "test-1c"
KEPT = results.REFERENCE / "epyc-2c" / "step"
pytestmark = pytest.mark.filterwarnings("ignore:.* left out")


@pytest.fixture
def stored(save_record, tmp_path, monkeypatch):
    """The file of a record in a store that holds nothing else, with nothing kept in git."""
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "none")
    return save_record(case=CASE, total_ms=[float(TIME)], small_error=[1e-7], flops=7, names=["one", "two"])


def shown() -> str:
    """All that tables, the statement on damage and the command line show of the store."""
    records = results.load("attention", MACHINE)
    table = tables.show(estimates.medians(records, "total_ms"), "variant seq_len total_ms", "Times")
    parts = [table, *inventory.damage()]
    texts = [text for part in parts for text in (part._repr_html_(), part._repr_markdown_())]
    return "".join([*texts, str(records.to_dict()), shell._list(shell.parser().parse_args(["list"]))])


def assert_found(file, kind=""):
    """A damaged file is found and its value shown nowhere; it is moved with its reason, and counted; and the case is
    measured again."""
    assert results.status(file) is None, kind
    assert len(results.load("attention", MACHINE, round=1)) == 0, kind
    seen = quarantine.losses()
    assert list(seen["where"]) == [quarantine.STORE], kind
    text = shown()
    assert "1 in the store" in text, kind
    assert TIME not in text, kind
    assert quarantine.tidy(alone=True) == 1, kind
    assert not os.path.lexists(file), kind
    moved = quarantine.losses()
    assert list(moved["where"])[-1] == quarantine.ASIDE, kind
    assert list(moved["reason"])[-1] == seen["reason"].iloc[0], kind
    text = shown()
    assert "in quarantine" in text, kind
    assert TIME not in text, kind


def sealed(record) -> bytes:
    """A record's bytes with a checksum that is right for whatever it holds, NaN too."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"checksum": digest}, indent=1).encode()


def altered(change):
    """The damage of a record whose parts are changed, and whose checksum is right again."""

    def damage(content: bytes) -> bytes:
        record = json.loads(content)
        change(record)
        return sealed(record)

    return damage


def times(value):
    return altered(lambda record: record["metrics"].update(total_ms=[value]))


def field(name, value):
    return altered(lambda record: record.update({name: value}))


def renamed(old: str, new: str):
    return lambda content: content.replace(old.encode(), new.encode())


DAMAGES = {
    "empty": lambda content: b"",
    "spaces": lambda content: b"   ",
    "another schema": field("schema", 2),
    "a schema that only equals": field("schema", 1.0),
    "a schema that is true": field("schema", True),
    "NaN": times(float("nan")),
    "Infinity": times(float("inf")),
    "minus Infinity": times(float("-inf")),
    "an infinity in digits": renamed(TIME, "1e999"),
    "a number too long to be one": renamed(TIME, "9" * 5000),
    "a number beyond double precision": renamed(TIME, "9" * 400),
    "a negative time": times(-float(TIME)),
    "a time of zero": times(0.0),
    "a time that is true": times(True),
    "a time as text": times(TIME),
    "a time that is null": times(None),
    "lists in lists": times([float(TIME)]),
    "a table whose column is none": altered(lambda record: record["metrics"].update(table={"total_us": 3})),
    "a field twice": renamed('"round": 1,', '"round": 1,\n "round": 1,'),
    "a metric twice": renamed('"flops": 7,', '"flops": 8,\n  "flops": 7,'),
    "a field more": altered(lambda record: record.update(comment="")),
    "a field less": altered(lambda record: record.pop("code")),
    "fields in another order": altered(lambda record: record.update(code=record.pop("code"))),
    "an unknown status": field("status", "fine"),
    "a status in a list": field("status", ["ok"]),
    "a round that is true": field("round", True),
    "a round before the first": field("round", -1),
    "a case that is a list": field("case", []),
    "a case with a list": altered(lambda record: record["case"].update(seq_len=[64])),
    "metrics that are a list": field("metrics", []),
    "an environment that is text": field("environment", "none"),
    "an environment without machine": altered(lambda record: record["environment"].pop("machine")),
    "a machine that is a number": altered(lambda record: record["environment"].update(machine=7)),
    "a start that is no date": field("started", "yesterday"),
    "seconds that are text": field("seconds", "1"),
    "seconds below zero": field("seconds", -1.0),
    "seconds that are NaN": field("seconds", float("nan")),
    "code that is a number": field("code", 0),
    "a checksum of something else": renamed(TIME, "987.654322"),
    "no checksum": lambda content: content[: content.rindex(b'"checksum"')] + b'"checksum": ""\n}',
    "a digit beyond double precision": renamed(TIME, TIME + "0000000000000001"),
    "an exponent in capitals": renamed("1e-07", "1E-07"),
    "a letter as its code": renamed('"naive"', '"\\u006eaive"'),
    "a line more": lambda content: content + b"\n",
    "ends of lines of Windows": renamed("\n", "\r\n"),
    "tabs": renamed("\n ", "\n\t"),
    "on one line": lambda content: json.dumps(json.loads(content)).encode(),
    "a mark of its encoding": lambda content: b"\xef\xbb\xbf" + content,
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "not UTF-8": lambda content: content.replace(b"naive", b"na\xefve"),
    "zeros": lambda content: bytes(len(content)),
    "zeros at its end": lambda content: content[:-100] + bytes(100),
    "twice in one file": lambda content: content + content,
    "a list": lambda content: b"[]",
    "a number": lambda content: TIME.encode(),
    "nested deeply": lambda content: b"[" * 1_000_000,
    "an object nested deeply": lambda content: b'{"a":' * 100_000,
    "noise": lambda content: random.Random(0).randbytes(5000),
    "a script": lambda content: b"<script>alert(1)</script>",
    "a pickle": lambda content: b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.",
    "the record of another machine": altered(lambda record: record["environment"].update(machine="test-2c")),
    "the record of another experiment": field("experiment", "adam"),
    "the record of another case": altered(lambda record: record["case"].update(seq_len=128)),
    "the record of another round": field("round", 2),
}


@pytest.mark.faults(7, "a damaged record of many kinds")
def test_a_damaged_record_is_found_shown_nowhere_set_aside_counted_and_measured_again(stored, tally):
    whole = stored.read_bytes()
    parse(whole)
    for number, (kind, damage) in enumerate(DAMAGES.items(), 1):
        with tally.injection():
            shutil.rmtree(folders.quarantine(), ignore_errors=True)
            stored.write_bytes(damage(whole))
            os.utime(stored, (number, number))  # times of files are coarser than this loop
            assert stored.read_bytes() != whole
            assert_found(stored, kind)
    stored.write_bytes(whole)
    assert results.status(stored) == "ok"
    assert quarantine.tidy(alone=True) == 0


def example() -> bytes:
    """A record as it was measured, with samples of everything."""
    return min(KEPT.glob("*.r1.json"), key=lambda file: file.stat().st_size).read_bytes()


def refused(content: bytes) -> bool:
    try:
        parse(content)
    except ValueError as error:
        return "\n" not in str(error)
    return False


@pytest.mark.faults(7, "a record cut short, at every byte")
def test_a_record_cut_short_at_any_byte_is_found(stored, tally):
    content = example()
    parse(content)
    for length in range(len(content)):
        with tally.injection():
            assert refused(content[:length]), f"cut to {length}"
    whole, chance = stored.read_bytes(), random.Random(1)
    for length in chance.sample(range(len(whole)), count(10, len(whole))):
        with tally.injection():
            shutil.rmtree(folders.quarantine(), ignore_errors=True)
            stored.write_bytes(whole[:length])
            assert_found(stored, f"cut to {length}")


@pytest.mark.faults(7, "a record with one bit turned, at every byte")
def test_a_record_of_which_any_bit_is_turned_is_found(stored, tally):
    content, chance = example(), random.Random(2)
    for position in range(len(content)):
        for bit in chance.sample(range(8), count(1, 8)):
            turned = bytearray(content)
            turned[position] ^= 1 << bit
            with tally.injection():
                assert refused(bytes(turned)), f"bit {bit} of byte {position}"
    whole = stored.read_bytes()
    for position in chance.sample(range(len(whole)), count(10, len(whole))):
        with tally.injection():
            shutil.rmtree(folders.quarantine(), ignore_errors=True)
            turned = bytearray(whole)
            turned[position] ^= 1 << chance.randrange(8)
            stored.write_bytes(turned)
            os.utime(stored, (position + 1, position + 1))
            assert_found(stored, f"byte {position}")


@pytest.mark.faults(7, "a record of 1 GB")
@pytest.mark.parametrize("beginning", ["whole", "nothing"])
def test_a_file_of_a_gigabyte_is_refused_without_being_read(stored, tally, beginning):
    with stored.open("r+b") as file:
        if beginning == "nothing":
            file.truncate(0)
        file.truncate(2**30)
    with tally.injection():
        tracemalloc.start()
        assert_found(stored)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 50e6
    assert "size: 1,024 MiB" in quarantine.losses()["reason"].iloc[0]


def a_link(to):
    return lambda file: file.symlink_to(to)


def a_full_folder(file):
    file.mkdir()
    (file / "inside").write_text(TIME)


@pytest.mark.faults(7, "no file in the place of a record")
@pytest.mark.parametrize("stand_in", [Path.mkdir, a_full_folder, a_link("nowhere"), a_link("."), os.mkfifo, "loop"])
def test_what_is_no_file_in_the_place_of_a_record_is_set_aside_unopened(stored, tally, stand_in):
    stored.unlink()
    if stand_in == "loop":
        stand_in = a_link(stored.name)
    stand_in(stored)
    with tally.injection():
        assert_found(stored)


@pytest.mark.faults(7, "a record in the place of another")
@pytest.mark.parametrize(
    "place",
    ["naive-64.r2", "naive-128.r1", "sdpa-64.r1", "naive-64", "../adam/naive-64.r1", "../../test-2c/attention/x"],
)
def test_a_whole_record_in_the_place_of_another_is_damaged(stored, tally, place):
    copy = stored.parent / f"{place}.json"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stored, copy)
    with tally.injection():
        assert results.status(copy) is None
        assert results.status(stored) == "ok"
        assert quarantine.tidy(alone=True) == 1
        assert results.status(stored) == "ok"
        assert quarantine.losses()["reason"].tolist() == ["place: the record is another's"]
    assert results.machines() == [MACHINE]


def test_the_report_counts_what_is_damaged_and_shows_none_of_it(stored, tmp_path, monkeypatch):
    axes = ("d_head", "batch_size", "causal", "precision", "cold", "device")
    whole = stored.read_bytes()
    for number, damage in enumerate(DAMAGES.values()):
        (stored.parent / f"naive-{number}.r1.json").write_bytes(damage(whole))
    (stored.parent / "naive-big.r1.json").mkdir()
    stored.write_bytes(whole[:-1])
    elsewhere = stored.parents[1] / "adam" / "<b>bold</b>\udcff.r1.json"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(b"")
    assert not set(axes) & set(results.load("attention", MACHINE)["variant"])
    chapters = tmp_path / "chapters"
    chapters.mkdir()
    for name in ("07_attention", "90_records"):
        shutil.copyfile(notebook.NOTEBOOKS / "report" / f"{name}.ipynb", chapters / f"{name}.ipynb")
    monkeypatch.setattr(report, "CHAPTERS", chapters)
    assert report.main(["--machine", MACHINE]) == 0
    page = report.page().read_text()
    assert f"Damaged files of records: {len(DAMAGES) + 3} in the store." in page
    assert TIME not in page
    before = report.inputs(MACHINE)
    assert quarantine.tidy(alone=True) == len(DAMAGES) + 3
    assert report.inputs(MACHINE) != before


def test_without_damage_the_report_says_that_all_files_are_whole(stored):
    (said,) = inventory.damage()
    assert said.text == "All 1 files of records are whole."
    assert "amaged" not in shell._list(shell.parser().parse_args(["list"]))
    stored.unlink()
    assert inventory.damage()[0].verdict == "no data"


def test_quarantine_overwrites_nothing_and_no_name_leads_out_of_it(stored):
    for name in ("attention/naive-64.r1", "../../x", "/etc/passwd", "a/\0", "attention/" + "x" * 300, "", ".."):
        for content in (b"one", b"two"):
            quarantine.refuse("../../elsewhere", name, content, "case: not asked for\nsecond line")
    kept = [file for file in folders.quarantine().glob("*/*/*") if not file.name.endswith(quarantine.REASON)]
    assert sorted(file.read_bytes() for file in kept) == [b"one"] * 7 + [b"two"] * 7
    outside = {entry.name for entry in results.folder().parent.iterdir()}
    assert outside == {"results", "quarantine"}
    assert set(quarantine.losses()["reason"]) == {"case: not asked for"}


def test_what_another_sweep_has_set_aside_already_is_no_error(stored):
    quarantine.set_aside(stored, "bytes: damaged")
    quarantine.set_aside(stored, "bytes: damaged")
    assert len(quarantine.losses()) == 1


def test_a_reason_that_is_gone_or_noise_is_no_error(stored):
    quarantine.set_aside(stored, "bytes: damaged")
    (note,) = folders.quarantine().rglob(f"*{quarantine.REASON}")
    note.write_bytes(b"\xff\x00\x1b[31m" * 1000)
    assert "\x1b" not in quarantine.losses()["reason"].iloc[0]
    note.unlink()
    assert list(quarantine.losses()["reason"]) == [quarantine.UNKNOWN]


def test_what_is_not_ours_is_left_where_it_is(stored):
    others = [stored.with_name("notes.txt"), results.folder() / ".lock", stored.parent.parent / "list.json"]
    for other in others:
        other.write_text("mine")
    assert quarantine.tidy(alone=True) == 0
    assert all(other.read_text() == "mine" for other in others)


def test_other_sweeps_in_the_folder_keep_what_they_are_writing(stored):
    writing = stored.with_name(f"{stored.name}.0{atomic.ENDING}")
    writing.write_text("{")
    quarantine.tidy(alone=False)
    assert writing.exists()
    quarantine.tidy(alone=True)
    assert not writing.exists()


def test_a_temporary_file_that_someone_took_for_a_leftover_is_written_again(own_results, monkeypatch):
    replace, taken = os.replace, []

    def sweep_first(temporary, target):
        if not taken:
            taken.append(temporary.unlink())
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", sweep_first)
    storing.save(1)
    assert results.status(results.folder() / MACHINE / "attention" / "naive-1.r1.json") == "ok"


def in_a_child(work) -> int:
    """Start `work` in a child process, which can be killed without harm to this one; returns its id."""
    if child := os.fork():
        return child
    try:
        work()
    finally:
        os._exit(0)


def after_the_kill(acknowledged: list[int], tally) -> int:
    """Nothing that was said to be on disk is lost, nothing torn counts, what is left over goes; how much that is."""
    with tally.injection():
        whole = {file.name for file in quarantine.files(results.folder()) if results.read(file)}
        assert {f"naive-{number}.r1.json" for number in acknowledged} <= whole
        left = list(results.folder().rglob(f"*{atomic.ENDING}"))
        assert quarantine.tidy(alone=True) == 0
        assert not list(results.folder().rglob(f"*{atomic.ENDING}"))
    return len(left)


@pytest.mark.faults(3, "kill -9 of a process that saves without end")
def test_a_kill_while_records_are_written_tears_none(own_results, tally):
    acknowledged, leftovers = [], 0
    for _ in range(count(20, 200)):
        reading, writing = os.pipe()
        first = len(acknowledged) + 1
        say = lambda number, to=writing: os.write(to, f"{number}\n".encode())  # noqa: E731
        child = in_a_child(lambda first=first, say=say: storing.loop(first, None, say))
        os.close(writing)
        moment(0.1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(reading) as told:
            acknowledged += map(int, told.read().split())
        leftovers += after_the_kill(acknowledged, tally)
    tally.notes.append(f"{len(acknowledged)} records, {leftovers} leftovers")
    assert acknowledged


def halfway(file, content):
    file.write(content[: len(content) // 2])
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.faults(3, "kill -9 at each step of a write")
@pytest.mark.parametrize("step", ["mkdir", "open", "write", "fsync", "replace", "replaced"])
def test_a_kill_at_each_step_of_a_write_leaves_the_earlier_record_or_the_new_one(own_results, tally, step):
    if step != "mkdir":
        storing.save(1)
    file = own_results / MACHINE / "attention" / "naive-1.r1.json"
    before = file.read_bytes() if file.exists() else None

    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def replaced(temporary, target, replace=os.replace):
        replace(temporary, target)
        kill()

    class Torn:
        """A file of which half is written when the process dies."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            halfway(self.file, content)

    def work():
        plain = Path.open
        patches = {
            "mkdir": (Path, "mkdir", kill), "open": (Path, "open", kill), "fsync": (os, "fsync", kill),
            "write": (Path, "open", lambda path, mode: Torn(plain(path, mode))),
            "replace": (os, "replace", kill), "replaced": (os, "replace", replaced),
        }  # fmt: skip
        setattr(*patches[step])
        storing.save(1)

    child = in_a_child(work)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    left = after_the_kill([1] if before else [], tally)
    assert left == (step in ("write", "fsync", "replace"))
    assert before is None or file.read_bytes() == before
    storing.save(1)
    assert results.status(file) == "ok"


def run(command: list[str], folder: Path, **settings) -> subprocess.CompletedProcess:
    variables = os.environ | {"RESULTS": str(folder / "results"), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, **settings)


STORING = [sys.executable, str(ROOT / "tests" / "storing.py")]


def refused_in_one_line(done, reason) -> list[int]:
    """The numbers that were saved before the system refused to write."""
    assert done.returncode == 74, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"attention: cannot be written, {reason}" in done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.faults(4, "a limit on the size of files")
def test_a_limit_on_the_size_of_files_costs_that_record_alone(own_results, tally):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    storing.save(3)
    with tally.injection():
        assert refused_in_one_line(run([*STORING, "5"], own_results.parent, preexec_fn=limit), "a file may not") == []
        assert [file.name for file in own_results.rglob("*.*")] == ["naive-3.r1.json"]
        assert run([*STORING, "5"], own_results.parent).returncode == 0
        assert quarantine.tidy(alone=True) == 0


MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]


def may_mount() -> bool:
    """Whether a file system of our own can be mounted, which no one else sees."""
    if not shutil.which("unshare"):
        return False
    tried = subprocess.run([*MOUNT, f"mount -t tmpfs none {tempfile.gettempdir()}"], capture_output=True)
    return tried.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """Run a script of the shell where `$DISK` is a file system of 1 MiB, of which nothing remains afterwards."""
    if not may_mount():
        pytest.skip("no file system can be mounted here")
    disk = tmp_path / "disk"
    disk.mkdir()

    def script(text):
        return run([*MOUNT, f"DISK={disk}; mount -t tmpfs -o size=1M none $DISK; {text}"], disk)

    return script


SAVE = f"{STORING[0]} {STORING[1]}"
CHECK = (
    f"{STORING[0]} -c 'from lib import quarantine as q, results as r; print(q.tidy(True), len(q.files(r.folder())))'"
)


@pytest.mark.faults(4, "a disk that is full")
def test_a_full_disk_leaves_the_earlier_records_whole_and_the_same_command_goes_on(small_disk, tally):
    with tally.injection():
        done = small_disk(
            f"{SAVE} 100 && exit 1 || code=$?; ls $DISK/results/*/*/*.tmp >&2 2>/dev/null || true; {CHECK};"
            f"mount -o remount,size=100M $DISK; {SAVE} 20 >/dev/null; {CHECK}; exit $code"
        )
        *numbers, damaged, files, damaged_later, files_later = refused_in_one_line(done, "the disk is full")
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 1
        assert (damaged, files) == (0, len(numbers))
        assert (damaged_later, files_later) == (0, 20)


@pytest.mark.faults(4, "a disk that becomes read-only")
def test_a_disk_that_becomes_read_only_is_one_clear_line(small_disk, tally):
    with tally.injection():
        done = small_disk(f"{SAVE} 2; mount -o remount,ro $DISK; {SAVE} 3 || code=$?; {CHECK}; exit $code")
        assert refused_in_one_line(done, "the file system is read-only") == [1, 2, 0, 2]


@pytest.mark.faults(4, "a damaged record on a read-only disk")
def test_what_cannot_be_set_aside_is_one_clear_line_and_still_not_shown(small_disk, tally):
    with tally.injection():
        done = small_disk(f"{SAVE} 1; echo >> $DISK/results/*/*/*.json; mount -o remount,ro $DISK; {CHECK}")
        assert done.returncode != 0
        assert "quarantine/test-1c/attention: cannot be written, the file system is read-only" in done.stderr


@pytest.mark.faults(4, "a folder without permission to write")
def test_a_folder_that_may_not_be_written_is_one_clear_line(monkeypatch, tally):
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("RESULTS", f"{name}/results")
        storing.save(1)
        kept = next(Path(name).rglob("*.json"))
        for folder in kept.parents[:4]:
            folder.chmod(0o555)
        kept.chmod(0o644)
        root = os.geteuid() == 0  # whom permissions do not bind
        try:
            if root:
                os.seteuid(65534)
            with tally.injection(), pytest.raises(atomic.CannotWrite, match="to write there is not permitted$"):
                storing.save(2)
        finally:
            if root:
                os.seteuid(0)
            for folder in kept.parents[:4]:
                folder.chmod(0o755)
        assert quarantine.tidy(alone=True) == 0
        assert [file.name for file in Path(name).rglob("*.*")] == ["naive-1.r1.json"]


@pytest.mark.faults(4, "a folder that is gone, or a file in its place")
@pytest.mark.parametrize("level", range(3))
def test_a_folder_that_is_gone_is_not_made_again_unasked(own_results, tally, level):
    storing.save(1)
    content = (own_results / MACHINE / "attention" / "naive-1.r1.json").read_bytes()
    gone = [own_results, own_results / MACHINE, own_results / MACHINE / "attention"][level]
    shutil.rmtree(gone)
    with tally.injection():
        if level == 0:
            with pytest.raises(atomic.CannotWrite, match="the folder is gone$"):
                results.write(content)
            assert not gone.exists()
        else:  # those of a machine and of an experiment are made whenever they are needed
            results.write(content)
            shutil.rmtree(gone)
        gone.write_text("in the way")
        with pytest.raises(atomic.CannotWrite, match="a file in the place of a folder$"):
            results.write(content)
        with pytest.raises(atomic.CannotWrite, match="a file in the place of a folder$"):
            storing.save(1)
        gone.unlink()
        storing.save(1)


@pytest.mark.faults(4, "an error of the system, simulated")
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE])
def test_any_error_of_any_step_keeps_the_earlier_record(own_results, tally, monkeypatch, call, number):
    storing.save(1)
    file = own_results / MACHINE / "attention" / "naive-1.r1.json"
    before = file.read_bytes()

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with tally.injection(), monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, fail)
        with pytest.raises(atomic.CannotWrite) as raised:
            storing.save(1)
        assert str(raised.value).startswith(f"{file.parent}: cannot be written, ")
        assert raised.value.errno == number
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_of_folders_is_no_error(own_results, monkeypatch, number):
    fsync = os.fsync

    def files_alone(opened):
        if os.path.isdir(f"/proc/self/fd/{opened}"):
            raise OSError(number, os.strerror(number))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", files_alone)
    storing.save(1)
    assert checksum(json.loads(next(own_results.rglob("*.json")).read_text()))


def test_a_record_says_its_place_and_no_other_is_written(own_results, save_record):
    with pytest.raises(ValueError, match="machine"):
        results.save(
            machine="another", experiment="attention", case=CASE, round=1, status="ok", metrics={},
            environment={"hardware": "a test", "machine": MACHINE}, code="0", started="2026-01-01", seconds=1.0,
        )  # fmt: skip
    record = results.read(save_record(case=CASE, total_ms=[1.0]))
    for case in ({"variant": "../../../x", "seq_len": 1}, {"variant": "a/b", "seq_len": 1}):
        outside = record | {"case": case}
        with pytest.raises(ValueError, match="name"):
            results.write(dump(outside | {"checksum": checksum(outside)}))
    assert not [file for file in own_results.parent.rglob("x*")]
