"""Read a sweep file into blocks: the cases to measure, and how many processes each gets.

A bad file is refused here, before any process starts, in one line: file, field, value, rule, nearest valid name.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from lib import catalog, notebooks, records, validate
from lib.experiments import cases

# of the whole file or of one block: name and default
OPTIONS = {"rounds": 3, "seconds": 0.4, "timeout": 600, "tier": 1, "fresh": [], "needs": ""}
LEAST = {"rounds": 1, "seconds": 0.001, "timeout": 1, "tier": 1}
MOST = {"rounds": 1000, "seconds": 3600, "timeout": 86_400, "tier": 9}
NEEDS = ("cuda", "bf16", "emulated_bf16")
LARGEST_FILE = 32_768  # bytes: several times the longest sweep here
MOST_CASES = 100_000  # of a file: each is built before the first is measured


@dataclass(frozen=True)
class Block:
    """Hold the cases of one block of a sweep file, in the order of its axes.

    Each is sampled about `seconds` in each of `rounds` processes and may take `timeout` seconds. Lower tiers come
    first. Every value of a `fresh` axis has kernels of its own. `needs` is one of `NEEDS`, or empty."""

    experiment: str
    cases: tuple
    rounds: int
    seconds: float
    timeout: float
    tier: int
    fresh: tuple[str, ...]
    needs: str


def load(name: str, rounds: int | None = None) -> list[Block]:
    """Read a sweep by its name into blocks, in the order of the file.

    `rounds` replaces those of the file, except where a block says that one is enough. Raises ValueError, in one line,
    for anything that could not run."""
    files = notebooks.sweeps()
    validate.choice("sweep", name, files)
    try:
        blocks = _read(files[name], rounds)
        _refuse_duplicates(blocks)
    except ValueError as error:
        raise ValueError(f"{files[name].name}: {error}") from None
    return blocks


def _read(file: Path, rounds: int | None) -> list[Block]:
    content = _parse_yaml(file)
    if not isinstance(content, dict):
        raise ValueError(f"file: got {validate.shown(content)}, expected a mapping of experiments to axes")
    options = dict(OPTIONS)
    for option in OPTIONS:
        if option in content:
            options[option] = content.pop(option)
            _check_option(option, option, options[option])
    if options["fresh"]:
        raise ValueError("fresh: expected in a block, since it names axes of an experiment")
    if not content:
        raise ValueError("file: got no experiment, expected at least one")
    measurable = [name for name in catalog.CATALOG if name in notebooks.experiments()]
    blocks = []
    for experiment, given_blocks in content.items():
        validate.choice("experiment", experiment, [*measurable, *OPTIONS])
        if not isinstance(given_blocks, list):
            given_blocks = [given_blocks]
        for given_block in given_blocks:
            blocks.append(_block(experiment, given_block, options, rounds))
            if sum(len(block.cases) for block in blocks) > MOST_CASES:
                raise ValueError(f"{experiment}: expected at most {MOST_CASES:,} cases in the file")
    return blocks


def _parse_yaml(file: Path) -> object:
    """Parse YAML 1.2, in which 1e-3 is a number. Raises ValueError in one line."""
    try:
        if file.stat().st_size > LARGEST_FILE:
            raise ValueError(f"file: got {file.stat().st_size:,} bytes, expected at most {LARGEST_FILE:,}")
        return YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"file: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError("file: expected UTF-8 text") from None
    except DuplicateKeyError as error:
        problem = error.problem.partition(" with value")[0]
        raise ValueError(f"line {error.problem_mark.line + 1}: {problem}") from None
    except (YAMLError, RecursionError) as error:
        raise ValueError(f"file: expected YAML: {' '.join(str(error).split())}") from None


def _block(experiment: str, content: object, options: dict, rounds: int | None) -> Block:
    """Build the cases of one block. Raises ValueError for a wrong name or value."""
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ValueError(f"{experiment}: got {validate.shown(content)}, expected a mapping of axes to values")
    axes = {}
    options = dict(options)
    fields = notebooks.fields(experiment)
    for name, value in content.items():
        validate.choice(experiment, name, [*fields, *OPTIONS])
        if name in OPTIONS:
            options[name] = value
            _check_option(f"{experiment}.{name}", name, value)
        else:
            axes[name] = value
            _check_axis(f"{experiment}.{name}", value)
    for name in options["fresh"]:
        validate.choice(f"{experiment}.fresh", name, fields)
    if math.prod(len(value) for value in axes.values() if isinstance(value, list)) > MOST_CASES:
        raise ValueError(f"{experiment}: expected at most {MOST_CASES:,} cases in a block")
    try:
        grid = tuple(cases.grid(experiment, **axes))
    except ValueError as error:
        raise ValueError(f"{experiment}.{error}") from None
    # where nothing varies, or a case takes very long, the file says one round, and more would tell nothing
    if rounds and content.get("rounds") != 1:
        options["rounds"] = rounds
    return Block(experiment, grid, **options | {"fresh": tuple(options["fresh"])})


def _check_axis(field: str, value: object) -> None:
    """Raise ValueError for what is no value and no list of values; the case checks the values themselves."""
    if value is None or value == [] or isinstance(value, dict):
        raise ValueError(f"{field}: got {validate.shown(value)}, expected a value or a list of values")


def _check_option(field: str, name: str, value: object) -> None:
    """Raise ValueError unless the value is one that the option can have."""
    if name == "needs":
        validate.choice(field, value, NEEDS)
        return
    if name == "fresh":
        if not isinstance(value, list) or not all(isinstance(axis, str) for axis in value):
            raise ValueError(f"{field}: got {validate.shown(value)}, expected a list of axes")
        return
    whole = name in ("rounds", "tier")
    is_number = type(value) is int or (not whole and type(value) is float and math.isfinite(value))
    if not is_number:
        raise ValueError(f"{field}: got {validate.shown(value)}, expected a {'whole ' if whole else ''}number")
    validate.at_least(field, value, LEAST[name])
    validate.at_most(field, value, MOST[name])


def _refuse_duplicates(blocks: list[Block]) -> None:
    """Raise ValueError if two cases would have the same record."""
    seen = set()
    for block in blocks:
        for case in block.cases:
            name = (block.experiment, records.name(asdict(case)), case.device)
            if name in seen:
                raise ValueError(f"{block.experiment}: the case {name[1]} is there twice")
            seen.add(name)
