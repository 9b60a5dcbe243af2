"""Hold records, or what is computed from them, in a table that knows where it comes from."""

from typing import ClassVar

import pandas as pd


class Frame(pd.DataFrame):
    """A table that keeps its origin through selections, assignments and concatenation.

    - `experiment` and `fields`: the experiment of its records and the fields of their cases.
    - `left_out`: how many stale records are missing, in words.
    - `what`: the kind of number of its intervals, for a table's note.
    - `records`: the names of the records that it was computed from.
    - `printed`: True for rows of a printed table, which have no records.
    - `version`: that of the machine's files when its records were loaded (see `results.version`).

    >>> table = Frame({"a": [1, 2]}).with_origin(experiment="step", fields=["a"])
    >>> table[table["a"] > 1].experiment
    'step'
    """

    _metadata: ClassVar = ["experiment", "fields", "left_out", "what", "records", "printed", "version"]
    experiment: str = ""
    fields: tuple[str, ...] | list[str] = ()
    left_out: str = ""
    what: str = ""
    records: tuple[str, ...] = ()
    printed: bool = False
    version: int = 0

    @property
    def _constructor(self):
        return Frame

    def __finalize__(self, other, method=None, **options):
        """Take over the origin of the table that this one was made from; of several, that of the first."""
        first = next(iter(getattr(other, "objs", [])), other) if method == "concat" else other
        return super().__finalize__(first, method=method, **options) if isinstance(first, pd.DataFrame) else self

    @classmethod
    def origin(cls, table: pd.DataFrame, name: str):
        """Return a part of a table's origin, or its default for a table without one."""
        return getattr(table if isinstance(table, cls) else cls, name)

    def with_origin(self, other: pd.DataFrame | None = None, **origin) -> "Frame":
        """Set the origin to that of another table, or as given; return the table."""
        taken = {name: getattr(other, name) for name in self._metadata} if isinstance(other, Frame) else {}
        for name, value in (taken | origin).items():
            object.__setattr__(self, name, value)
        return self
