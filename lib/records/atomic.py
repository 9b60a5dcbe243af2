"""Writes a file whole or not at all, and says in words why it cannot."""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

ENDING = ".tmp"  # of a file in the making
UNFINISHED = re.compile(r".+\.[0-9a-f]{8}\.tmp")
WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "a file may not become so large here, see `ulimit -f`",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "to write there is not permitted",
    errno.EPERM: "to write there is not permitted",
    errno.ENOENT: "the folder is gone",
    errno.ENOTDIR: "there is a file in the place of a folder",
    errno.EEXIST: "there is a file in the place of a folder",
    errno.ENAMETOOLONG: "the name is too long for the file system",
}
UNABLE_TO_SETTLE = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # by a file system that offers no fsync of a folder


class CannotWrite(OSError):
    """The system refuses to write in a folder, its `filename`, for a reason, its `strerror`, which is in words."""

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written, {self.strerror}"


@contextlib.contextmanager
def in_words(folder: Path) -> Iterator[None]:
    """An OSError of the block becomes a CannotWrite that names the folder."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        reason = WORDS.get(error.errno, error.strerror or str(error))
        raise CannotWrite(error.errno, reason, str(folder)) from error


def write(target: Path, content: bytes) -> None:
    """Make `content` the file `target`, on disk when this returns. Raises CannotWrite, and then an earlier file of that
    name is as it was. The folder must be there, since one that is gone has taken other files along; its own last
    two levels are made."""
    with in_words(target.parent):
        for folder in (target.parent.parent, target.parent):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                _settle(folder.parent)
        try:
            _replace(target, content)
        except FileNotFoundError:  # someone who just begins here took the temporary file for a leftover
            _replace(target, content)


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}{ENDING}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    _settle(target.parent)


def _settle(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where its file system can tell."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in UNABLE_TO_SETTLE:
            raise
    finally:
        os.close(opened)


def sweep_leftovers(folder: Path) -> int:
    """Remove the files in the making that whoever made them left behind when it was killed, in a folder and the two
    levels below it, where records and executed notebooks are written; returns how many."""
    every = [file for depth in ("*", "*/*", "*/*/*") for file in folder.glob(depth + ENDING)]
    found = [file for file in every if UNFINISHED.fullmatch(file.name) and (file.is_symlink() or not file.is_dir())]
    with in_words(folder):
        for file in found:
            file.unlink(missing_ok=True)
    return len(found)
