"""Render the chapters into one page, `reports/report.html`, that loads nothing."""

import concurrent.futures
import functools
import hashlib
import html
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import jinja2
import nbformat

from lib import notebooks, paths
from lib.notebooks import NotebookFailed
from lib.records import damaged, results, staleness
from lib.records.record import one_line, without_folders
from lib.report import tables
from lib.report.document import page_diff, sanitize, title

TEMPLATE = Path(__file__).parent / "template"
LANES = 2  # kernels that execute chapters in parallel
STYLES = ("report", "title", "parts")  # in the order in which they are joined
DETAIL = re.compile(r'<h3 id="[^"]*-in-detail">.*?</h3>')  # what follows this heading of a chapter is folded
QUESTION = re.compile(r"</h2>\s*<p>.*?</p>", re.DOTALL)
UNANSWERED = (
    "<p>Nothing that answers this was measured on this machine; "
    '<a href="#13_method-not-measured-here">the list of what is missing</a> says why.</p>'
)
HEADINGS = re.compile(r"<h[34][^>]*>(.*?)</h[34]>")
FIRST_APPENDIX = "80"  # the number of the first chapter that is an appendix, all of it folded
MARKED = {"papermill-error-cell-tag"}  # of the cells that papermill adds to a notebook that failed
CONTENTS = re.compile(r'<h2 id="([^"]+)">(.*?)</h2>')  # id and title of a chapter


def page() -> Path:
    """Return the report's path, beside the records."""
    return results.folder().resolve().parent / "report.html"


