"""Format numbers and tidy tables as text, HTML, Markdown and LaTeX."""

import html
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd
from markupsafe import escape

from lib.config import SIZES
from lib.records.frame import Frame
from lib.report.headings import heading
from lib.report.quantities import Quantity
from lib.stats import digits
from lib.stats.intervals import Interval

MARKED = {  # marks of rows (see `tidy.MARKS`): some of their rounds are
    "noisy": "on a noisy machine or with drifting times",
    "throttled": "with a throttled GPU",
    "launch_bound": "whose times show how fast the host launches",
}

UNAVAILABLE = "not available"
LONG = 16  # cells with more characters may break
STACKED, SMALLER = 4, 9  # tables with more columns stack their cells on a phone, or are set smaller
LATEX = str.maketrans(
    {"×": r"$\times$", "µ": r"\textmu{}", "²": "$^2$", "−": "$-$", "→": r"$\to$", "≥": r"$\ge$", "≤": r"$\le$"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}"}
)  # pandas leaves these, and not every typeface has them


class Bold(Interval):
    """Mark an interval whose value a table sets in bold."""


def anchor(chapter: str, heading: str) -> str:
    """Return the id of a heading of a chapter."""
    return f"{chapter}-" + re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>", "", heading).lower()).strip("-")


def as_interval(value) -> Interval | None:
    """Return a value as an Interval, a bare number with no width known; None for text or NaN."""
    if isinstance(value, Interval):
        return None if math.isnan(value.value) else value
    if isinstance(value, str) or pd.isna(value):
        return None
    return Interval(value, math.nan, math.nan, 0, 0)


def _column_cells(values: pd.Series, names: Sequence[tuple[str, str]] | None = None) -> tuple[list[str], bool]:
    """Return a column's cells as HTML, and True if they are numbers.

    `names` are the quantities of the cells and their verdicts, empty where there is none."""
    if any(isinstance(value, Interval) for value in values):
        shown = [as_interval(value) for value in values]
        heads = digits.aligned([digits.value(i) if i else digits.MISSING for i in shown])
        cells = zip(values, shown, heads, names or [("", "")] * len(shown), strict=True)
        return [
            str(escape(value)) if isinstance(value, str) else _interval_cell(i, head, *name)
            for value, i, head, name in cells
        ], True
    plain = values.infer_objects()  # since frames may be joined as objects
    if pd.api.types.is_bool_dtype(plain):
        return ["yes" if value else "no" for value in plain], False
    if pd.api.types.is_numeric_dtype(plain):
        whole = pd.api.types.is_integer_dtype(plain)
        return digits.aligned(
            [digits.MISSING if pd.isna(v) else f"{v:,}" if whole else digits.number(v) for v in plain]
        ), True
    missing = [pd.api.types.is_scalar(value) and pd.isna(value) for value in values]
    return [digits.MISSING if no else str(escape(value)) for value, no in zip(values, missing, strict=True)], False


def _interval_cell(of: Interval | None, head: str, name: str, verdict: str) -> str:
    """Return a value and, below it, its interval as HTML; `head` is the value as its column aligns it."""
    if of is None:
        return f"{head}<small></small>"
    marked = Quantity(name, of, head, verdict).__html__()
    ends = f"{digits.number(of.low, of.reach)}–{digits.number(of.high, of.reach)}" if of.reach > 0 else ""
    return f"{f'<b>{marked}</b>' if isinstance(of, Bold) else marked}<small>{ends}</small>"


