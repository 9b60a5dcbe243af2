"""Render the notebooks into one page, `reports/report.html`, that loads nothing from the network.

Each notebook is executed with `machine=`. All are joined to one notebook, which nbconvert exports with the template in
`reports/template`: as HTML for the page, as Markdown for hosting pages.
"""

import contextlib
import html
import itertools
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

import jinja2
import nbformat
from latex2mathml import converter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell

from lib import execution, notebooks, paths, records
from lib.catalog import CATALOG
from lib.notebooks import NotebookFailed
from lib.report import answers
from lib.stats import steady_state

TEMPLATE = paths.REPORTS / "template"
CHAPTERS = (
    "summary", "step", "ladder", "kernels", "memory", "attention", "attention_module", "compile", "adam", "precision",
    "warmup", "collectives", "parallel", "peers", "ceilings", "calibration", "questions", "published", "method",
)  # fmt: skip
QUOTING = ("summary", "questions")  # executed last, with the answers of all others
# tags of cells whose code, or text, the page does not show: `by-hand` tells those who run the notebook what to change
UNTOLD = {"parameters", "injected-parameters", "measure", "pair", "setup", "by-hand"}
DETAIL = "in detail"  # what follows this heading of a chapter is folded
BEFORE_HEADING = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
HEADING = re.compile(r"(#{1,6}) +(.*)")
WARNING = re.compile(r"Warning: (.*)")
HTML_ONLY = {"raw_mimetype": "text/html"}
TEXT = 9  # the level of what is no heading, below all of them
NOT_MEASURED = records.NotMeasured.__name__
WIDGET = "application/vnd.jupyter.widget-view+json"  # such as a bar of progress


def target() -> Path:
    """Return the report's file, beside the records."""
    return paths.results().parent / "report.html"


def render(machines: Sequence[str]) -> dict[str, str]:
    """Execute every chapter about the first machine, beside the others, and write the page.

    Returns the chapters that failed, each with its reason; they are in the page too."""
    chapters, failed = execute(machines)
    facts = title(machines[0])
    # a page with a failure is of no machine, so that it is rendered again
    facts["machines"] = " ".join(machines)
    if failed:
        facts["machines"] = ""
    records.write(target(), as_html(joined(chapters, failed), facts))
    return failed


def up_to_date(machines: Sequence[str]) -> bool:
    """Tell whether the page is of these machines, and newer than records, notebooks, code and template."""
    if not target().exists() or f'content="{" ".join(machines)}" name="machines"' not in target().read_text()[:500]:
        return False
    folders = [notebooks.NOTEBOOKS, paths.ROOT / "lib", TEMPLATE, paths.PUBLISHED]
    for machine in machines:
        folders += [paths.results() / machine, paths.REFERENCE / machine]
    moments = []
    for folder in folders:
        # a folder is as new as the last file that came or went
        moments += [file.stat().st_mtime for file in folder.rglob("*") if "__pycache__" not in str(file)]
    return target().stat().st_mtime > max(moments)


def execute(machines: Sequence[str]) -> tuple[dict[str, NotebookNode], dict[str, str]]:
    """Execute the chapters; return them in their order, and the reasons of those that failed.

    `QUOTING` ones come last and get the answers of all others. The answers are kept in a file too, for a `summary` that
    someone opens in JupyterLab."""
    names = [name for name in CHAPTERS if (notebooks.NOTEBOOKS / f"{name}.ipynb").exists()]
    collected: dict[str, str] = {}
    # a notebook takes one name or a list of them
    parameters = {"machine": list(machines), "answers": collected}
    if len(machines) == 1:
        parameters["machine"] = machines[0]
    executed = {}
    failed = {}
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(execution.shared_kernel())
        for name in sorted(names, key=lambda name: name in QUOTING):
            source = notebooks.NOTEBOOKS / f"{name}.ipynb"
            output = paths.within(paths.runs(), machines[0], f"{name}.ipynb")
            output.unlink(missing_ok=True)
            try:
                own = {key: parameters[key] for key in notebooks.parameters(name) if key in parameters}
                execution.execute(source, output, own, kept=kernel)
            except NotebookFailed as error:
                failed[name] = _one_line(str(error))
            except Exception as error:
                # it may have ended the kernel
                failed[name] = _one_line(f"{type(error).__name__}: {error}")
                kernel = stack.enter_context(execution.shared_kernel())
            if not output.exists():
                output = source
            executed[name] = nbformat.read(output, as_version=4)
            collected |= answers.collect(executed[name])
    records.write(answers.file(machines[0]), json.dumps(collected, indent=1))
    return {name: executed[name] for name in names}, failed


