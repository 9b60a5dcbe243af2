"""Format frames as captioned tables of HTML and Markdown."""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from lib.report.sentences import plain
from lib.report.table import WITHIN
from lib.stats import digits, spans
from lib.validate import BadInput

MOST_COLUMNS = 8
NOT_MEASURED = "not measured by this sweep"
LINE = '<p class="missing">'  # how a line begins that says what is missing
UNITS = {
    "ms": "ms", "us": "µs", "ns": "ns", "s": "s", "mib": "MiB", "gib": "GiB", "mb": "MB", "bytes": "bytes",
    "gbs": "GB/s", "tflops": "TFLOP/s", "gflops": "GFLOP/s", "percent": "%",
}  # fmt: skip


def note(table: pd.DataFrame) -> str:
    """Say what rows come from: rounds, samples, hardware and builds.

    Then count what is noisy, took new memory, has fewer pairs, or is stale."""
    measured = table[table["rounds"] > 0]
    if measured.empty:
        return ""
    rounds = sorted({measured["rounds"].min(), measured["rounds"].max()})
    words = " to ".join(map(str, rounds))
    parts = [f"{words} round{'s' if rounds[-1] > 1 else ''} a case"]
    timed = measured[measured["samples"] > 0]
    if len(timed):
        parts[0] += f", at least {timed['samples'].min()} samples a round"
    parts.append("; ".join(measured["hardware"].unique()))
    if (measured["interval"] == WITHIN).any():
        parts.append("Intervals are those within one process")
    if measured["noisy"].any():
        parts.append(f"{measured['noisy'].sum()} of {measured['rounds'].sum()} records noisy")
    if measured["new_memory"].any():
        parts.append(f"{measured['new_memory'].sum()} took new memory in each sample")
    is_fewer = measured["paired_rounds"].between(1, measured["rounds"], inclusive="left")
    if is_fewer.any():
        fewest = measured.loc[is_fewer, "paired_rounds"].min()
        parts.append(f"Ratios of fewer rounds: {is_fewer.sum()}, of at least {fewest}")
    if (measured["builds"] > 1).any():
        parts.append("Rounds of several builds of PyTorch")
    if measured["stale"].any():
        parts.append("Some records are stale: older code measured them")
    return ". ".join(parts) + "."


def show(frame: pd.DataFrame, caption: str, note: str = "", columns: Sequence[str] = (), key: str = "") -> "Table":
    """Return a frame as a table that notebooks display, with its caption and note.

    With a `key`, what it shows is kept as an answer, which other notebooks quote.

    Columns `X`, `X_low` and `X_high` are one column of values with their ends. Heads come from the names: `total_ms` is
    "total, ms". Rates in TFLOP/s that are all below one are shown in GFLOP/s. `columns` names those to show, with the
    ends that the frame has; by default it shows all. Columns in which no row has anything are left out, and a
    frame that has no measured value is one line. Raises BadInput for more than 8 columns."""
    if columns:
        frame = frame.reindex(columns=_with_ends(columns, frame))
    frame = _scale_rates(frame)
    numbers = frame.select_dtypes("number")
    names = _shown_columns(frame) if _has_values(frame) else []
    if len(names) > MOST_COLUMNS:
        raise BadInput(f"columns: got {len(names)}, expected at most {MOST_COLUMNS}")
    kinds = ["number" if name in numbers else "text" for name in names]
    cells = [_format_column(frame, name) for name in names]
    return Table(caption, note, [_head(name) for name in names], kinds, list(zip(*cells, strict=True)), key)


def _with_ends(columns: Sequence[str], frame: pd.DataFrame) -> list[str]:
    """Return the names of columns, each before those of its ends that the frame has."""
    names = []
    for name in columns:
        ends = frame.columns.intersection([f"{name}_low", f"{name}_high"], sort=False)
        names += [name, *ends]
    return names