class Table:
    """Show a table with its caption, as HTML, Markdown and LaTeX; the report numbers it.

    `reasons`, one per row, replace cells without a value. `names` has the quantities of a column's cells, each with its
    verdict or "". `markupsafe.Markup` is kept as HTML. Without rows nothing is shown."""

    def __init__(
        self, frame: pd.DataFrame, caption: str, note: str = "", reasons: list[str] | None = None,
        names: Mapping[str, list[tuple[str, str]]] = MappingProxyType({}),
    ):  # fmt: skip
        self.frame, self.caption, self.note = frame, caption, note
        self.reasons, self.names = reasons or [""] * len(frame), names

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return ""
        cells = [_column_cells(self.frame[name], self.names.get(name)) for name in self.frame]
        kinds = [
            "number" if is_number else "long" if max(map(len, texts), default=0) > LONG else "word"
            for texts, is_number in cells
        ]
        head = "".join(
            f'<th scope="col" class="{kind}">{_head_html(str(name))}</th>'
            for name, kind in zip(self.frame, kinds, strict=True)
        )
        texts = zip(*(texts for texts, _ in cells), strict=True)
        heads = list(map(str, self.frame)) if len(kinds) > STACKED else []
        rows = "".join(_row_html(row, kinds, reason, heads) for row, reason in zip(texts, self.reasons, strict=True))
        kind = "wide" * (len(kinds) > STACKED) + " wider" * (len(kinds) > SMALLER)
        table = f'<table class="{kind}">' if kind else "<table>"
        table += f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        return (
            f'<figure class="table"><figcaption><b class="label">Table</b> {html.escape(self.caption)}</figcaption>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(self.caption, quote=True)}">'
            f"{table}</div>{note}</figure>"
        )

    def _repr_markdown_(self) -> str:
        """Return the caption, a pipe table whose cells keep links and marks, and the note."""
        rows, names, numbers = self._cells()
        rule = ["---:" if number else "---" for number in numbers]
        lines = "\n".join(f"| {' | '.join(map(_as_markdown, line))} |" for line in (names, rule, *rows))
        caption, note = (_as_markdown(html.escape(text)) for text in (self.caption, self.note))
        return "\n\n".join(filter(None, [f'<b class="label">Table</b> {caption}', lines, note])) if rows else ""

    def _repr_latex_(self) -> str | None:
        """Return a table for the package booktabs, or None if it has no rows."""
        rows, names, numbers = self._cells()
        if not rows:
            return None
        frame = pd.DataFrame([map(_as_text, row) for row in rows], columns=list(map(_as_text, names)))
        bold = [["font-weight: bold" * cell.startswith("<b>") for cell in row] for row in rows]
        style = frame.style.format(escape="latex").format_index(escape="latex", axis=1).hide(axis="index")
        text = style.apply(lambda _: np.array(bold), axis=None).to_latex(
            hrules=True, convert_css=True, position_float="centering",
            column_format="".join("r" if number else "l" for number in numbers),
            caption=re.sub(r"([&%$#_{}])", r"\\\1", self.caption),
        )  # fmt: skip
        return text.translate(LATEX)

    def _cells(self) -> tuple[list[Sequence[str]], list[str], list[bool]]:
        """Return rows and column heads as HTML, and for each column whether it is numeric."""
        columns = [_column_cells(self.frame[name]) for name in self.frame]
        rows = zip(*(texts for texts, _ in columns), strict=True)
        filled = [_with_reason(row, why)[0] if why else row for row, why in zip(rows, self.reasons, strict=True)]
        return filled, [html.escape(str(name)) for name in self.frame], [is_number for _, is_number in columns]


def _with_brackets(cell: str) -> str:
    """Move the small text below a value into brackets behind it."""
    return re.sub(r"<small>(.+?)</small>", r" (\1)", cell).replace("<small></small>", "")


def _as_text(cell: str) -> str:
    """Return a cell's HTML as plain text."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", _with_brackets(cell).replace("<br>", ": "))).split())


def _as_markdown(cell: str) -> str:
    """Return a cell's HTML for a pipe table, with Markdown's own marks escaped."""
    return re.sub(r"[\\`*|$~\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(_with_brackets(cell).split()))


def _head_html(name: str) -> str:
    """Return a column's head, with breaks allowed after underscores of long words."""
    return " ".join(word.replace("_", "_<wbr>" if len(word) > LONG else "_") for word in html.escape(name).split(" "))


def _row_html(texts: tuple[str, ...], kinds: list[str], reason: str, heads: list[str]) -> str:
    """Return a row as HTML; a reason spans the cells that it replaces. `heads` label the cells on a phone."""
    labels = [f' data-label="{html.escape(head, quote=True)}"' for head in heads] or [""] * len(texts)
    cells = [f'<td class="{kind}"{label}>{text}</td>' for text, kind, label in zip(texts, kinds, labels, strict=True)]
    if reason:
        filled, begin, end = _with_reason(texts, reason)
        cells[begin:end] = [f'<td class="reason" colspan="{end - begin}">{filled[begin]}</td>']
    return f"<tr>{''.join(cells)}</tr>"


