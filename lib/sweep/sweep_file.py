"""Read a sweep file into kernels: the parameters of a notebook and the cases that it measures.

Nothing in a file is executed. The name of a sweep leads to a file in the folder of sweeps, or to the one that
`paths.unclear` names.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML, events
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import StreamMark, YAMLError

from lib import notebooks, validate
from lib.experiments import cases, measure
from lib.instruments import device

REPORT, QUICK = "report", {"cuda": "quick-gpu"}  # what `make report` measures on a device, elsewhere `quick`
OPTIONS = {"rounds": 1, "timeout": 600, "fresh": [], "tier": 1, "needs": None}  # for a block or for the whole sweep
NEEDED = ("cuda", "bf16", "emulated_bf16")  # what `notebooks/sweeps/README.md` says of each
TIERS = 3
FRACTIONS = ("target_percent", "seconds")  # settings that may be fractions
BYTES = 16_384  # of a file: somewhat more than the longest here, and still read within a second
CHARACTERS = 100  # of one value: longer than any name or number
DEPTH = 10  # of nested lists and mappings; a sweep needs four
CASES = 100_000  # of a sweep in all rounds: each is built and looked up before the first is measured


@dataclass(frozen=True)
class Kernel:
    """A notebook's parameters and cases in a round; `timeout` is in seconds, `last` marks the last round.

    Lower tiers are measured first. `needs` is what the machine must have: one of `NEEDED`, or None."""

    experiment: str
    parameters: dict
    cases: list
    timeout: float
    last: bool
    tier: int
    needs: str | None

    @property
    def round(self) -> int:
        """Return the round of its records."""
        return self.parameters["round"]


def picked(name: str) -> str:
    """Return the name of a sweep; `report` stands for the one that shows this machine's device in short."""
    return QUICK.get(device.named(), "quick") if name == REPORT else name


def load(name: str) -> list[Kernel]:
    """Read a sweep by name into its kernels, round by round.

    Raises ValueError, with file, field, rule and nearest valid name, for anything that could not run."""
    files = notebooks.sweeps()
    validate.choice("sweep", name, files)
    file = files[name]
    try:
        return read(file)
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None


def read(file: Path) -> list[Kernel]:
    """Read a sweep file into its kernels; see `load`.

    They are ordered by round, then by entry as in the file, and at random where an entry has several."""
    content = _parse_yaml(file)
    if not isinstance(content, dict):
        raise ValueError("expected a mapping of experiments to axes")
    options = {name: content.pop(name, default) for name, default in OPTIONS.items()}
    if not content:
        raise ValueError("expected at least one experiment")
    entries, count = [], 0
    for experiment, axes in content.items():
        validate.choice("experiment", experiment, [*cases.EXPERIMENTS, *OPTIONS])
        for block in _blocks(experiment, axes):
            full = _with_defaults(experiment, options | block)
            count += full["rounds"] * math.prod(len(_as_list(full[name])) for name in notebooks.fields(experiment))
            if count > CASES:
                raise ValueError(f"{experiment}: the sweep has more than {CASES:,} cases in all rounds")
            entries.append(_kernels(experiment, full))
    _refuse_duplicates(list(itertools.chain.from_iterable(entries)))
    rounds = sorted({kernel.round for entry in entries for kernel in entry})
    mixed = [measure.shuffled([k for k in entry if k.round == r], r) for r in rounds for entry in entries]
    return list(itertools.chain.from_iterable(mixed))


