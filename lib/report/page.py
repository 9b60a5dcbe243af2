"""Render the notebooks into one page, `reports/report.html`.

Each notebook is executed with `machine=`. All are joined to one notebook, which nbconvert exports with the template in
`reports/template`: as HTML for the page, which loads nothing from the network. `__main__` also exports it as Markdown.
"""

import contextlib
import html
import itertools
import json
import re
import warnings
from collections.abc import Mapping, Sequence

import jinja2
import nbformat
import pandas as pd
from latex2mathml import converter
from nbconvert import HTMLExporter
from nbconvert.filters import markdown_mistune as markdown
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from traitlets.config import Config

from lib import execution, notebooks, paths, records, sources
from lib.catalog import CATALOG
from lib.report import answers, noise
from lib.report.cells import cells_of_page, line
from lib.report.show import NOT_MEASURED
from lib.report.table import list_processes

CHAPTERS = (
    "summary", "step", "ladder", "kernels", "memory", "attention", "flash", "attention_module", "compile", "adam",
    "precision", "warmup", "collectives", "parallel", "sharding", "accounting", "peers", "ceilings", "calibration",
    "published", "method", "questions",
)  # fmt: skip
QUOTING = ("summary", "questions")  # executed last, with the answers of all others
DETAIL = "in detail"  # what follows this heading of a chapter is folded
HTML_ONLY = {"raw_mimetype": "text/html"}
LONG_FORMULA = 30  # letters of LaTeX; a longer formula may scroll on a phone, for which it needs a focus


def render(machines: Sequence[str]) -> dict[str, str]:
    """Execute every chapter about the first of the machines, and write the page.

    Most chapters end in a table of the cases that other machines have measured, too. Returns the chapters that failed,
    each with its reason, which the page tells, too."""
    # the digest comes first: what changes while the page is made puts it out of date
    digest = sources.digest(machines)
    chapters, failed = execute(machines)
    head = facts(machines[0])
    if records.is_in_git(machines[0]):
        head["warnings"].insert(0, f"These are stored records of {machines[0]}: nothing was measured here.")
    # a page with a failed chapter is never up to date
    head["sources"] = "" if failed else digest
    # scripts and widgets are not for a page: their text stands for them
    kinds = ["text/html", "text/markdown", "image/svg+xml", "image/png", "image/jpeg", "text/latex", "text/plain"]
    config = Config(NbConvertBase={"display_data_priority": kinds})
    exporter = HTMLExporter(config, template_name="template", extra_template_basedirs=[str(paths.REPORTS)])
    exporter.register_filter("markdown2html", _to_html)
    text, _ = exporter.from_notebook_node(join(chapters, failed), {"page": head})
    records.write(sources.page(), text)
    return failed


def execute(machines: Sequence[str]) -> tuple[dict[str, NotebookNode], dict[str, str]]:
    """Execute the chapters; return them, and the reasons of those that failed.

    Those of `QUOTING` are executed last and get the answers of all others. A file keeps these, for JupyterLab."""
    # an experiment that has no place among the chapters comes last on the page
    names = list(dict.fromkeys([*CHAPTERS, *CATALOG]))
    names = [name for name in names if (notebooks.NOTEBOOKS / f"{name}.ipynb").exists()]
    collected: dict[str, str] = {}
    executed = {}
    failed = {}
    with contextlib.ExitStack() as stack:
        kernel = stack.enter_context(execution.shared_kernel())
        for name in sorted(names, key=lambda name: name in QUOTING):
            source = notebooks.NOTEBOOKS / f"{name}.ipynb"
            has_records = name not in CATALOG or _has_records(name, machines[0])
            output = paths.runs() / machines[0] / f"{name}.ipynb"
            output.unlink(missing_ok=True)
            parameters: dict[str, object] = {"machine": list(machines)}
            if name in QUOTING:
                parameters["answers"] = collected
            # a chapter without any record is its question and one line
            until = "" if has_records else "measure"
            executed[name] = new_notebook(cells=[new_markdown_cell(f"# {name}")])
            try:
                # if the kernel dies, the chapter has the notebook's text without outputs
                executed[name] = execution.read(source)
                execution.execute(kernel, source, output, parameters, until=until)
            except Exception as error:
                failed[name] = " ".join(str(error).split())[:500]
                # the error may have ended the kernel
                kernel = stack.enter_context(execution.shared_kernel())
            if output.exists():
                executed[name] = nbformat.read(output, as_version=4)
            if not has_records:
                nothing = line(f"{NOT_MEASURED.capitalize()}.")
                executed[name].cells.append(new_code_cell(outputs=[nothing]))
            collected |= answers.collect(executed[name])
    records.write(answers.file(machines[0]), json.dumps(collected, indent=1))
    return {name: executed[name] for name in names}, failed


def _has_records(experiment: str, machine: str) -> bool:
    """Tell if the page's machine has any record of an experiment."""
    with warnings.catch_warnings():
        # the chapter itself warns of damaged files
        warnings.simplefilter("ignore")
        return not records.load(experiment, machine).empty