def _with_reason(texts: tuple[str, ...], reason: str) -> tuple[list[str], int, int]:
    """Put the reason into the first missing cell, or else below the last one.

    Return the cells, and the first and the end of those that the reason spans."""
    absent = [text.startswith(digits.MISSING) for text in texts]
    begin = absent.index(True) if any(absent) else len(texts) - 1
    end = begin + 1
    while end < len(texts) and (absent[end] or not texts[end]):
        end += 1
    own = "" if absent[begin] else texts[begin] + "<br>"
    return [*texts[:begin], own + html.escape(reason), *[""] * (end - begin - 1), *texts[end:]], begin, end


def show(frame: pd.DataFrame, columns: str, caption: str) -> Table:
    """Return the named columns, separated by spaces, as a table under their headings.

    Empty columns are left out. Fields that are equal in all rows move to the note, beside hardware, samples and
    rounds. Memory that was not counted is called not available, and the sizes in a column come with their d_model.
    Last come `n`, processes by samples of each, if rows differ in it, and `noisy` and `throttled` if any row is; with
    times also `launch_bound`. `why` stands in place of missing times."""
    if "status" in frame:
        for name in (name for name in columns.split() if name.endswith("_mib") and name in frame):
            uncounted = frame[name].isna() & (frame["status"] == "ok")
            frame = frame.assign(**{name: frame[name].mask(uncounted, UNAVAILABLE)})
    names = [name for name in columns.split() if name in frame and frame[name].notna().any()]
    alike = {
        name: frame[name].iloc[0]
        for name in names
        if len(frame) > 1 and not isinstance(frame[name].iloc[0], Interval) and len(set(frame[name])) == 1
    }
    kept = [name for name in names if name not in alike]
    shown = frame[kept].rename(columns=heading)
    if "size" in shown:
        labels = [f"{size} ({SIZES[size].d_model})" if size in SIZES else size for size in frame["size"]]
        shown = shown.assign(size=labels).rename(columns={"size": "size (d_model)"})
    quantities = {heading(name): _quantity_names(frame, name, kept) for name in kept} if "quantity" in frame else {}
    judged = [name for name in ("gain", "ratio") if name in kept]
    counts = [_counted(row) for row in frame[[*judged, *kept]].to_numpy()]
    if len(set(filter(None, counts))) > 1:
        shown = shown.assign(n=counts)
    timed = any(name.endswith("_ms") for name in kept)
    for mark in (mark for mark in MARKED if mark in frame and (timed or mark != "launch_bound")):
        if frame[mark].fillna("").any():
            shown = shown.assign(**{heading(mark): frame[mark].fillna("")})
    setting = "; ".join(f"{heading(name)}: {_plain_value(value)}" for name, value in alike.items())
    note = " ".join(
        filter(None, (provenance(frame), f"{setting}." if setting else "", Frame.origin(frame, "left_out")))
    )
    return Table(shown, caption, note, list(frame["why"].fillna("")) if "why" in frame else None, quantities)


def _counted(row: Sequence) -> str:
    """Return processes by samples of each behind a row's first interval: 3×6; empty without one."""
    found = next(filter(_has_samples, row), None)
    if found is None:
        return ""
    each = found.n / found.rounds
    return f"{found.rounds}×{each:.0f}" if each > 1 else f"{found.rounds}"


def _quantity_names(frame: pd.DataFrame, column: str, shown: Sequence[str]) -> list[tuple[str, str]]:
    """Return the name of each cell's quantity, and the verdict if it is the ratio that the row judges.

    Rows of the same case differ in words and counts, such as the phase, which are part of the name then."""
    if frame["quantity"].dropna().duplicated().any():
        named = [name for name in shown if not frame[name].map(lambda value: isinstance(value, Interval | float)).any()]
        rows = frame[["quantity", *named]].itertuples(index=False)
        whole = [None if pd.isna(of) else f"{of}/{'-'.join(map(str, texts))}" for of, *texts in rows]
        frame = frame.assign(quantity=whole)
    judged = column == "ratio" and {"of", "baseline", "verdict"} <= set(frame)
    return [
        (f"{row['quantity']}/{row['of']}/{row['baseline']}", row["verdict"]) if judged
        else ("" if pd.isna(row["quantity"]) else f"{row['quantity']}/{column}", "")
        for _, row in frame.iterrows()
    ]  # fmt: skip


