"""Reads a sweep file: its YAML becomes kernels, each the parameters of a notebook and the cases that it measures.

Knows nothing of how a kernel runs. Nothing in a file is executed, and no name of a sweep leads out of their folder.
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

OPTIONS = {"rounds": 1, "timeout": 600, "fresh": []}  # of a block, or of the whole sweep
FRACTIONS = ("target_percent", "seconds")  # the settings that need not be whole numbers
BYTES = 16_384  # of a file, three times the longest here, and read within a second
CHARACTERS = 100  # of one value, more than any name or number has
DEPTH = 10  # of lists and mappings within one another, of which a sweep needs four
CASES = 100_000  # of a sweep, counted in each round: every one is built and looked up before the first is measured


@dataclass(frozen=True)
class Kernel:
    """One run of a notebook: its parameters, the cases that it measures, the time limit of each in seconds, and whether
    its round is their last."""

    experiment: str
    parameters: dict
    cases: list
    timeout: float
    last: bool

    @property
    def round(self) -> int:
        """The round whose records it writes."""
        return self.parameters["round"]


def load(name: str) -> list[Kernel]:
    """The kernels of the sweep of that name, round by round. Raises ValueError, naming file, field, rule and
    nearest valid name, for anything in the file that could not run."""
    validate.choice("sweep", name, notebooks.sweeps())
    file = notebooks.SWEEPS / f"{name}.yaml"
    try:
        return read(file)
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None


def read(file: Path) -> list[Kernel]:
    """The kernels of a sweep file, round by round; see `load`."""
    content = _content(file)
    if not isinstance(content, dict):
        raise ValueError("a sweep is a mapping of experiments to axes")
    options = {name: content.pop(name, default) for name, default in OPTIONS.items()}
    if not content:
        raise ValueError("a sweep names at least one experiment")
    kernels, count = [], 0
    for experiment, axes in content.items():
        validate.choice("experiment", experiment, [*cases.EXPERIMENTS, *OPTIONS])
        for block in _blocks(experiment, axes):
            checked = _checked(experiment, options | block)
            count += _count(experiment, checked)
            if count > CASES:
                raise ValueError(f"{experiment}: the sweep has more than {CASES:,} cases in all its rounds")
            kernels += _kernels(experiment, checked)
    _refuse_duplicates(kernels)
    rounds = sorted({kernel.round for kernel in kernels})
    return [kernel for r in rounds for kernel in measure.shuffled([k for k in kernels if k.round == r], r)]


def _content(file: Path) -> object:
    """What the YAML says. Raises ValueError where the file is not such a text, or a larger one than a sweep needs."""
    try:
        with file.open("rb") as opened:
            text = opened.read(BYTES + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None
    if len(text) > BYTES:
        raise ValueError(f"the file is longer than {BYTES:,} bytes")
    try:
        plain = text.decode()
        _refuse_what_no_sweep_needs(plain)
        return _reader().load(plain)
    except UnicodeDecodeError:
        raise ValueError("the file is not a text in UTF-8") from None
    except DuplicateKeyError as error:
        raise ValueError(f"{_line(error.problem_mark)}: {error.problem.partition(' with value')[0]}") from None
    except YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None


def _reader() -> YAML:
    """Return a reader of YAML 1.2: lists, mappings and plain values, with dates left as texts."""
    reader = YAML(typ="safe", pure=True)
    reader.Constructor = _WithoutDates
    return reader


class _WithoutDates(SafeConstructor):
    pass


_WithoutDates.add_constructor("tag:yaml.org,2002:timestamp", SafeConstructor.construct_yaml_str)


def _refuse_what_no_sweep_needs(text: str) -> None:
    """Raise ValueError for an alias, a merge, a tag, a long value or deep nesting, before anything is built."""
    depth = 0
    for event in _reader().parse(text):
        where = _line(event.start_mark)
        if isinstance(event, events.AliasEvent):
            raise ValueError(f"{where}: an alias, *{event.anchor[:CHARACTERS]}, must be written out")
        if getattr(event, "tag", None):
            raise ValueError(f"{where}: a tag, {str(event.tag)[:CHARACTERS]}, must be left out")
        value = getattr(event, "value", "")
        if value == "<<":
            raise ValueError(f"{where}: a merge, <<, must be written out")
        if len(value) > CHARACTERS:
            raise ValueError(f"{where}: a value of {len(value)} characters must have {CHARACTERS} or fewer")
        depth += isinstance(event, events.CollectionStartEvent) - isinstance(event, events.CollectionEndEvent)
        if depth > DEPTH:
            raise ValueError(f"{where}: lists and mappings within one another must be {DEPTH} or fewer")


def _line(mark: StreamMark) -> str:
    return f"line {mark.line + 1}"


def _blocks(experiment: str, axes) -> Iterator[dict]:
    """The blocks of an experiment, which has one or a list of them; nothing at all stands for its defaults."""
    if axes == []:
        raise ValueError(f"{experiment}: [] must be a mapping of axes to values, or a list of such")
    for block in _listed(axes):
        if block is not None and not isinstance(block, dict):
            raise ValueError(f"{experiment}: {validate.shown(block)} must be a mapping of axes to values")
        yield block or {}


def _checked(experiment: str, block: dict) -> dict:
    """The options, axes and settings of one block, the defaults of the notebook where it is silent. Raises ValueError
    for a name that is unknown, and for a value of an option or a setting that is none."""
    axes, settings = notebooks.parameters(experiment), notebooks.settings(experiment)
    for name in block:
        validate.choice(experiment, name, [*OPTIONS, *(name for name in axes if name != "round")])
    found = axes | block
    for name, least in {"rounds": 1, "timeout": 1, **settings}.items():
        _refuse_setting(f"{experiment}.{name}", found[name], least, name in FRACTIONS)
    for name in notebooks.fields(experiment):
        if found[name] is None or found[name] == [] or isinstance(found[name], dict):
            raise ValueError(f"{experiment}.{name}: {validate.shown(found[name])} must be a value or a list of values")
    for name, count in Counter(map(str, _listed(found["fresh"]))).items():
        validate.choice(f"{experiment}.fresh", name, notebooks.fields(experiment))
        if count > 1:
            raise ValueError(f"{experiment}.fresh: {name!r} stands there twice")
    return found


def _refuse_setting(field: str, value, least: int | bool, fraction: bool) -> None:
    if least is False:
        if type(value) is not bool:
            raise ValueError(f"{field}: {validate.shown(value)} must be true or false")
        return
    if type(value) is not int and not (fraction and type(value) is float and math.isfinite(value)):
        raise ValueError(f"{field}: {validate.shown(value)} must be a {'finite' if fraction else 'whole'} number")
    validate.at_least(field, value, least)
    validate.at_most(field, value)


def _count(experiment: str, block: dict) -> int:
    """The cases of a block in all its rounds."""
    return block["rounds"] * math.prod(len(_listed(block[name])) for name in notebooks.fields(experiment))


def _kernels(experiment: str, block: dict) -> list[Kernel]:
    """The kernels of one block: a kernel for each round and each value of its fresh axes."""
    fields, kernels = notebooks.fields(experiment), []
    parameters = {name: block[name] for name in notebooks.parameters(experiment)}
    pinned = [[(name, value) for value in _listed(block[name])] for name in _listed(block["fresh"])]
    for point in itertools.product(*pinned):
        chosen = parameters | dict(point)
        try:
            grid = cases.grid(experiment, **{name: chosen[name] for name in fields})
        except ValueError as error:
            raise ValueError(f"{experiment}.{error}") from None
        last = block["rounds"]
        for round in range(1, last + 1):
            kernels.append(Kernel(experiment, chosen | {"round": round}, grid, block["timeout"], round == last))
    return kernels


def _listed(value) -> list:
    return value if isinstance(value, list) else [value]


def _refuse_duplicates(kernels: list[Kernel]) -> None:
    seen = set()
    for kernel in kernels:
        for case in kernel.cases:
            if (case, kernel.round) in seen:
                raise ValueError(f"{kernel.experiment}: {case} stands in the sweep twice")
            seen.add((case, kernel.round))
