"""Read a sweep file into blocks of cases; refuse a bad one in one line."""

import dataclasses
import itertools
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from ruamel.yaml import YAML

from lib import notebooks, records, validate
from lib.catalog import CATALOG
from lib.experiments import cases


@dataclass(frozen=True)
class Options:
    """Hold what a sweep file, or one of its blocks, may say besides axes.

    A case is sampled about `seconds` in each of `rounds` processes and may take `timeout` seconds. Lower tiers come
    first. Every value of a `fresh` axis has kernels of its own. `needs` leaves cases out:

    - `cuda` those for other devices;
    - `bf16` those in bf16 on a CPU that emulates it;
    - `emulated_bf16` those that are not on such a CPU."""

    rounds: int = field(default=3, metadata={"most": 1000})
    seconds: float = 0.4
    timeout: float = 600
    tier: int = field(default=1, metadata={"most": 9})
    fresh: list = field(default_factory=list)
    needs: str = field(default="nothing", metadata={"names": ("nothing", "cuda", "bf16", "emulated_bf16")})

    def __post_init__(self):
        validate.fields(self)
        validate.at_least("seconds", self.seconds, 0.001)
        validate.at_least("timeout", self.timeout, 1)


OPTIONS = [option.name for option in dataclasses.fields(Options)]


class Block(NamedTuple):
    """Hold a block's axes, all of the experiment's, and its options."""

    experiment: str
    axes: dict
    options: Options

    @property
    def cases(self) -> list:
        """Return instances of the experiment's class, in the order of `cases.grid`."""
        return cases.grid(self.experiment, **self.axes)

    def split(self) -> list[dict]:
        """Return the axes of each execution: one a device and value of a `fresh` axis."""
        names = list(dict.fromkeys([*self.options.fresh, "device"]))
        points = itertools.product(*[cases.as_list(self.axes[name]) for name in names])
        return [self.axes | dict(zip(names, point, strict=True)) for point in points]


def load(name: str, rounds: int | None = None) -> list[Block]:
    """Read a sweep by its name into blocks, in the order of the file.

    `rounds` replaces those of the file, except where a block says that one is enough. Raises ValueError, in one line,
    for anything that could not run."""
    files = notebooks.sweeps()
    validate.choice("sweep", name, files)
    if rounds is not None:
        # checked by itself, since the file is not to blame
        Options(rounds)
    try:
        return _blocks(_parse_yaml(files[name]), rounds)
    except ValueError as error:
        raise ValueError(f"{files[name].name}: {error}") from None


def _parse_yaml(file: Path) -> object:
    """Parse YAML 1.2, in which 1e-3 is a number. Raises ValueError in one line."""
    try:
        return YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
    # ruamel raises errors of many kinds, for a tag or an escape that its value does not fit, or deep nesting
    except Exception as error:
        raise ValueError(f"file: expected YAML: {' '.join(str(error).split())}") from None


def _blocks(content: object, rounds: int | None) -> list[Block]:
    if not isinstance(content, dict):
        raise ValueError(f"file: got {validate.shown(content)}, expected a mapping of experiments to axes")
    options = Options(**{name: content.pop(name) for name in OPTIONS if name in content})
    blocks = []
    for experiment, given_blocks in content.items():
        # the options are taken out, but a mistyped name may be meant as one
        validate.choice("experiment", experiment, [*CATALOG, *OPTIONS])
        if not isinstance(given_blocks, list):
            given_blocks = [given_blocks]
        if not given_blocks:
            raise ValueError(f"{experiment}: got no block, expected at least one")
        for given_block in given_blocks:
            blocks.append(_block(experiment, given_block, options, rounds))
    names = Counter()
    for block in blocks:
        names.update(f"{block.experiment}: the case {records.name(asdict(case))}" for case in block.cases)
    if not names:
        raise ValueError("file: got no experiment, expected at least one")
    ((name, times),) = names.most_common(1)
    if times > 1:
        # they would have the same record
        raise ValueError(f"{name} is there twice")
    return blocks


def _block(experiment: str, content: object, options: Options, rounds: int | None) -> Block:
    """Build one block. Raises ValueError for a wrong name or value."""
    if not isinstance(content, dict | None):
        raise ValueError(f"{experiment}: got {validate.shown(content)}, expected a mapping of axes to values")
    axes = dict(content or {})
    fields = records.fields(experiment)
    for name in axes:
        validate.choice(experiment, name, [*fields, *OPTIONS])
    own_options = {name: axes.pop(name) for name in OPTIONS if name in axes}
    try:
        options = dataclasses.replace(options, **own_options)
        # a block says one round itself where nothing varies or a case takes very long: --rounds leaves it so
        if rounds is not None and own_options.get("rounds") != 1:
            options = dataclasses.replace(options, rounds=rounds)
        for axis in options.fresh:
            validate.choice("fresh", axis, fields)
        # refuses an impossible case
        cases.grid(experiment, **axes)
    except ValueError as error:
        raise ValueError(f"{experiment}.{error}") from None
    return Block(experiment, cases.all_axes(experiment, axes), options)
