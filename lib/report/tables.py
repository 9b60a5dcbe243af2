"""Sets numbers and tidy tables as text and HTML, under one set of headings; computes nothing."""

import html
import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import escape

from lib.config import SIZES
from lib.report.headings import heading
from lib.stats import digits
from lib.stats.intervals import Interval

UNAVAILABLE = "not available"
LONG = 16  # characters in a cell from which on it may break
LATEX = str.maketrans(
    {"×": r"$\times$", "µ": r"\textmu{}", "²": "$^2$", "−": "$-$", "→": r"$\to$", "≥": r"$\ge$", "≤": r"$\le$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}"}
)  # what pandas leaves, and not every typeface has
ABSENT = '<p class="absent">Not measured on this machine.</p>'


class Bold(Interval):
    """An interval whose value a table sets in bold."""


def anchor(chapter: str, heading: str) -> str:
    """Return the id of a heading of a chapter."""
    return f"{chapter}-" + re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>", "", heading).lower()).strip("-")


def as_interval(value) -> Interval | None:
    """A number that came without an interval, such as a published one, as an interval of unknown width."""
    if isinstance(value, Interval | str) or pd.isna(value):
        return value if isinstance(value, Interval) else None
    return Interval(value, math.nan, math.nan, 0, 0)


def _column(values: pd.Series) -> tuple[list[str], bool]:
    """The cells of a column as HTML, and whether they are numbers."""
    if any(isinstance(value, Interval) for value in values):
        shown = [as_interval(value) for value in values]
        heads = digits.aligned([digits.number(i.value, i.reach) if i else digits.MISSING for i in shown])
        tails = [
            f"{digits.number(i.low, i.reach)}–{digits.number(i.high, i.reach)}" if i and i.reach > 0 else ""
            for i in shown
        ]
        heads = [f"<b>{h}</b>" if isinstance(i, Bold) else h for i, h in zip(shown, heads, strict=True)]
        words = [
            str(escape(value)) if isinstance(value, str) else f"{h}<small>{t}</small>"
            for value, h, t in zip(values, heads, tails, strict=True)
        ]
        return words, True
    if pd.api.types.is_bool_dtype(values):
        return ["yes" if value else "no" for value in values], False
    if pd.api.types.is_numeric_dtype(values):
        whole = pd.api.types.is_integer_dtype(values)
        return digits.aligned(
            [digits.MISSING if pd.isna(v) else f"{v:,}" if whole else digits.number(v) for v in values]
        ), True
    missing = [pd.api.types.is_scalar(value) and pd.isna(value) for value in values]
    return [digits.MISSING if no else str(escape(value)) for value, no in zip(values, missing, strict=True)], False