def joined(chapters: Mapping[str, NotebookNode], failed: Mapping[str, str]) -> NotebookNode:
    """Join executed notebooks to one: a section each, without empty headings, its details folded.

    Raw cells hold the marks around sections and details; nbconvert passes them on."""
    cells = []
    for name, notebook in chapters.items():
        shown = _without_empty_sections(_cells(notebook))
        if name in failed and not any(map(_fails, shown)):
            shown.insert(1, new_code_cell(outputs=[_error(failed[name])]))
        cells.append(new_raw_cell(f'<section id="{name}">', metadata=HTML_ONLY))
        is_folded = False
        for cell in shown:
            cell.metadata["chapter"] = name
            if cell.metadata.get("heading", "").lower() == DETAIL:
                cells.append(new_raw_cell('<details class="detail"><summary>In detail</summary>\n'))
                cell.source = cell.source.partition("\n")[2]
                is_folded = True
            cells.append(cell)
        if is_folded:
            cells.append(new_raw_cell("\n</details>\n"))
        cells.append(new_raw_cell("</section>", metadata=HTML_ONLY))
    # cells of different notebooks may have the same id, and a quoted figure has those of the original
    for position, cell in enumerate(cells):
        cell.id = f"cell-{position}"
        for output in cell.get("outputs", []):
            if answers.SVG.search(output.data.get("text/html", "")):
                own_ids = rf"\g<1>c{position}"
                output.data["text/html"] = re.sub(r'( id="|url\(#|href="#)', own_ids, output.data["text/html"])
    return new_notebook(cells=cells)


def _cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Return the cells that the page shows: one for each heading with its text, and each code cell with outputs.

    The code of cells that show nothing stands with that of the next one that does."""
    cells = []
    code: list[str] = []
    lines: list[NotebookNode] = []
    for cell in notebook.cells:
        is_untold = bool(UNTOLD.intersection(cell.metadata.get("tags", [])))
        if cell.cell_type == "markdown" and not is_untold:
            for text in filter(str.strip, BEFORE_HEADING.split(cell.source)):
                cells.append(new_markdown_cell(text))
                heading = HEADING.match(text)
                if heading:
                    cells[-1].metadata = NotebookNode(heading=heading[2].strip(), level=len(heading[1]))
        elif cell.cell_type == "code":
            if not is_untold:
                code.append(cell.source)
            outputs = []
            for output in itertools.chain.from_iterable(map(_outputs, cell.outputs)):
                # the same line about what is missing is enough once
                if output not in lines:
                    outputs.append(output)
                if "line" in output.metadata:
                    lines.append(output)
            if outputs:
                cells.append(new_code_cell("\n\n".join(code), outputs=outputs))
                code = []
    return cells


def _outputs(output: NotebookNode) -> list[NotebookNode]:
    """Return an output as the page shows it, if it does: errors and warnings in one line, no progress."""
    if output.output_type == "error":
        if output.ename == NOT_MEASURED:
            return [_line(output.evalue)]
        return [_error(f"{output.ename}: {output.evalue}")]
    if output.output_type == "stream":
        if output.name == "stderr":
            return list(map(_line, dict.fromkeys(WARNING.findall(output.text))))
        output = new_output("display_data", {"text/plain": output.text.strip("\n")})
    # a text stands beside other kinds, in their place
    kinds = dict(output.data)
    if len(kinds) > 1:
        kinds.pop("text/plain", None)
    if WIDGET in kinds or not "".join(map(str, kinds.values())).strip():
        return []
    return [output]


def _line(text: str) -> NotebookNode:
    """Return an output that is one muted line."""
    shown = {"text/html": f'<p class="missing">{html.escape(text)}</p>', "text/markdown": f"*{text}*"}
    return new_output("display_data", shown, metadata={"line": True})


def _error(reason: str) -> NotebookNode:
    """Return an output that is a box with an error."""
    reason = _one_line(reason)
    box = f'<p class="failed">Stopped at an error: <code>{html.escape(reason)}</code></p>'
    shown = {"text/html": box, "text/markdown": f"> **Stopped at an error:** `{reason}`"}
    return new_output("display_data", shown, metadata={"failed": True})


def _fails(cell: NotebookNode) -> bool:
    """Tell whether a cell shows an error."""
    return any("failed" in output.metadata for output in cell.get("outputs", []))


def _one_line(text: str) -> str:
    """Return a text on one line without terminal colours, shortened if it is long."""
    return " ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split())[:500]


def _without_empty_sections(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Leave out each section below the chapter's title that has nothing but lines about what is missing."""
    remaining = []
    position = 0
    while position < len(cells):
        level = cells[position].metadata.get("level", TEXT)
        end = position + 1
        while end < len(cells) and cells[end].metadata.get("level", TEXT) > level:
            end += 1
        if 1 < level < TEXT and not any(map(_tells, cells[position:end])):
            position = end
        else:
            remaining.append(cells[position])
            position += 1
    return remaining