def peaks(sheets: pd.DataFrame, products: Mapping[str, Interval], memory: Interval, caption: str) -> Table:
    """Return `published.datasheets` below the ceilings (FLOP/s, bytes/s) measured here."""
    wide = sheets.pivot_table(index=["hardware", "memory_gb_per_s"], columns="precision", values="tflops")
    wide = wide.reset_index().rename(columns={"memory_gb_per_s": "memory, GB/s"})
    own = {"hardware": "this machine, measured", **{name: rate.scaled(1e-12) for name, rate in products.items()}}
    own["memory, GB/s"] = memory.scaled(1e-9)
    wide = pd.concat([pd.DataFrame([own]), wide])[["hardware", "memory, GB/s", "fp32", "tf32", "bf16"]]
    short = sheets["source"].str.replace(r",? (as re|https?:).*", "", regex=True)
    sources = sheets.groupby(short, sort=False)["hardware"].agg(lambda names: " and ".join(dict.fromkeys(names)))
    said = "; ".join(f"{hardware} from {source}" for source, hardware in sources.items())
    return Table(
        wide, caption, f"{said}. The convention and full source of each number: reports/reference/datasheets.csv."
    )


def _plain_value(value) -> str:
    known = {"True": "yes", "False": "no"}
    return known.get(str(value)) or (value if isinstance(value, str) else f"{value:,}")


def _has_samples(value) -> bool:
    """Return True for an interval from samples, not from published numbers."""
    return isinstance(value, Interval) and value.n > 0


def hardware(rows: pd.DataFrame, said: str) -> str:
    """Return a note: the hardware of the rows, each once, and what is said of them; empty without rows."""
    names = ", ".join(dict.fromkeys(rows["hardware"]))
    return f"{names}. {said}" if names else ""


def provenance(frame: pd.DataFrame) -> str:
    """Describe hardware, samples and processes behind a table's intervals."""
    intervals = [i for name in frame for i in frame[name] if _has_samples(i)]
    if not intervals:
        return ""
    measured = frame[[any(map(_has_samples, row)) for row in frame.to_numpy()]]
    hardware = ", ".join(dict.fromkeys(measured["hardware"]))
    sampled = [i for i in intervals if i.n > i.rounds]  # the others are one count per process, such as memory
    if not sampled:
        return f"{hardware}. One value per process{', with its 95% interval' * any(i.reach > 0 for i in intervals)}."
    counts = sorted({i.n for i in sampled})
    many = f"; n = {counts[0]}" if len(counts) == 1 else f"; n = {counts[0]} to {counts[-1]}"
    versions = len(frozenset().union(*measured["codes"])) if "codes" in measured else 1
    mixed = f" Measured by {versions} versions of the code." if versions > 1 else ""
    marked = ""
    for mark, what in MARKED.items():
        count = measured[mark].fillna("").astype(bool).sum() if mark in measured else 0
        marked += f" Rows with rounds {what}: {count} of {len(measured)}." if count else ""
    what = Frame.origin(frame, "what") or ("Ratio" if "ratio" in frame else "Median")
    return f"{hardware}. {what} and its 95% interval {_scope(sampled)}{many}.{mixed}{marked}"


def _scope(found: Sequence[Interval]) -> str:
    """Say what intervals speak for: across 2 to 4 processes, or within one."""
    rounds = sorted({i.rounds for i in found})
    several = [digits.count(count) for count in rounds if count > 1]
    within = "within one" if rounds[0] <= 1 else ""
    if not several:
        return f"{within} process"
    across = f"across {' to '.join(dict.fromkeys([several[0], several[-1]]))} processes"
    return f"{across}, or {within}" if within else across
