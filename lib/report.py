"""Renders the chapters into one page, `reports/report.html`, which asks nothing of the network; measures nothing."""

import argparse
import concurrent.futures
import functools
import hashlib
import html
import os
import re
import sys
import tempfile
from pathlib import Path

import jinja2
import nbformat

from lib import check, follows, notebook, results
from lib.notebook import NotebookFailed

ROOT = results.REPORTS.parent
CHAPTERS = notebook.NOTEBOOKS / "report"
TEMPLATE = Path(__file__).parent / "template"


def page() -> Path:
    """Where the report goes: beside the records."""
    return results.folder().resolve().parent / "report.html"


def inputs(machine: str) -> str:
    """A digest of all that the report follows from: records, notebooks, sweeps, code and template."""
    folders = {TEMPLATE: "*", notebook.NOTEBOOKS: "**/*", ROOT / "lib": "*.py", results.REFERENCE: "**/*"}
    files = [file for folder, pattern in folders.items() for file in sorted(folder.glob(pattern)) if file.is_file()]
    digest = hashlib.sha256(machine.encode())
    for file in files + results.files(machine):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def up_to_date(file: Path, digest: str) -> bool:
    """Whether the page says that it was rendered from inputs of this digest."""
    return file.exists() and f'name="inputs" content="{digest}"' in file.read_text()[:2000]


def render(machine: str, target: Path) -> None:
    """Execute every chapter for a machine and write the page. Raises NotebookFailed when one fails."""
    from lib.kernel import execute

    digest = inputs(machine)
    chapters = sorted(CHAPTERS.glob("*.ipynb"))
    executed = [target.parent / "chapters" / machine / chapter.name for chapter in chapters]
    os.environ["RESULTS"] = str(results.folder().resolve())
    with concurrent.futures.ProcessPoolExecutor(max_workers=2) as pool:
        list(pool.map(execute, chapters, executed, [{"machine": machine}] * len(chapters)))
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATE), autoescape=True)
    bodies = [Chapter(file).html() for file in executed]
    text = environment.get_template("page.html.j2").render(
        css=(TEMPLATE / "report.css").read_text(),
        inputs=digest,
        machine=machine,
        about=about(machine),
        contents=[heading for body in bodies for heading in re.findall(r'<h2 id="([^"]+)">(.*?)</h2>', body)],
        body=numbered("\n".join(bodies)),
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text)
    os.replace(temporary, target)


def about(machine: str) -> list[str]:
    """Hardware, versions of torch, days and commits of a machine's records, for the title."""
    records = [results.read(file) for file in results.files(machine) if results.status(file)]
    found = [record["environment"] for record in records]
    commits = {e["commit"] + (" with changes" if e["uncommitted"] else "") for e in found}
    return [
        ", ".join(sorted({e["hardware"] for e in found})),
        "PyTorch " + ", ".join(sorted({e["torch"] for e in found})),
        "measured " + ", ".join(sorted({record["started"][:10] for record in records})),
        "commit " + ", ".join(sorted(commits)),
        f"{len(records)} records",
    ]


def numbered(body: str) -> str:
    """The body with its figures and its tables numbered, each in their order."""
    for kind in ("Figure", "Table"):
        count = iter(range(1, 10_000))
        mark = f'<b class="label">{kind}</b>'
        body = re.sub(re.escape(mark), lambda _, k=kind, c=count: f'<b class="label">{k} {next(c)}.</b>', body)
    return body


class Chapter:
    """An executed chapter as HTML: its prose with MathML, its outputs, and its code behind one disclosure."""

    def __init__(self, file: Path):
        self.name, self.notebook = file.stem, nbformat.read(file, as_version=4)

    def html(self) -> str:
        """The chapter as a section of the page."""
        from nbconvert import HTMLExporter

        loader = jinja2.FileSystemLoader(TEMPLATE)
        exporter = HTMLExporter(extra_loaders=[loader], template_file="chapter.html.j2", exclude_input_prompt=True)
        exporter.register_filter("markdown2html", functools.partial(_prose, self.name))
        body, _ = exporter.from_notebook_node(self.notebook)
        return f'<section id="{self.name}">{body}</section>'


def _prose(chapter: str, source: str) -> str:
    """Markdown as HTML, headings one level down with an id, formulas as MathML."""
    import latex2mathml.converter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def heading(self, text, level, **_):
            slug = re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>", "", text).lower()).strip("-")
            return f'<h{level + 1} id="{chapter}-{slug}">{text}</h{level + 1}>\n'

        def block_math(self, body):
            return latex2mathml.converter.convert(body.strip(), display="block")

        def inline_math(self, body):
            return latex2mathml.converter.convert(body.strip())

    return MarkdownWithMath(renderer=Renderer(escape=False)).render(source)


def link(record) -> str:
    """A link to the executed notebook that made a record, where it exists, else the name of the run."""
    run, machine = record["environment"].get("run", ""), record["machine"]
    file = results.runs() / machine / f"{run}.ipynb"
    name = html.escape(run)
    return f'<a href="runs/{html.escape(machine)}/{name}.ipynb">{name}</a>' if file.exists() else name


def still_follows(machine: str, stored: Path) -> bool:
    """Whether a stored page is what rendering gives now, which is done in a temporary folder; prints what differs.
    Raises NotebookFailed when a chapter fails."""
    with tempfile.TemporaryDirectory() as folder:
        rendered = Path(folder) / stored.name
        render(machine, rendered)
        found = follows.differences(stored.read_text(), rendered.read_text())
    if found:
        print(follows.report(found))
        print(f"{stored} does not follow from the records; without it, `make render` writes it anew")
    return not found


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 when a chapter failed or the stored report does not follow, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m lib.report", description="Render the report from records.")
    parser.add_argument("--machine", help="whose records; by default the latest measured here, else the first in git")
    parser.add_argument("--check", action="store_true", help="write nothing: exit 1 unless the stored report follows")
    given = parser.parse_args(arguments)
    machines, target = results.machines(), page()
    if given.check and not target.exists():
        print(f"{target}: there is no report to check; `make render` writes one", file=sys.stderr)
        return 1
    try:
        if not machines:
            raise ValueError("machine: there are no records; `make report` measures some")
        stored = follows.machine(target.read_text()) if given.check else None
        machine = given.machine or stored or machines[0]
        check.choice("machine", machine, machines)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        if given.check and not still_follows(machine, target):
            return 1
        if given.check or up_to_date(target, inputs(machine)):
            print(f"{target} follows from the records as they are")
            return 0
        render(machine, target)
    except NotebookFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