class Table:
    """A table with its caption, which a notebook shows as HTML and also holds as Markdown and LaTeX; the report numbers
    it. Where there are `reasons`, one a row, a row's stands in place of cells that have no value. What is
    `markupsafe.Markup` is taken as the HTML that it is."""

    def __init__(self, frame: pd.DataFrame, caption: str, note: str = "", reasons: list[str] | None = None):
        self.frame, self.caption, self.note = frame, caption, note
        self.reasons = reasons or [""] * len(frame)

    def _repr_html_(self) -> str:
        cells = [_column(self.frame[name]) for name in self.frame]
        kinds = [
            "number" if is_number else "long" if max(map(len, texts), default=0) > LONG else "word"
            for texts, is_number in cells
        ]
        head = "".join(
            f'<th scope="col" class="{kind}">{_head(str(name))}</th>'
            for name, kind in zip(self.frame, kinds, strict=True)
        )
        texts = zip(*(texts for texts, _ in cells), strict=True)
        rows = "".join(_row(row, kinds, reason) for row, reason in zip(texts, self.reasons, strict=True))
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption><b class="label">Table</b> {html.escape(self.caption)}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.caption, quote=True)}">'
            f"{table if rows else ABSENT}</div>{note}</figure>"
        )

    def _repr_markdown_(self) -> str:
        """Return the caption, a pipe table whose cells keep their links and marks, and the note."""
        rows, names, numbers = self._cells()
        rule = ["---:" if number else "---" for number in numbers]
        lines = "\n".join(f"| {' | '.join(map(_as_markdown, line))} |" for line in (names, rule, *rows))
        caption, note = (_as_markdown(html.escape(text)) for text in (self.caption, self.note))
        return "\n\n".join(filter(None, [f'<b class="label">Table</b> {caption}', lines if rows else ABSENT, note]))

    def _repr_latex_(self) -> str | None:
        """Return a table environment for the package booktabs, numbers flush right; nothing for one without rows."""
        rows, names, numbers = self._cells()
        if not rows:
            return None
        frame = pd.DataFrame([map(_words, row) for row in rows], columns=list(map(_words, names)))
        bold = [["font-weight: bold" * cell.startswith("<b>") for cell in row] for row in rows]
        style = frame.style.format(escape="latex").format_index(escape="latex", axis=1).hide(axis="index")
        text = style.apply(lambda _: np.array(bold), axis=None).to_latex(
            hrules=True, convert_css=True, position_float="centering",
            column_format="".join("r" if number else "l" for number in numbers),
            caption=re.sub(r"([&%$#_{}])", r"\\\1", self.caption),
        )  # fmt: skip
        return text.translate(LATEX)

    def _cells(self) -> tuple[list[Sequence[str]], list[str], list[bool]]:
        """The rows and the heads of the columns as HTML, each reason in its place, and which columns are numbers."""
        columns = [_column(self.frame[name]) for name in self.frame]
        rows = zip(*(texts for texts, _ in columns), strict=True)
        filled = [_reasoned(row, why)[0] if why else row for row, why in zip(rows, self.reasons, strict=True)]
        return filled, [html.escape(str(name)) for name in self.frame], [is_number for _, is_number in columns]


def _in_line(cell: str) -> str:
    """Return a cell's HTML with what stands small below a value in brackets behind it."""
    return re.sub(r"<small>(.+?)</small>", r" (\1)", cell).replace("<small></small>", "")


