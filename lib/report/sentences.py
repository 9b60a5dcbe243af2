"""Format the numbers of a table's row for sentences."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from lib.report.table import WITHIN
from lib.stats import digits, spans

MISSING = "–"
SECOND_MS = 1000.0

Row = tuple | pd.Series | Mapping


def ms(row: Row, name: str, finer: int = 0) -> str:
    """Return the time `<name>_ms` of a row with its unit: 69.1 (67.2 to 71.9) ms.

    From 1,000 ms on it is in seconds. A time that is missing is a dash. `finer` asks for more digits."""
    value, low, high = _triple(row, f"{name}_ms")
    unit = "ms"
    if value >= SECOND_MS:
        value, low, high = np.divide([value, low, high], SECOND_MS)
        unit = "s"
    if math.isnan(value):
        return MISSING
    return f"{_join(*spans.between(value, low, high, finer))} {unit}"


def number(row: Row, name: str) -> str:
    """Return the value `<name>` of a row with its ends: 310 (300 to 330).

    Without ends it is what a cell of a table shows; a missing one is a dash."""
    value, low, high = _triple(row, name)
    if math.isnan(low):
        return plain(value)
    return _join(*spans.between(value, low, high))


def mib(row: Row, name: str) -> str:
    """Return the memory `<name>_mib` of a row: 16.12 MiB, or a dash."""
    value = _cell(row, f"{name}_mib")
    if math.isnan(value):
        return MISSING
    # bytes are counted, and so known to every digit
    return f"{digits.number(value, 0.0)} MiB"


def times(row: Row, phase: str = "") -> str:
    """Say what a row's speedup means: 3.30× (3.10 to 3.50) faster than naive.

    A `phase`, such as "forward", compares that part of an iteration."""
    prefix = f"{phase}_" if phase else ""
    verdict = _cell(row, f"{prefix}verdict")
    value, low, high = _triple(row, f"{prefix}speedup")
    if math.isnan(value):
        return "not compared"
    if verdict == "slower":
        value, low, high = np.divide(1, [value, high, low])
    text, *ends = spans.ratio_between(value, low, high)
    factor = _join(f"{text}×", *ends)
    rival = _cell(row, "baseline")
    if _cell(row, "interval") == WITHIN:
        rival += " in this process"
    elif _cell(row, "paired_rounds") == 1 and ends[0]:
        # its interval is by how much the processes of other cases differ
        rival += ", in one process"
    if verdict in ("faster", "slower"):
        return f"{factor} {verdict} than {rival}"
    if verdict == "same":
        return f"as fast as {rival}: {factor}"
    if not ends[0]:
        # a ratio without an interval can be anything but close to one, and still decides nothing
        return f"{factor} as fast as {rival}, without an interval: its rounds are too few or too far apart"
    if not phase and _cell(row, "advice") == "probable":
        return f"probably faster than {rival}, but unclear: {factor}"
    return f"neither clearly faster nor slower than {rival}: {factor}"


def against(row: Row, rival: Row, name: str) -> str:
    """Say how the times `<name>_ms` of two rows stand that were no pairs, each by its own interval.

    It reads 22 (19 to 25) ms against 5.1 (4.4 to 6.0) ms, intervals apart. Where the ends would contradict that as they
    are rounded, times have a digit more."""
    both = [_triple(side, f"{name}_ms") for side in (row, rival)]
    if np.isnan(both).any():
        return f"{ms(row, name)} against {ms(rival, name)}, no intervals"
    is_apart = _are_apart(*both)
    shown = [[float(text.replace(",", "") or "nan") for text in spans.between(*triple)] for triple in both]
    finer = int(_are_apart(*shown) != is_apart)
    verdict = "intervals apart" if is_apart else "intervals overlap"
    return f"{ms(row, name, finer)} against {ms(rival, name, finer)}, {verdict}"


def _are_apart(triple: Sequence[float], rival: Sequence[float]) -> bool:
    """Tell if the ends of two values, which follow the values, leave a gap."""
    return triple[1] > rival[2] or triple[2] < rival[1]


def sides(rows: pd.DataFrame, way: str, rival: str, name: str) -> str:
    """Say by `against` how the times of two ways stand in each model that has both.

    It reads in tiny 20 (16 to 25) ms against 18 (15 to 21) ms, intervals overlap; in small …. `rows` have a column
    `way`, and the order of models (`size`)."""
    models = []
    for size, of_size in rows.drop_duplicates(["size", "way"]).set_index("way").groupby("size", sort=False):
        if {way, rival} <= set(of_size.index):
            models.append(f"in {size} {against(of_size.loc[way], of_size.loc[rival], name)}")
    return "; ".join(models)


def extremes(values: Iterable[float], style: str = "") -> str:
    """Return the least and the greatest value, or the one that both read as: 2.4 to 2.9, or 2.5.

    `style` formats them, as in ".2g"."""
    low, high = (format(end(values, default=math.nan), style) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def apart(rows: pd.DataFrame, name: str, expected: str) -> tuple[list, list]:
    """Return the index of rows whose interval of `name` lies above `expected`, and of those below it.

    `expected` is a column, too, with ends or without. A value without an interval is neither."""
    above = rows[f"{name}_low"] > rows.get(f"{expected}_high", rows[expected])
    below = rows[f"{name}_high"] < rows.get(f"{expected}_low", rows[expected])
    return list(rows.index[above]), list(rows.index[below])


def _triple(row: Row, name: str) -> tuple[float, float, float]:
    """Return a value of a row and the ends of its interval, NaN if missing."""
    return _cell(row, name), _cell(row, f"{name}_low"), _cell(row, f"{name}_high")


def _cell(row: Row, name: str) -> object:
    # a row of itertuples() is a named tuple
    if isinstance(row, tuple):
        return getattr(row, name, math.nan)
    return row.get(name, math.nan)


def _join(value: str, low: str, high: str) -> str:
    if not low:
        return value
    return f"{value} ({low} to {high})"


def plain(value: object) -> str:
    """Format one value without ends as plain text."""
    if pd.isna(value):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    # a count is a float where another case has none
    if isinstance(value, int | np.integer) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value):,}".replace("-", "−")
    if isinstance(value, float):
        return digits.number(value)
    return str(value)