def _parse_yaml(file: Path) -> object:
    """Parse the YAML of a file. Raises ValueError if it is invalid, too large or unsafe."""
    try:
        with file.open("rb") as opened:
            text = opened.read(BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(text) > BYTES:
        raise ValueError(f"the file is longer than {BYTES:,} bytes")
    try:
        plain = text.decode()
        _refuse_unsafe_yaml(plain)
        return _reader().load(plain)
    except UnicodeDecodeError:
        raise ValueError("the file is not UTF-8 text") from None
    except DuplicateKeyError as error:
        raise ValueError(f"{_line(error.problem_mark)}: {error.problem.partition(' with value')[0]}") from None
    except YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def _reader() -> YAML:
    """Return a reader of YAML 1.2 with lists, mappings and plain values; dates stay texts."""
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _WithoutDates
    return reader


class _WithoutDates(SafeConstructor):
    pass


_WithoutDates.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def _refuse_unsafe_yaml(text: str) -> None:
    """Raise ValueError for an alias, merge, tag, long value or deep nesting, before any is built."""
    depth = 0
    for event in _reader().parse(text):
        where = _line(event.start_mark)
        if isinstance(event, events.AliasEvent):
            raise ValueError(f"{where}: got an alias, *{event.anchor[:CHARACTERS]}, expected its value")
        if getattr(event, "tag", None):
            raise ValueError(f"{where}: got a tag, {str(event.tag)[:CHARACTERS]}, expected none")
        value = getattr(event, "value", "")
        if value == "<<":
            raise ValueError(f"{where}: got a merge, <<, expected its fields")
        if len(value) > CHARACTERS:
            raise ValueError(f"{where}: got a value of {len(value)} characters, expected at most {CHARACTERS}")
        depth += isinstance(event, events.CollectionStartEvent) - isinstance(event, events.CollectionEndEvent)
        if depth > DEPTH:
            raise ValueError(f"{where}: expected at most {DEPTH} nested lists and mappings")


def _line(mark: StreamMark) -> str:
    return f"line {mark.line + 1}"


def _blocks(experiment: str, axes) -> Iterator[dict]:
    """Yield an experiment's blocks: one or a list of them; an empty one takes all defaults."""
    if axes == []:
        raise ValueError(f"{experiment}: got [], expected a mapping of axes to values, or a list of mappings")
    for block in _as_list(axes):
        if block is not None and not isinstance(block, dict):
            raise ValueError(f"{experiment}: got {validate.shown(block)}, expected a mapping of axes to values")
        yield block or {}


def _with_defaults(experiment: str, block: dict) -> dict:
    """Complete a block with the notebook's defaults. Raises ValueError for a wrong name or value."""
    axes, settings = notebooks.parameters(experiment), notebooks.settings(experiment)
    for name in block:
        validate.choice(experiment, name, [*OPTIONS, *(name for name in axes if name != "round")])
    full = axes | block
    for name, least in {"rounds": 1, "timeout": 1, "tier": 1, **settings}.items():
        _refuse_setting(f"{experiment}.{name}", full[name], least, name in FRACTIONS)
    validate.at_most(f"{experiment}.tier", full["tier"], TIERS)
    if full["needs"] is not None:
        validate.choice(f"{experiment}.needs", full["needs"], NEEDED)
    for name in notebooks.fields(experiment):
        if full[name] is None or full[name] == [] or isinstance(full[name], dict):
            got = validate.shown(full[name])
            raise ValueError(f"{experiment}.{name}: got {got}, expected a value or a list of values")
    for name, count in Counter(map(str, _as_list(full["fresh"]))).items():
        validate.choice(f"{experiment}.fresh", name, notebooks.fields(experiment))
        if count > 1:
            raise ValueError(f"{experiment}.fresh: duplicate {name!r}")
    return full


def _refuse_setting(field: str, value, least: int | bool, fraction: bool) -> None:
    if least is False:
        if type(value) is not bool:
            raise ValueError(f"{field}: got {validate.shown(value)}, expected true or false")
        return
    if type(value) is not int and not (fraction and type(value) is float and math.isfinite(value)):
        raise ValueError(f"{field}: got {validate.shown(value)}, expected a {'finite' if fraction else 'whole'} number")
    validate.at_least(field, value, least)
    validate.at_most(field, value)


def _kernels(experiment: str, block: dict) -> list[Kernel]:
    """Make a kernel of a block for each round and each combination of its fresh axes."""
    fields, kernels = notebooks.fields(experiment), []
    parameters = {name: block[name] for name in notebooks.parameters(experiment)}
    pinned = [[(name, value) for value in _as_list(block[name])] for name in _as_list(block["fresh"])]
    for point in itertools.product(*pinned):
        chosen = parameters | dict(point)
        try:
            grid = cases.grid(experiment, **{name: chosen[name] for name in fields})
        except ValueError as error:
            raise ValueError(f"{experiment}.{error}") from None
        last = block["rounds"]
        for round in range(1, last + 1):
            mine, ended = chosen | {"round": round}, round == last
            kernels.append(Kernel(experiment, mine, grid, block["timeout"], ended, block["tier"], block["needs"]))
    return kernels


def _as_list(value) -> list:
    return value if isinstance(value, list) else [value]


def _refuse_duplicates(kernels: list[Kernel]) -> None:
    seen = set()
    for kernel in kernels:
        for case in kernel.cases:
            if (case, kernel.round) in seen:
                raise ValueError(f"{kernel.experiment}: duplicate case {case}")
            seen.add((case, kernel.round))
