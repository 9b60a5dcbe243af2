"""Builds the parsers of the command lines, whose help ends with examples and exit codes; knows no command."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

BAD_INPUT = "bad input, told in one line with the nearest valid name"
EXAMPLES, EXITS = "examples:", "exit codes:"


def interpreter() -> str:
    """The running Python as one types it: from the current folder, where it lies below that."""
    nearby = os.path.relpath(sys.executable)
    return sys.executable if nearby.startswith(os.pardir) else nearby


def parser(module: str, description: str, examples: Sequence[str], exits: Mapping[int, str]) -> argparse.ArgumentParser:
    """A parser for `python -m module` whose help ends with the examples, each what follows the module's name, and with
    what each exit code means beside 0, success."""
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
