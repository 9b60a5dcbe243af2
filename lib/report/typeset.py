"""Sets the cells of a table as LaTeX and Typst, by pandas' own writers, for those who write a text of their own;
knows neither records nor how the report shows a table."""

import html
import re
from collections.abc import Sequence

import pandas as pd

PADDING = "\u2007\u2008"  # what aligns numbers in the report, and would be noise in another text
LATEX = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "[": "{[}", "]": "{]}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "`": r"\textasciigrave{}", '"': "''"}
    | {"×": r"$\times$", "µ": r"\textmu{}", "²": r"$^2$", "−": "$-$", "→": r"$\to$", "≥": r"$\ge$", "≤": r"$\le$"}
)
TYPST = str.maketrans({mark: f"\\{mark}" for mark in "\\#$*_`<>@[]~/"})


def words(cell: str) -> str:
    """A cell's HTML as the text that it shows, what stands small below a value in brackets behind it."""
    text = re.sub(r"<small>(.+?)</small>", r" (\1)", cell)
    text = html.unescape(re.sub(r"<[^>]+>", "", text.replace("<br>", ": ")))
    return re.sub(r"\s+", " ", text.translate(dict.fromkeys(map(ord, PADDING)))).strip()


def _escaped(cell: str, marks: dict, bold: str) -> str:
    text = words(cell).translate(marks)
    return bold.format(text) if cell.startswith("<b>") else text


def _frame(rows: Sequence[Sequence[str]], names: Sequence[str], marks: dict, bold: str) -> pd.DataFrame:
    cells = [[_escaped(cell, marks, bold) for cell in row] for row in rows]
    return pd.DataFrame(cells, columns=[_escaped(name, marks, bold) for name in names])


def latex(rows: Sequence[Sequence[str]], names: Sequence[str], numbers: Sequence[bool], caption: str) -> str:
    """A table environment for the package booktabs, from the HTML of the heads and cells, numbers flush right."""
    frame = _frame(rows, names, LATEX, r"\textbf{{{}}}")
    align = "".join("r" if number else "l" for number in numbers)
    text = frame.style.hide(axis="index").to_latex(
        hrules=True, column_format=align, caption=caption.translate(LATEX), position_float="centering"
    )
    return text.rstrip()


def typst(rows: Sequence[Sequence[str]], names: Sequence[str], caption: str) -> str:
    """A figure that holds a table, from the HTML of the heads and cells."""
    table = _frame(rows, names, TYPST, "*{}*").style.hide(axis="index").to_typst()
    body = re.sub(r"\n(?=.)", "\n  ", table.removeprefix("#").rstrip())
    return f"#figure(\n  {body},\n  caption: [{caption.translate(TYPST)}],\n)"


def disclosure(
    rows: Sequence[Sequence[str]], names: Sequence[str], numbers: Sequence[bool], caption: str
) -> str:  # fmt: skip
    """The table in both languages as HTML behind a quiet line, or nothing for one without rows. The cells and heads are
    HTML, as they are shown, the caption is plain."""
    if not rows:
        return ""
    texts = {"LaTeX": latex(rows, names, numbers, caption), "Typst": typst(rows, names, caption)}
    blocks = "".join(
        f'<pre data-copy="{name}" tabindex="0" role="group" aria-label="the table as {name}">'
        f"{html.escape(text, quote=False)}</pre>"
        for name, text in texts.items()
    )
    return f'<details class="typeset"><summary>as LaTeX, Typst</summary>{blocks}</details>'
