"""Renders the chapters into one page, `reports/report.html`, which asks nothing of the network; measures nothing."""

import argparse
import concurrent.futures
import functools
import hashlib
import html
import itertools
import os
import re
import sys
import tempfile
from pathlib import Path

import jinja2
import nbformat

from lib import cli, notebooks, paths, validate
from lib.notebooks import NotebookFailed
from lib.records import damaged, results, staleness
from lib.report.document import page_diff, sanitize, title

TEMPLATE = Path(__file__).parent / "template"
LANES = 2  # in which chapters are executed side by side
STYLES = ("report", "title", "parts")  # in the order in which they follow one another
CONTENTS = re.compile(
    r'<h2 id="([^"]+)">(.*?)</h2>(?:\s*<p>(.*?)</p>)?', re.DOTALL
)  # id, title and question of a chapter


def page() -> Path:
    """Where the report goes: beside the records."""
    return results.folder().resolve().parent / "report.html"


def inputs(machine: str, machines: str = "") -> str:
    """A digest of all that the report follows from: records, damaged ones, notebooks, sweeps, code, template, and the
    version of PyTorch that makes records stale."""
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
    """Whether the page says that it was rendered from inputs of this digest."""
    return file.exists() and f'name="inputs" content="{digest}"' in file.read_text()[:2000]


def render(machine: str, target: Path, machines: str = "") -> None:
    """Execute every chapter for a machine and write the page, those that compare machines for the `machines` named.
    Raises NotebookFailed when one fails."""
    digest = inputs(machine, machines)
    chapters = sorted(notebooks.CHAPTERS.glob("*.ipynb"))
    executed = [target.parent / "chapters" / machine / chapter.name for chapter in chapters]
    os.environ["RESULTS"] = str(results.folder().resolve())
    given = {"machine": machine, "machines": machines}
    taken = [{name: given[name] for name in notebooks.parameters(chapter) if name in given} for chapter in chapters]
    todo = sorted(zip(chapters, executed, taken, strict=True), key=lambda one: -one[0].stat().st_size)
    with concurrent.futures.ProcessPoolExecutor(max_workers=LANES) as pool:
        found = dict(itertools.chain.from_iterable(pool.map(_executed, (todo[lane::LANES] for lane in range(LANES)))))
    bodies = [found[chapter] for chapter in chapters]
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATE), autoescape=True)
    script = (TEMPLATE / "report.js").read_text()
    text = environment.get_template("page.html.j2").render(
        css="".join((TEMPLATE / f"{name}.css").read_text() for name in STYLES),
        script=script,
        policy=sanitize.policy(script),
        inputs=digest,
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


def _executed(chapters: list[tuple[Path, Path, dict]]) -> list[tuple[Path, str]]:
    """Execute chapters, each with its output and parameters, in one kernel, and return them as HTML."""
    from lib import execution

    found = []
    with execution.keeping() as kept:
        for source, output, parameters in chapters:
            execution.execute(source, output, parameters, kept=kept)
            found.append((source, Chapter(output).html()))
    return found


def numbered(body: str, before: str = '<b class="label">', after: str = "</b>") -> str:
    """The body with its figures and its tables numbered, each in their order, where the word stands between marks."""
    for kind in ("Figure", "Table"):
        count = iter(range(1, 10_000))
        mark = re.escape(f"{before}{kind}{after}")
        body = re.sub(mark, lambda _, k=kind, c=count: f"{before}{k} {next(c)}.{after}", body)
    return body


class Chapter:
    """An executed chapter as HTML: its prose with MathML, its outputs, and its code behind one disclosure, all of it
    without what could run (see `neutral`)."""

    def __init__(self, file: Path):
        self.name, self.notebook = file.stem, nbformat.read(file, as_version=4)

    def html(self) -> str:
        """The chapter as a section of the page."""
        from nbconvert import HTMLExporter

        loader = jinja2.FileSystemLoader(TEMPLATE)
        exporter = HTMLExporter(extra_loaders=[loader], template_file="chapter.html.j2", exclude_input_prompt=True)
        exporter.register_filter("markdown2html", functools.partial(_prose, self.name))
        body, _ = exporter.from_notebook_node(self.notebook)
        return f'<section id="{self.name}">{sanitize.harmless(body)}</section>'


def anchor(chapter: str, heading: str) -> str:
    """The id of a heading of a chapter."""
    return f"{chapter}-" + re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>", "", heading).lower()).strip("-")


def _prose(chapter: str, source: str) -> str:
    """Markdown as HTML, headings one level down with an id, formulas as MathML."""
    import latex2mathml.converter
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def heading(self, text, level, **_):
            return f'<h{level + 1} id="{anchor(chapter, text)}">{text}</h{level + 1}>\n'

        def block_math(self, body):
            parts = [latex2mathml.converter.convert(part, display="block") for part in body.strip().split(r"\qquad")]
            focusable = [
                part.replace("<math ", '<math tabindex="0" ', 1) for part in parts
            ]  # each scrolls where it must
            return f'<div class="formula">{"".join(focusable)}</div>\n'

        def inline_math(self, body):
            return latex2mathml.converter.convert(body.strip())

    return MarkdownWithMath(renderer=Renderer(escape=False)).render(source)


def link(record) -> str:
    """A link to the executed notebook that made a record, where it exists, else the name of the run."""
    run, machine = record["environment"].get("run", ""), record["machine"]
    file = paths.runs() / machine / f"{run}.ipynb"
    name = html.escape(run)
    return f'<a href="runs/{html.escape(machine)}/{name}.ipynb">{name}</a>' if file.exists() else name


def still_follows(stored: Path, machine: str, machines: str = "") -> bool:
    """Whether a stored page is what rendering gives now, which is done in a temporary folder; prints what differs.
    Raises NotebookFailed when a chapter fails."""
    with tempfile.TemporaryDirectory() as folder:
        rendered = Path(folder) / stored.name
        render(machine, rendered, machines)
        found = page_diff.differences(stored.read_text(), rendered.read_text())
    if found:
        print(page_diff.report(found))
        print(f"{stored} does not follow from the records; without it, `make render` writes it anew")
    return not found


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    made = cli.parser(
        "lib.report",
        "Render the report from records, measuring nothing; where they have not changed, nothing is done.",
        ("", "--machine epyc-2c", "--check"),
        {1: "a chapter failed, or the stored report does not follow", 2: cli.BAD_INPUT},
    )
    made.add_argument("--machine", help="whose records; by default the latest measured here, else the first in git")
    made.add_argument("--machines", nargs="*", default=[], help="those that stand side by side in their chapter")
    made.add_argument("--check", action="store_true", help="write nothing; fail unless the stored report follows")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 when a chapter failed or the stored report does not follow, 2 for bad input."""
    given = parser().parse_args(arguments)
    machines, target = results.machines(), page()
    if given.check and not target.exists():
        print(f"{target}: there is no report to check; `make render` writes one", file=sys.stderr)
        return 1
    stored = page_diff.machines(target.read_text()) if given.check else []
    try:
        if not machines:
            raise ValueError("machine: there are no records; `make report` measures some")
        machine = [*stored, *machines][0] if given.machine is None else given.machine
        validate.choice("machine", machine, machines)
        for name in given.machines:
            validate.choice("machines", name, machines)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    beside = " ".join(given.machines or stored[1:])
    try:
        if given.check and not still_follows(target, machine, beside):
            return 1
        if given.check or up_to_date(target, inputs(machine, beside)):
            print(f"{target} follows from the records as they are")
            return 0
        render(machine, target, beside)
    except NotebookFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