def _words(cell: str) -> str:
    """Return a cell's HTML as the text that it shows."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", _in_line(cell).replace("<br>", ": "))).split())


def _as_markdown(cell: str) -> str:
    """Return a cell's HTML for a pipe table, with what Markdown would take for markup shown as it is."""
    return re.sub(r"[\\`*|$~\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(_in_line(cell).split()))


def _head(name: str) -> str:
    """A column's head, whose longest words may break after an underscore, lest they make the table too wide."""
    return " ".join(word.replace("_", "_<wbr>" if len(word) > LONG else "_") for word in html.escape(name).split(" "))


def _row(texts: tuple[str, ...], kinds: list[str], reason: str) -> str:
    """A row as HTML; where its first cells without a value are, the reason stands for them, or else below the last."""
    cells = [f'<td class="{kind}">{text}</td>' for text, kind in zip(texts, kinds, strict=True)]
    if reason:
        filled, begin, end = _reasoned(texts, reason)
        cells[begin:end] = [f'<td class="reason" colspan="{end - begin}">{filled[begin]}</td>']
    return f"<tr>{''.join(cells)}</tr>"


def _reasoned(texts: tuple[str, ...], reason: str) -> tuple[list[str], int, int]:
    """The cells of a row with the reason in the first of those that it stands for, and the first and the end of
    these."""
    absent = [text.startswith(digits.MISSING) for text in texts]
    begin = absent.index(True) if any(absent) else len(texts) - 1
    end = begin + 1
    while end < len(texts) and (absent[end] or not texts[end]):
        end += 1
    own = "" if absent[begin] else texts[begin] + "<br>"
    return [*texts[:begin], own + html.escape(reason), *[""] * (end - begin - 1), *texts[end:]], begin, end


def show(frame: pd.DataFrame, columns: str, caption: str) -> Table:
    """The columns named in `columns`, with spaces between them, as a table under their headings. Memory of a case with
    times that offers no such count is called not available. Columns without any value are left out, a size comes with
    its d_model, and those of the case that are alike in all rows go into the note, with hardware, samples and rounds;
    in how many rounds the machine was noisy comes last, if it ever was, and `why` a row has no times stands where
    these would."""
    if "status" in frame:
        for name in (name for name in columns.split() if name.endswith("_mib") and name in frame):
            uncounted = frame[name].isna() & (frame["status"] == "ok")
            frame = frame.assign(**{name: frame[name].mask(uncounted, UNAVAILABLE)})
    wanted = columns.split()
    if "size" in wanted and "size" in frame and "d_model" not in wanted:
        wanted.insert(wanted.index("size") + 1, "d_model")
        frame = frame.assign(d_model=[SIZES[size].d_model if size in SIZES else None for size in frame["size"]])
    names = [name for name in wanted if name in frame and frame[name].notna().any()]
    alike = {
        name: frame[name].iloc[0]
        for name in names
        if len(frame) > 1 and not isinstance(frame[name].iloc[0], Interval) and len(set(frame[name])) == 1
    }
    shown = frame[[name for name in names if name not in alike]].rename(columns=heading)
    if "noisy" in frame and frame["noisy"].any():
        shown = shown.assign(noisy=frame["noisy"])
    setting = "; ".join(f"{heading(name)}: {_plain(value)}" for name, value in alike.items())
    note = " ".join(
        filter(None, (provenance(frame), f"{setting}." if setting else "", frame.attrs.get("left_out", "")))
    )
    return Table(shown, caption, note, list(frame["why"].fillna("")) if "why" in frame else None)


def peaks(sheets: pd.DataFrame, products: dict[str, float], copies: dict[str, float], caption: str) -> Table:
    """The table of `published.datasheets`, one row a GPU, below the ceilings in FLOP/s and bytes/s measured here."""
    wide = sheets.pivot_table(index=["hardware", "memory_gb_per_s"], columns="precision", values="tflops")
    wide = wide.reset_index().rename(columns={"memory_gb_per_s": "memory, GB/s"})
    own = {"hardware": "this machine, measured", **{name: rate / 1e12 for name, rate in products.items()}}
    own["memory, GB/s"] = max(copies.values(), default=math.nan) / 1e9
    wide = pd.concat([pd.DataFrame([own]), wide])[["hardware", "memory, GB/s", "fp32", "tf32", "bf16"]]
    short = sheets["source"].str.replace(r",? (as re|https?:).*", "", regex=True)
    sources = sheets.groupby(short, sort=False)["hardware"].agg(lambda names: " and ".join(dict.fromkeys(names)))
    said = "; ".join(f"{hardware} from {source}" for source, hardware in sources.items())
    return Table(
        wide, caption, f"{said}. The convention and full source of each number: reports/reference/datasheets.csv."
    )


def _plain(value) -> str:
    known = {"True": "yes", "False": "no"}
    return known.get(str(value)) or (value if isinstance(value, str) else f"{value:,}")


def _measured(value) -> bool:
    """Whether it rests on samples, as what is derived from published numbers does not."""
    return isinstance(value, Interval) and value.n > 0


def provenance(frame: pd.DataFrame) -> str:
    """Hardware, number of samples and of processes behind the intervals of a table, for its note."""
    intervals = [i for name in frame for i in frame[name] if _measured(i)]
    if not intervals:
        return ""
    measured = frame[[any(map(_measured, row)) for row in frame.to_numpy()]]
    hardware = ", ".join(dict.fromkeys(measured["hardware"]))
    sampled = [i for i in intervals if i.n > i.rounds]  # others are one count a process, such as memory
    if not sampled:
        return f"{hardware}. One value in each process, {max(i.rounds for i in intervals)} at most."
    counts = sorted({i.n for i in sampled})
    many = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    scopes = " or ".join(sorted({i.scope for i in sampled}))
    versions = len(frozenset().union(*measured["codes"])) if "codes" in measured else 1
    mixed = f" Measured by {versions} versions of the code." if versions > 1 else ""
    noisy = measured["noisy"].astype(bool).sum() if "noisy" in measured else 0
    marked = f" {noisy} of {len(measured)} in part on a noisy machine, or in a series that changed."
    what = frame.attrs.get("what") or ("Ratio" if "ratio" in frame else "Median")
    return f"{hardware}. {what} and its 95% interval {scopes}; n = {many}.{mixed}{marked if noisy else ''}"