def _tells(cell: NotebookNode) -> bool:
    """Tell whether a cell has text below its heading, or an output that is no line about what is missing."""
    if cell.cell_type == "markdown":
        return bool(HEADING.sub("", cell.source, count=1).strip())
    return not all("line" in output.metadata for output in cell.outputs)


def as_html(notebook: NotebookNode, facts: Mapping[str, str]) -> str:
    """Export the joined notebook as one page that loads nothing; `facts` fill its head."""
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name=TEMPLATE.name, extra_template_basedirs=[str(TEMPLATE.parent)])
    exporter.register_filter("markdown2html", _markdown)
    return exporter.from_notebook_node(notebook, {"page": facts})[0]


@jinja2.pass_context
def _markdown(context: jinja2.runtime.Context, source: str) -> str:
    """Convert Markdown to HTML: headings one level down, their ids with the chapter's name, formulas as MathML."""
    chapter = context["cell"].metadata.get("chapter", "")
    return MarkdownWithMath(renderer=_Renderer(chapter)).render(source)


class _Renderer(IPythonRenderer):
    def __init__(self, chapter: str):
        super().__init__(escape=False)
        self.chapter = chapter

    def heading(self, text: str, level: int, **_) -> str:
        words = re.sub(r"<[^>]+>", "", text).lower()
        name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
        return f'<h{level + 1} id="{self.chapter}-{name}">{text}</h{level + 1}>\n'

    def block_math(self, body: str) -> str:
        # parts wrap on a phone, and a part that is too wide scrolls, hence the focus
        parts = [converter.convert(part.strip(), display="block") for part in body.split(r"\qquad")]
        return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{"".join(parts)}</div>\n'

    def inline_math(self, body: str) -> str:
        return converter.convert(body.strip())

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table>{text}</table></div>\n'


def title(machine: str) -> dict[str, object]:
    """Return what the head of the page says: hardware, dates, PyTorch, and if records are stale or noisy."""
    days, hardware, versions = [], [], []
    probes = []
    stale = 0
    for experiment in CATALOG:
        for record in records.of_machine(experiment, machine):
            days.append(date.fromisoformat(record["started"][:10]))
            hardware.append(record["environment"]["hardware"])
            versions.append(record["environment"]["torch"])
            probes.append(record["metrics"].get("noise_probe_ms"))
            stale += record["code"] != records.digest(experiment)
    warnings = []
    if stale:
        warnings.append(f"{stale:,} of {len(days):,} records are stale: older code measured them.")
    probes = list(filter(None, probes))
    quietest = min(map(statistics.median, probes), default=0.0)
    noisy = sum(not steady_state.quiet(probe, quietest) for probe in probes)
    if noisy:
        warnings.append(f"The noise probe was slow or unsteady beside {noisy:,} of {len(probes):,} records.")
    ends = dict.fromkeys(sorted(days)[:1] + sorted(days)[-1:])
    return {
        "hardware": ", ".join(dict.fromkeys(hardware)) or machine,
        "measured": " to ".join(f"{day.day} {day:%B %Y}" for day in ends),
        "torch": ", ".join(dict.fromkeys(versions)),
        "warnings": warnings,
    }