def join(chapters: Mapping[str, NotebookNode], failed: Mapping[str, str]) -> NotebookNode:
    """Join executed notebooks to one, as sections whose details are folded.

    Raw cells hold the marks around sections and details; nbconvert passes them on."""
    cells = []
    for name, notebook in chapters.items():
        shown = cells_of_page(notebook)
        if name in failed:
            box = f'<p class="failed">Stopped at an error: <code>{html.escape(failed[name])}</code></p>'
            data = {"text/html": box, "text/markdown": f"> **Stopped at an error:** `{failed[name]}`"}
            # below the title
            shown.insert(1, new_code_cell(outputs=[new_output("display_data", data)]))
        cells.append(new_raw_cell(f'<section id="{name}">', metadata=HTML_ONLY))
        is_folded = False
        for cell in shown:
            cell.metadata["chapter"] = name
            if cell.metadata.get("heading", "").lower() == DETAIL:
                # for Markdown, too
                cells.append(new_raw_cell('<details class="detail"><summary>In detail</summary>\n'))
                cell.source = cell.source.partition("\n")[2]
                del cell.metadata["level"]
                is_folded = True
            cells.append(cell)
        if is_folded:
            cells.append(new_raw_cell("\n</details>\n"))
        cells.append(new_raw_cell("</section>", metadata=HTML_ONLY))
    figures = itertools.count(1)
    for position, cell in enumerate(cells):
        # cells of different notebooks may have the same id
        cell.id = f"cell-{position}"
        for output in cell.get("outputs", []):
            if answers.SVG.search(output.get("data", {}).get("text/html", "")):
                # figures may share ids, too: each would refer to the first one on the page, which is not drawn while
                # its fold is closed
                own_ids = rf"\g<1>figure-{next(figures)}-"
                output.data["text/html"] = re.sub(r'( id="|url\(#|href="#)', own_ids, output.data["text/html"])
    return new_notebook(cells=cells)


@jinja2.pass_context
def _to_html(context: jinja2.runtime.Context, source: str) -> str:
    """Convert Markdown to HTML, for the chapter of the cell that it is in."""
    cell = context["cell"]
    renderer = _Renderer(cell.metadata.get("chapter", ""), cell.get("attachments"))
    return markdown.MarkdownWithMath(renderer).render(source)


class _Renderer(markdown.IPythonRenderer):
    """Set headings one level down, with ids of their chapter, and formulas as MathML."""

    def __init__(self, chapter: str, attachments: dict | None):
        super().__init__(escape=False, attachments=attachments)
        self.chapter = chapter

    def heading(self, text: str, level: int, **_) -> str:
        words = re.sub(r"<[^>]+>", "", text).lower()
        name = re.sub(r"\W+", "-", f"{self.chapter}-{words}").strip("-")
        return f'<h{level + 1} id="{name}">{text}</h{level + 1}>\n'

    def block_math(self, body: str) -> str:
        # on a phone parts wrap, and one that is too wide scrolls, for which the keyboard needs a focus
        parts = [_to_mathml(part, "block") for part in body.split(r"\qquad")]
        return f'<div class="formula" tabindex="0" role="group" aria-label="formula">{"".join(parts)}</div>\n'

    def inline_math(self, body: str) -> str:
        formula = _to_mathml(body)
        if len(body) > LONG_FORMULA:
            return formula.replace("<math ", '<math tabindex="0" ', 1)
        return formula

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        """Set a cell as `show.Table` does, with the ends of an interval below the value."""
        tag = "th" if head else "td"
        kind = "number" if align == "right" else "text"
        text = re.sub(r" (\([\d.,]+–[\d.,]+\))$", r" <small>\1</small>", text)
        return f'<{tag} class="{kind}">{text}</{tag}>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0" role="group" aria-label="table"><table>{text}</table></div>\n'


def _to_mathml(formula: str, display: str = "inline") -> str:
    """Return a formula as MathML, or its source if it cannot be read."""
    try:
        return converter.convert(formula.strip(), display=display)
    # latex2mathml raises IndexError and others, besides errors of its own
    except Exception:
        return f"<code>{html.escape(formula)}</code>"


def facts(machine: str) -> dict[str, object]:
    """Return what the head of the page says of a machine and its records."""
    frames = [records.load(experiment, machine) for experiment in CATALOG]
    columns = ["machine", "hardware", "environment", "started", "stale"]
    measured = pd.concat([frame.reindex(columns=columns) for frame in frames if len(frame)], ignore_index=True)
    days = pd.to_datetime(measured["started"]).sort_values()
    ends = dict.fromkeys(f"{day.day} {day:%B %Y}" for day in (days.iloc[0], days.iloc[-1]))
    warnings = []
    stale = measured["stale"].sum()
    if stale:
        warnings.append(f"{stale:,} of {len(measured):,} records are stale: older code measured them.")
    processes = pd.concat([list_processes(frame) for frame in frames if len(frame)])
    if 2 * processes["noisy"].sum() > len(processes):
        warnings.append(
            "Most noise probes were slow or unsteady, so times may be high: measure again when the machine is quiet."
        )
    # all records are of one machine, and one of them stands for all
    environment = measured["environment"].iloc[-1]
    parts = list(environment.get("instruction_sets", []))
    if "l3_mib" in environment:
        parts.append(f"L3 {environment['l3_mib']:.0f} MiB")
    parts.append(f"{environment['memory_mib'] / 1024:.1f} GiB")
    if "gpu_memory_mib" in environment:
        parts.append(f"{environment['gpu_memory_mib'] / 1024:.1f} GiB on the GPU")
    return {
        "hardware": ", ".join(measured["hardware"].unique()),
        "parts": " · ".join(parts),
        "measured": f"{' to '.join(ends)}, {noise.tell(processes)}",
        # `.str` also looks up a key of each dict
        "torch": ", ".join(measured["environment"].str["torch"].unique()),
        "commit": _join_commits(measured.sort_values("started")["environment"].str["commit"].str[:8].unique()),
        "warnings": warnings,
    }


def _join_commits(commits: Sequence[str]) -> str:
    """Name up to three commits, and else the oldest and the newest."""
    if len(commits) > 3:
        return f"{commits[0]} to {commits[-1]}, {len(commits)} in all"
    return ", ".join(commits)
