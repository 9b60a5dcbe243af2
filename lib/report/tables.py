"""Show data frames as captioned tables, in HTML for the page and JupyterLab, as pipe tables for Markdown."""

import html
import math
import re

import pandas as pd

from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval

MOST_COLUMNS = 8
MISSING = "–"
FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point, in tabular numerals
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
        kinds = {column: _kind(self.frame[column]) for column in self.frame}
        heads = ""
        for column, kind in kinds.items():
            heads += f'<th scope="col" class="{kind}">{html.escape(str(column))}</th>'
        columns = [_html_cells(self.frame[column], kind) for column, kind in kinds.items()]
        rows = ""
        for row in zip(*columns, strict=True):
            rows += f"<tr>{''.join(row)}</tr>"
        caption = html.escape(self.caption)
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption>{caption}</figcaption>'
            f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}</figure>"
        )

    def _repr_markdown_(self) -> str:
        if self.frame.empty:
            return ""
        heads = [_escaped(str(column)) for column in self.frame]
        rule = ["---:" if _kind(self.frame[column]) == "number" else "---" for column in self.frame]
        lines = [heads, rule]
        for row in self.frame.itertuples(index=False, name=None):
            lines.append([_escaped(_text(value)) for value in row])
        pipes = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        note = f"\n\n{_escaped(self.note)}" if self.note else ""
        return f"**{_escaped(self.caption)}**\n\n{pipes}{note}\n"


def _text(value: object) -> str:
    """Format one cell as plain text."""
    if isinstance(value, str):
        return value
    if isinstance(value, Comparison):
        return f"{value}"
    if isinstance(value, Interval):
        return MISSING if math.isnan(value.value) else f"{value}"
    if pd.isna(value):
        return MISSING
    if pd.api.types.is_bool(value):
        return "yes" if value else "no"
    if pd.api.types.is_integer(value):
        return f"{value:,}"
    if pd.api.types.is_float(value):
        return f"{Interval(value, math.nan, math.nan, 0, 0)}"
    return str(value)


def _is_number(value: object) -> bool:
    """Tell whether a cell is set as a number."""
    if isinstance(value, Interval | Comparison):
        return True
    return pd.api.types.is_number(value) and not pd.api.types.is_bool(value)


def _kind(cells: pd.Series) -> str:
    """Return how a column is set, as `number` or as `text`."""
    return "number" if any(_is_number(value) and not pd.isna(value) for value in cells) else "text"


def _html_cells(cells: pd.Series, kind: str) -> list[str]:
    """Return a column's cells as HTML, each value over its range, numbers aligned at the point."""
    values, ranges = [], []
    for cell in cells:
        text = _text(cell)
        parts = RANGE.match(text) if _is_number(cell) else None
        values.append(parts[1] + parts[3] if parts else text)
        ranges.append(parts[2].replace(" to ", "–") if parts else "")
    if kind == "number":
        values = _aligned(values)
    made = []
    for value, ends in zip(values, ranges, strict=True):
        below = f"<small>{html.escape(ends)}</small>" if any(ranges) else ""
        made.append(f'<td class="{kind}">{html.escape(value)}{below}</td>')
    return made


def _aligned(texts: list[str]) -> list[str]:
    """Pad plain numbers so that their points align, flush right in tabular numerals."""
    if not all(re.fullmatch(r"−?[\d,]+(\.\d+)?|–", text) for text in texts):
        return texts
    decimals = [len(text.partition(".")[2]) for text in texts]
    most = max(decimals)
    padded = []
    for text, count in zip(texts, decimals, strict=True):
        point = POINT_SPACE if most and not count else ""
        padded.append(text if text == MISSING else text + point + FIGURE_SPACE * (most - count))
    return padded


def _escaped(text: str) -> str:
    """Escape what Markdown would read as marks, on one line."""
    return re.sub(r"[\\`*|~<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
