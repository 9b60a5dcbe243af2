"""The disk is full, files are damaged, sweep files are random: said in one line, nothing torn, nothing lost."""

import contextlib
import os
import random
import subprocess
import tempfile
from pathlib import Path

import pytest

from lib import notebooks, records
from lib.sweep import sweep_file

TEXT = "rounds: 1\ncheap: {number: [1, 2, 3, 4, 5, 6, 7, 8], pause_ms: 50}"
ALL_OK = {(number, 1): "ok" for number in range(1, 9)}


@contextlib.contextmanager
def small_disk(mib):
    """Mount a disk of a few MiB in the memory; needs rights that not every machine gives."""
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as folder:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("no small disk can be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("full", ["results", "tmp"])
def test_a_full_disk(cheap_sweep, tally, full):
    for left_bytes in (0, 2000, 6000, 20_000):
        with small_disk(1) as disk, tally.fault():
            sweep = cheap_sweep(TEXT)
            sweep.variables |= {"RESULTS": str(disk / "r" / "results")} if full == "results" else {"TMPDIR": str(disk)}
            sweep.results = Path(sweep.variables["RESULTS"])
            ballast = disk / "ballast"
            ballast.write_bytes(bytes(2**20 - 16_384 * (full == "results") - left_bytes))
            with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
                while os.statvfs(disk).f_bavail * 4096 > left_bytes:
                    file.write(bytes(4096))
            code, printed = sweep.run()
            assert code in (0, 1, 74), printed
            assert "Traceback" not in printed, printed
            assert "damaged" not in sweep.statuses().values()
            before = sweep.files()
            ballast.unlink()
            code, printed = sweep.run()
            assert (code, sweep.statuses()) == (0, ALL_OK), printed
            assert all(sweep.files()[name] == content for name, content in before.items())
            sweep.remove()


def damaged(content):
    position = random.randrange(len(content))
    flipped = bytes([content[position] ^ (1 << random.randrange(8))])
    return random.choice(
        [
            b"", content[:position], content[:position] + flipped + content[position + 1 :], bytes(len(content)),
            content + content, b"[" * 100_000, os.urandom(200),
        ]
    )  # fmt: skip


def test_damaged_records_are_measured_again_and_the_others_stay(cheap_sweep, tally):
    sweep = cheap_sweep(TEXT)
    assert sweep.run()[0] == 0
    for _ in range(4):
        before = sweep.files()
        files = random.sample(sorted(sweep.results.glob("*/cheap/*.json")), 4)
        for file in files:
            file.write_bytes(damaged(file.read_bytes()))
        code, printed = sweep.run()
        for file in files:
            with tally.fault():
                # a flipped bit within white space changes nothing that a record says
                assert (code, records.read(file)["status"]) == (0, "ok"), printed
        with tally.fault():
            untouched = before.keys() - {file.name for file in files}
            assert all(sweep.files()[name] == before[name] for name in untouched)


def mutated(text):
    characters = list(text)
    for _ in range(random.randint(1, 3)):
        position = random.randrange(len(characters))
        characters[position] = random.choice(
            ["", "[", "]", "{", "}", ":", ",", "-", "&a", "*a", "!", "\n", "\t", "\0", "é", "9"]
        )
    return "".join(characters)


def test_random_sweep_files_are_read_or_refused_in_one_line(tmp_path, tally, monkeypatch):
    originals = [file.read_text() for file in notebooks.sweeps().values()]
    monkeypatch.setattr(notebooks, "SWEEPS", tmp_path)
    for _ in range(300):
        (tmp_path / "random.yaml").write_text(mutated(random.choice(originals)))
        with tally.fault():
            try:
                sweep_file.load("random")
            except ValueError as error:
                line = str(error)
                assert "\n" not in line, line
                assert len(line) < 1000, line
