"""Build command-line parsers whose help ends with examples and exit codes."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

BAD_INPUT = "bad input; one line names the field and the nearest valid value"
EXAMPLES, EXITS = "examples:", "exit codes:"


def interpreter() -> str:
    """Return the path of the running Python, relative if it lies below the current folder."""
    nearby = os.path.relpath(sys.executable)
    return sys.executable if nearby.startswith(os.pardir) else nearby


def parser(module: str, description: str, examples: Sequence[str], exits: Mapping[int, str]) -> argparse.ArgumentParser:
    """Return a parser for `python -m module`.

    `examples` are the words after the module's name, `exits` the meanings of exit codes other than 0."""
    program = f"python -m {module}"
    codes = {0: "success", **exits}
    lines = [EXAMPLES, *(f"  {program} {words}".rstrip() for words in examples)]
    lines += ["", EXITS, *(f"  {code:<3} {meaning}" for code, meaning in codes.items())]
    return argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
