"""Export the report as PDF by Chromium, as Markdown, or one table as LaTeX."""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell, new_notebook
from traitlets.config import Config

from lib import validate
from lib.report import tables
from lib.report.document import page, sanitize, title

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MACOS = [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in ("Google Chrome", "Chromium")]
PRINT = "--headless --disable-gpu --disable-dev-shm-usage --no-first-run --no-pdf-header-footer"
OUTLINE = "--generate-pdf-document-outline"  # from the headings; an older Chromium ignores it
NO_CHROMIUM = (
    "Chromium, which prints the PDF, was not found. Install it (Debian and Ubuntu: apt install chromium; macOS: "
    "brew install --cask chromium), set the variable CHROMIUM to its path, or print {page} from any browser."
)
XMLNS = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
ALT = re.compile(r'aria-label="([^"]*)"')
CLAIM = re.compile(r'<div class="claim" data-verdict="(?!measured")([^"]+)"><p>(.*?)</p>')
RECORDS = re.compile(r'<p class="records">.*?</p>|</?data[^>]*>')  # what only the page needs
ONLY_PAGE = ('class="sortable"', 'class="downloads"')


def chromium() -> str | None:
    """Find Chromium or Chrome; the variable CHROMIUM takes precedence."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    installed = Path(sys.prefix, "bin", "chromium")  # installed by make if the system has none
    return next((found for name in (*NAMES, *MACOS, installed) if (found := shutil.which(name))), None)


def pdf(target: Path) -> Path:
    """Print a page as a PDF beside it, with an outline.

    Raises OSError if there is no Chromium, or with its message if it printed nothing."""
    browser = chromium()
    if browser is None:
        raise OSError(NO_CHROMIUM.format(page=target))
    written = target.with_suffix(".pdf")
    with tempfile.TemporaryDirectory(prefix="print-") as folder:
        printed = Path(folder, "report.pdf")
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # root needs it
        options = [*PRINT.split(), OUTLINE, *root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={printed}"]
        done = subprocess.run(
            [browser, *options, target.resolve().as_uri()], capture_output=True, text=True, timeout=300
        )
        if not printed.exists():
            raise OSError(f"{browser} printed nothing: {done.stderr.strip()[-500:]}")
        shutil.copyfile(printed, written)
    return written


def as_markdown(machine: str, target: Path) -> Path:
    """Write the executed chapters as Markdown beside the page, with figures in a folder."""
    from nbconvert import MarkdownExporter

    folder = target.parent / "figures"
    folder.mkdir(exist_ok=True)
    for former in folder.glob("[0-9]*.svg"):  # keeps figures that were saved while exploring
        former.unlink()
    facts = "\n".join(f"- {label}: {value}" for label, value in title.facts(machine).items())
    head, contents = new_markdown_cell(), ["# Transformer training, measured", facts, "## Contents", ""]
    whole = new_notebook(cells=[head])
    for file in page.executed(machine, target):
        cells = _chapter_cells(file, folder)
        heading = re.search(r"^## .*</a>(.+)$", cells[0].source, re.MULTILINE)[1]
        contents[-1] += f"- [{heading}](#{file.stem})\n"
        whole.cells += [new_markdown_cell(f'<a id="{file.stem}"></a>'), *cells]
    head.source = "\n\n".join(contents)
    kinds = {"display_data_priority": ["text/markdown", "text/html", "text/plain"]}
    exporter = MarkdownExporter(exclude_input=True, config=Config(NbConvertBase=kinds))
    text = page.numbered(exporter.from_notebook_node(whole)[0])
    written = target.with_suffix(".md")
    written.write_text(re.sub(r"\n{3,}", "\n\n", text))
    return written


def _chapter_cells(file: Path, folder: Path) -> list[NotebookNode]:
    """Return an executed chapter's cells, with ids on headings and figures as files."""
    count = itertools.count(1)

    def filed(svg: re.Match) -> str:
        name = f"{file.stem}-{next(count)}.svg"
        (folder / name).write_text(as_standalone(svg[0], inks))
        return f'<img src="{folder.name}/{name}" alt="{re.search(ALT, svg[0])[1]}">'

    def heading(found: re.Match) -> str:
        return f'#{found[1]} <a id="{tables.anchor(file.stem, found[2])}"></a>{found[2]}'

    chapter, inks = nbformat.read(file, as_version=4), light_inks()
    cells = chapter.cells
    cells[0].source += f"\n\n{page.failure_box(chapter)}{page.unanswered(file, chapter)}"
    for number, cell in enumerate(cells):
        cell.id = f"{file.stem}-{number}"
        if cell.cell_type == "markdown":  # GitHub refuses this macro
            cell.source = re.sub(r"^(#+) (.+)$", heading, cell.source, flags=re.MULTILINE)
            cell.source = cell.source.replace(r"\operatorname{", r"\mathrm{")
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if output.output_type != "error"]
        for data in (output.data for output in cell.get("outputs", []) if "text/html" in output.get("data", {})):
            shown = CLAIM.sub(r"<div><p>\2 <em>(\1)</em></p>", RECORDS.sub("", sanitize.clean(data["text/html"])))
            shown = re.sub(r"<svg .*?</svg>", filed, shown, flags=re.DOTALL)
            only = f"*Here [the page](report.html#{file.stem}) shows what Markdown cannot.*"
            data["text/html"] = only if any(mark in shown for mark in ONLY_PAGE) else re.sub(r"\n\s*\n", "\n", shown)
    return cells


def latex(machine: str, target: Path, number: int) -> str:
    """Return the report's table of this number as LaTeX, or raise ValueError."""
    executed = (nbformat.read(file, as_version=4) for file in page.executed(machine, target))
    outputs = [output.get("data", {}) for each in executed for cell in each.cells for output in cell.get("outputs", [])]
    found = [data for data in outputs if page.label("Table") in data.get("text/html", "")]
    validate.at_least("number", number, 1)
    validate.at_most("number", number, len(found))
    if "text/latex" not in found[number - 1]:
        raise ValueError(f"number: got {number}, a table without rows, expected one with rows")
    return found[number - 1]["text/latex"].rstrip()


def light_inks() -> dict[str, str]:
    """Return the page's inks in its light scheme, by their names in the style sheet."""
    css = (page.TEMPLATE / "report.css").read_text()
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", css[: css.index("}")]))


def as_standalone(svg: str, inks: Mapping[str, str]) -> str:
    """Return an SVG of the page as a file: light inks, white ground, fixed size."""
    svg = svg.replace("currentColor", "var(--ink)")
    svg = re.sub(
        r"var\(--([a-z0-9-]+)(?:, ?([^()]*|var\([^()]*\)))?\)", lambda m: inks.get(m[1], m[2] or inks["ink"]), svg
    )
    svg = svg.replace("&nbsp;", "\u00a0")  # XML does not define it
    x, y, width, height = re.search(r'viewBox="([^"]+)"', svg)[1].split()
    size = f'width="{width}" height="{height}"'
    ground = f'<rect x="{x}" y="{y}" {size} fill="#ffffff"/>'
    font = "<style>text { font-family: 'Noto Sans', Ubuntu, Calibri, sans-serif !important }</style>"
    head, _, rest = svg.partition(">")
    return f"{head} {XMLNS} {size}>{font}{ground}{rest}\n"