def inputs(machine: str, machines: str = "") -> str:
    """Digest all that the report depends on: records, code, notebooks, PyTorch's version."""
    watched = {TEMPLATE: "*", notebooks.NOTEBOOKS: "**/*", paths.ROOT / "lib": "**/*.py", results.REFERENCE: "**/*"}
    files = [file for folder, pattern in watched.items() for file in sorted(folder.glob(pattern)) if file.is_file()]
    digest = hashlib.sha256(f"{machine} {machines} {staleness.installed()}".encode())
    digest.update(damaged.losses().to_csv().encode())
    own = [file for name in dict.fromkeys([machine, *machines.split()]) for file in results.files(name)]
    for file in files + list(filter(results.status, own)):
        with file.open("rb") as opened:
            digest.update(os.fsencode(file.name) + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def up_to_date(file: Path, digest: str) -> bool:
    """Return True if the page was rendered from inputs of this digest."""
    return file.exists() and f'name="inputs" content="{digest}"' in file.read_text()[:2000]


def executed(machine: str, target: Path) -> list[Path]:
    """Return the paths of a machine's executed chapters, for a page."""
    return [
        target.parent / "chapters" / machine / chapter.name for chapter in sorted(notebooks.CHAPTERS.glob("*.ipynb"))
    ]


def render(machine: str, target: Path, machines: str = "") -> dict[Path, str]:
    """Execute every chapter and write the page; `machines` are those to compare.

    Returns the executed chapters that failed, and why. A page with one has no digest, so that it is rendered again."""
    digest = inputs(machine, machines)
    os.environ["RESULTS"] = str(results.folder().resolve())
    outputs = executed(machine, target)
    longest_first = sorted(outputs, key=lambda output: -_source(output).stat().st_size)
    lanes = [longest_first[lane::LANES] for lane in range(LANES)]
    execute = functools.partial(_execute, given={"machine": machine, "machines": machines})
    with concurrent.futures.ProcessPoolExecutor(max_workers=LANES) as pool:
        found = dict(itertools.chain.from_iterable(pool.map(execute, lanes)))
    bodies = [found[output][0] for output in outputs]
    failed = {output: found[output][1] for output in outputs if found[output][1]}
    script = (TEMPLATE / "report.js").read_text()
    text = _filled(
        "page.html.j2",
        css="".join((TEMPLATE / f"{name}.css").read_text() for name in STYLES),
        script=script,
        policy=sanitize.policy(script),
        inputs="" if failed else digest,
        machine=machine,
        machines=machines,
        facts=title.facts(machine),
        contents=[heading for body in bodies for heading in CONTENTS.findall(body)],
        body=numbered("\n".join(bodies)),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, target)
    return failed


def _filled(template: str, filters: Mapping[str, Callable] = MappingProxyType({}), **values) -> str:
    """Return a template with these values in it; a text among them is escaped."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATE), autoescape=True)
    environment.filters |= filters
    return environment.get_template(template).render(**values)


def _source(output: Path) -> Path:
    """Return the chapter whose executed copy is at `output`."""
    return notebooks.CHAPTERS / output.name


def _execute(outputs: list[Path], given: Mapping[str, str]) -> list[tuple[Path, tuple[str, str]]]:
    """Execute chapters with those parameters of `given` that they have; return HTML and why it failed.

    The reason is empty if it did not. They share a kernel, until one fails and may have ended it."""
    from lib import execution

    found, left = [], iter(outputs)
    while len(found) < len(outputs):
        with execution.shared_kernel() as kept:
            for output in left:
                reason, source = "", _source(output)
                parameters = {name: given[name] for name in notebooks.parameters(source) if name in given}
                output.unlink(missing_ok=True)
                try:
                    execution.execute(source, output, parameters, kept=kept)
                except Exception as error:
                    reason = _keep_failure(output, error)
                found.append((output, (section(output), reason)))
                if reason:
                    break
    return found


def _keep_failure(output: Path, error: Exception) -> str:
    """Note in an executed chapter why it failed, in one line without folders."""
    kept = nbformat.read(output if output.exists() else _source(output), as_version=4)
    kept.cells = [cell for cell in kept.cells if not MARKED.intersection(cell.metadata.get("tags", []))]
    outputs = itertools.chain.from_iterable(cell.get("outputs", []) for cell in kept.cells)
    raised = [f"{each.ename}: {each.evalue}" for each in outputs if each.output_type == "error"]
    reason = one_line(without_folders([*raised, f"{type(error).__name__}: {error}"][0]))
    kept.metadata["failed"] = reason
    output.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(kept, output)
    return reason


def failure_box(chapter: nbformat.NotebookNode) -> str:
    """Return the box below the title of an executed chapter that failed, or nothing."""
    if "failed" not in chapter.metadata:
        return ""
    reason = f"<code>{html.escape(chapter.metadata['failed'])}</code>"
    return f'<p class="failed">This chapter stopped at an error: {reason}. What would follow there is missing.</p>'


def unanswered(file: Path, chapter: nbformat.NotebookNode) -> str:
    """Return what stands below the question of a chapter that has no answer here, or nothing."""
    head = itertools.takewhile(lambda cell: not cell.source.startswith("## In detail"), chapter.cells)
    outputs = itertools.chain.from_iterable(cell.get("outputs", []) for cell in head)
    answered = any('class="claim"' in output.get("data", {}).get("text/html", "") for output in outputs)
    return "" if answered or "failed" in chapter.metadata or file.stem >= FIRST_APPENDIX else UNANSWERED


def numbered(body: str) -> str:
    """Number the figures and the tables of a body, each in their order."""
    for kind in ("Figure", "Table"):
        count = itertools.count(1)
        body = re.sub(label(kind), lambda _, k=kind, c=count: label(f"{k} {next(c)}."), body)
    return body


def label(text: str) -> str:
    """Return the mark of a caption: Figure or Table, until it is numbered."""
    return f'<b class="label">{text}</b>'


def section(file: Path) -> str:
    """Return an executed chapter as a section: prose, outputs, and code in one fold.

    Formulas are MathML, and nothing in it can run or load (see `sanitize`)."""
    from nbconvert.filters.highlight import Highlight2HTML

    chapter = nbformat.read(file, as_version=4)
    filters = {"markdown": functools.partial(_as_html, file.stem), "code": Highlight2HTML(pygments_lexer="ipython3")}
    body = _filled("chapter.html.j2", filters, cells=chapter.cells)
    kind = "appendix" if file.stem >= FIRST_APPENDIX else "chapter"
    body = QUESTION.sub(lambda asked: asked[0] + unanswered(file, chapter), body, count=1)
    found = (QUESTION if kind == "appendix" else DETAIL).search(body)
    if found:
        begin = found.end() if kind == "appendix" else found.start()
        body = f"{body[:begin]}{_fold(body[found.end() :])}"
    body = body.replace("</h2>", f"</h2>{failure_box(chapter)}", 1)
    return f'<section id="{file.stem}" class="{kind}">{sanitize.clean(body)}</section>'


def _fold(body: str) -> str:
    """Fold a part of a chapter; its summary lists the headings in it."""
    listed = "; ".join(HEADINGS.findall(body))
    return f'<details class="detail"><summary>In detail<span>{listed}</span></summary>{body}</details>'


def _as_html(chapter: str, source: str) -> str:
    """Convert Markdown to HTML, headings one level down with ids, formulas as MathML."""
    import latex2mathml.converter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def heading(self, text, level, **_):
            return f'<h{level + 1} id="{tables.anchor(chapter, text)}">{text}</h{level + 1}>\n'

        def block_math(self, body):
            parts = [latex2mathml.converter.convert(part, display="block") for part in body.strip().split(r"\qquad")]
            focusable = [part.replace("<math ", '<math tabindex="0" ', 1) for part in parts]  # since each may scroll
            return f'<div class="formula">{"".join(focusable)}</div>\n'

        def inline_math(self, body):
            return latex2mathml.converter.convert(body.strip())

    return MarkdownWithMath(renderer=Renderer(escape=False)).render(source)


def difference(stored: Path, machine: str, machines: str = "") -> str:
    """Compare a stored page with one rendered now, in a temporary folder.

    Raises NotebookFailed if a chapter fails."""
    with tempfile.TemporaryDirectory() as folder:
        rendered = Path(folder) / stored.name
        if failed := render(machine, rendered, machines):
            raise NotebookFailed("\n".join(f"{file.stem}: {reason}" for file, reason in failed.items()))
        return page_diff.difference(stored.read_text(), rendered.read_text())