def _scale_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with its TFLOP/s in GFLOP/s, if the largest is below one."""
    rates = frame.filter(regex=r"_tflops(_low|_high)?$").astype(float)
    if rates.empty or not rates.max(axis=None) < 1:
        return frame
    # in place first, so that the columns keep their order
    heads = dict(zip(rates.columns, rates.columns.str.replace("_tflops", "_gflops"), strict=True))
    return frame.assign(**1e3 * rates).rename(columns=heads)


def _has_values(frame: pd.DataFrame) -> bool:
    """Tell if a frame has a measured value, or says what happened instead."""
    numbers = frame.select_dtypes("float")
    if numbers.shape[1] and numbers.isna().all(axis=None):
        return "status" in frame and bool((frame["status"] != "").any())
    return not frame.empty


def _shown_columns(frame: pd.DataFrame) -> list[str]:
    """List the columns with anything in them, without the ends of another."""
    names = []
    for name in frame:
        is_end = str(name).endswith(("_low", "_high")) and name.rpartition("_")[0] in frame
        if not is_end and (frame[name].notna() & (frame[name] != "")).any():
            names.append(name)
    return names


def _head(name: object) -> str:
    """Return a column's head: "total, ms" for `total_ms`."""
    quantity, _, unit = str(name).rpartition("_")
    if quantity and unit in UNITS:
        return f"{quantity.replace('_', ' ')}, {UNITS[unit]}"
    return str(name).replace("_", " ")


def _format_column(frame: pd.DataFrame, name: str) -> list[tuple[str, str]]:
    """Format the cells of a column: value, and ends "(67–72)" or empty."""
    ends = frame.reindex(columns=[f"{name}_low", f"{name}_high"])
    has_ends = ends.columns.isin(frame.columns).all()
    texts = []
    for value, low, high in zip(frame[name], *ends.astype(float).to_numpy().T, strict=True):
        text = plain(value)
        if pd.notna(value) and str(name).endswith("speedup"):
            text, low, high = spans.ratio_between(value, low, high)
            text += "×"
        elif pd.notna(value) and has_ends and str(name).endswith("_mib") and math.isnan(low):
            # bytes are counted, so those of one process are exact
            text, low = digits.number(value, 0.0), ""
        elif pd.notna(value) and has_ends:
            text, low, high = spans.between(value, low, high)
        else:
            low = ""
        texts.append((text, f"({low}–{high})" if low else ""))
    return texts


@dataclass(frozen=True, repr=False)
class Table:
    """Hold a table's texts: heads, kinds of columns, rows of values with ends."""

    caption: str
    note: str
    heads: Sequence[str]
    kinds: Sequence[str]
    rows: Sequence[Sequence[tuple[str, str]]]
    key: str = ""

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        """Return no data, which the other methods give, and the answer of this table as metadata."""
        if not (self.key and self.rows):
            return {}, {}
        return {}, {"answer": self.key, "text": self._repr_markdown_()}

    def _repr_html_(self) -> str:
        caption = html.escape(self.caption)
        if not self.rows:
            return f"{LINE}{caption}: {NOT_MEASURED}</p>"
        heads = ""
        for head, kind in zip(self.heads, self.kinds, strict=True):
            heads += f'<th scope="col" class="{kind}">{html.escape(head)}</th>'
        rows = ""
        for row in self.rows:
            cells = "".join(map(_html_cell, row, self.kinds))
            rows += f"<tr>{cells}</tr>"
        note = ""
        if self.note:
            note = f'<p class="note">{html.escape(self.note)}</p>'
        return (
            f'<figure class="table"><figcaption>{caption}</figcaption>'
            f'<div class="scroll" tabindex="0" role="group" aria-label="{caption}">'
            f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>{note}</figure>"
        )

    def _repr_markdown_(self) -> str:
        if not self.rows:
            return f"{_escape(self.caption)}: {NOT_MEASURED}\n"
        rules = {"number": "---:", "text": "---"}
        lines = [_pipes(map(_escape, self.heads)), _pipes(map(rules.get, self.kinds))]
        for row in self.rows:
            lines.append(_pipes(_escape(f"{value} {ends}") for value, ends in row))
        # a blank line stands between the caption, the table and the note
        parts = [f"**{_escape(self.caption)}**", "\n".join(lines), _escape(self.note)]
        return "\n\n".join(filter(None, parts)) + "\n"

    __repr__ = _repr_markdown_


def _html_cell(cell: tuple[str, str], kind: str) -> str:
    """Return a cell as HTML; the style sheet shows its ends below the value."""
    value, ends = cell
    text = html.escape(value)
    # a long name may break after an underscore; unlike a hyphen, <wbr> is not copied
    text = text.replace("_", "_<wbr>")
    if ends:
        text += f" <small>{ends}</small>"
    return f'<td class="{kind}">{text}</td>'


def _pipes(cells: Iterable[str]) -> str:
    """Return one line of a pipe table."""
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Escape what Markdown would read as marks, on one line."""
    # an underscore within a word is no mark
    return re.sub(r"[\\`*|~<\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
