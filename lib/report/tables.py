"""Show data frames as captioned tables, in HTML or as pipe tables."""

import html
import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from lib.stats import digits
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval
from lib.validate import BadInput

MOST_COLUMNS = 8
MISSING = "–"
RANGE = re.compile(r"^(.*?) \(([^()]*)\)(.*)$")  # of `81 (79 to 83)` and `3.3× (3.1 to 3.5) faster`


def table(frame: pd.DataFrame, caption: str, note: str = "") -> "Table":
    """Return a frame as a table that notebooks display, an empty one as nothing.

    Column names carry their unit: "time, ms". Cells are Intervals, Comparisons, numbers, booleans or texts. Raises
    BadInput for more than 8 columns."""
    if frame.shape[1] > MOST_COLUMNS:
        raise BadInput(f"columns: got {frame.shape[1]}, expected at most {MOST_COLUMNS}")
    return Table(frame, caption, note)


@dataclass(frozen=True, repr=False)
class Table:
    """Hold a frame with its caption and note."""

    frame: pd.DataFrame
    caption: str
    note: str

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return ""
        kinds = [_kind(cells) for _, cells in self.frame.items()]
        heads = ""
        for name, kind in zip(self.frame, kinds, strict=True):
            heads += f'<th scope="col" class="{kind}">{html.escape(str(name))}</th>'
        rows = ""
        for row in self.frame.itertuples(index=False, name=None):
            rows += f"<tr>{''.join(map(_html_cell, row, kinds))}</tr>"
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
        kinds = [_kind(cells) for _, cells in self.frame.items()]
        lines = [_pipes(map(str, self.frame)), _pipes(map(rules.get, kinds))]
        lines += [_pipes(map(_text, row)) for row in self.frame.itertuples(index=False, name=None)]
        # a blank line stands between the caption, the table and the note
        parts = [f"**{_escape(self.caption)}**", "\n".join(lines), _escape(self.note)]
        return "\n\n".join(filter(None, parts)) + "\n"

    __repr__ = _repr_markdown_


def _pipes(cells: Iterable[str]) -> str:
    """Return one line of a pipe table."""
    return f"| {' | '.join(map(_escape, cells))} |"


def _text(value: object) -> str:
    """Format one cell as plain text."""
    if pd.isna(getattr(value, "value", value)):
        return MISSING
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer):
        return f"{value:,}"
    if isinstance(value, float | np.floating):
        return digits.number(value)
    return f"{value}"


def _kind(cells: pd.Series) -> str:
    """Return how a column is set, as `number` or as `text`."""
    for cell in cells.dropna():
        if isinstance(cell, Interval | Comparison | int | float | np.number) and not isinstance(cell, bool):
            return "number"
    return "text"


def _html_cell(value: object, kind: str) -> str:
    """Return a cell as HTML; the style sheet shows its range below the value."""
    text = html.escape(_text(value))
    match = RANGE.match(text)
    if match and isinstance(value, Interval | Comparison):
        text = f"{match[1]}{match[3]} <small>{match[2].replace(' to ', '–')}</small>"
    # a long name may break after an underscore; unlike a hyphen, <wbr> is not copied
    return f'<td class="{kind}">{text.replace("_", "_<wbr>")}</td>'


def _escape(text: str) -> str:
    """Escape what Markdown would read as marks, on one line."""
    # an underscore within a word is no mark
    return re.sub(r"[\\`*|~<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
