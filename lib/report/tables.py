"""Show data frames as captioned tables, in HTML for the page and JupyterLab, as pipe tables for Markdown."""

import html
import math
import re
from collections.abc import Iterable

import pandas as pd

from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval

MOST_COLUMNS = 8
MISSING = "–"
RANGE = re.compile(r"^(.*?) \(([^()]*)\)(.*)$")  # of `81 (79 to 83)` and `3.3× (3.1 to 3.5) faster`


def table(frame: pd.DataFrame, caption: str, note: str = "") -> "Table":
    """Return a frame as a table that notebooks display; an empty frame displays nothing.

    Column names carry their unit: "time, ms". Cells are Intervals, Comparisons, numbers, booleans or texts. Raises
    ValueError for more than 8 columns."""
    if frame.shape[1] > MOST_COLUMNS:
        raise ValueError(f"columns: got {frame.shape[1]}, expected at most {MOST_COLUMNS}")
    return Table(frame, caption, note)


class Table:
    """Hold a frame with its caption and note."""

    def __init__(self, frame: pd.DataFrame, caption: str, note: str):
        self.frame, self.caption, self.note = frame, caption, note

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return ""
        heads = ""
        columns = []
        for name in self.frame:
            kind = _kind(self.frame[name])
            heads += f'<th scope="col" class="{kind}">{html.escape(str(name))}</th>'
            columns.append(_html_cells(self.frame[name], kind))
        rows = ""
        for row in zip(*columns, strict=True):
            rows += f"<tr>{''.join(row)}</tr>"
        caption = html.escape(self.caption)
        note = ""
        if self.note:
            note = f'<p class="note">{html.escape(self.note)}</p>'
        return (
            f'<figure class="table"><figcaption>{caption}</figcaption>'
            f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}</figure>"
        )

    def _repr_markdown_(self) -> str:
        if self.frame.empty:
            return ""
        rules = {"number": "---:", "text": "---"}
        heads = map(str, self.frame)
        lines = [_pipes(heads), _pipes(rules[_kind(self.frame[name])] for name in self.frame)]
        for row in self.frame.itertuples(index=False, name=None):
            lines.append(_pipes(map(_text, row)))
        # a blank line stands between the caption, the table and the note
        parts = [f"**{_escaped(self.caption)}**", "\n".join(lines), _escaped(self.note)]
        return "\n\n".join(filter(None, parts)) + "\n"

    def __repr__(self) -> str:
        return self._repr_markdown_()


def _pipes(cells: Iterable[str]) -> str:
    """Return one line of a pipe table."""
    return f"| {' | '.join(map(_escaped, cells))} |"


def _text(value: object) -> str:
    """Format one cell as plain text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Comparison):
        return f"{value}"
    if pd.api.types.is_bool(value):
        return {True: "yes", False: "no"}[bool(value)]
    if pd.api.types.is_integer(value):
        return f"{value:,}"
    if not isinstance(value, Interval):
        if pd.isna(value):
            return MISSING
        value = Interval(value, math.nan, math.nan, 0, 0)
    if math.isnan(value.value):
        return MISSING
    return f"{value}"


def _is_number(value: object) -> bool:
    """Tell whether a cell is set as a number."""
    if isinstance(value, Interval | Comparison):
        return True
    return pd.api.types.is_number(value) and not pd.api.types.is_bool(value)


def _kind(cells: pd.Series) -> str:
    """Return how a column is set, as `number` or as `text`."""
    if cells.map(_is_number).any() and cells.notna().any():
        return "number"
    return "text"


def _html_cells(cells: pd.Series, kind: str) -> list[str]:
    """Return a column's cells as HTML, each value over its range."""
    tagged = []
    for cell in cells:
        text = html.escape(_text(cell))
        match = RANGE.match(text)
        if match and _is_number(cell):
            text = f"{match[1]}{match[3]}<small>{match[2].replace(' to ', '–')}</small>"
        # a long name may break there, and is copied without a mark
        text = text.replace("_", "_<wbr>")
        tagged.append(f'<td class="{kind}">{text}</td>')
    return tagged


def _escaped(text: str) -> str:
    """Escape what Markdown would read as marks, on one line."""
    return re.sub(r"[\\`*|~<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
