"""Write a file completely or not at all; errors say in plain words what went wrong."""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

ENDING = ".tmp"  # of a file that is being written
UNFINISHED = re.compile(r".+\.[0-9a-f]{8}\.tmp")
REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "a file may not grow beyond the limit that `ulimit -f` shows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "the folder is gone",
    errno.ENOTDIR: "there is a file where a folder is expected",
    errno.EEXIST: "there is a file where a folder is expected",
    errno.ENAMETOOLONG: "the name is too long for the file system",
}
FSYNC_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)  # for folders, on some file systems


class CannotWrite(OSError):
    """An OSError in plain words: `filename` is the folder, `strerror` the reason."""

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written, {self.strerror}"


@contextlib.contextmanager
def as_cannot_write(folder: Path) -> Iterator[None]:
    """Turn an OSError of the block into a CannotWrite that names the folder."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        reason = REASONS.get(error.errno, error.strerror or str(error))
        raise CannotWrite(error.errno, reason, str(folder)) from error


def write(target: Path, content: bytes) -> None:
    """Write `content` to `target`; it is on disk when this returns.

    Creates the last two folders of the path, but none above them: if one is missing, other files are gone too.
    Raises CannotWrite; an earlier file then stays unchanged."""
    with as_cannot_write(target.parent):
        for folder in (target.parent.parent, target.parent):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                _sync(folder.parent)
        try:
            _replace(target, content)
        except FileNotFoundError:  # a sweep that just started removed the temporary file as a leftover
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
    _sync(target.parent)


def _sync(folder: Path) -> None:
    """Wait until the names in a folder are on disk, if the file system supports it."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in FSYNC_UNSUPPORTED:
            raise
    finally:
        os.close(opened)


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files of killed writers in a folder and two levels below; return the count."""
    every = [file for depth in ("*", "*/*", "*/*/*") for file in folder.glob(depth + ENDING)]
    found = [file for file in every if UNFINISHED.fullmatch(file.name) and (file.is_symlink() or not file.is_dir())]
    with as_cannot_write(folder):
        for file in found:
            file.unlink(missing_ok=True)
    return len(found)
