"""Exports the report: as PDF, by the system's Chromium, and as Markdown with its figures as files; measures nothing."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat

from lib import cli, notebooks
from lib.records import results
from lib.report import markdown
from lib.report.document import page as report
from lib.report.document import title

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MACOS = [f"/Applications/{name}.app/Contents/MacOS/{name}" for name in ("Google Chrome", "Chromium")]
PRINT = "--headless --disable-gpu --disable-dev-shm-usage --no-first-run --no-pdf-header-footer"
OUTLINE = "--generate-pdf-document-outline"  # of the headings; an older Chromium passes over it
NO_CHROMIUM = (
    "No Chromium was found, which prints the PDF. Install it (Debian and Ubuntu: apt install chromium; macOS: "
    "brew install --cask chromium), name one in the variable CHROMIUM, or print {page} from any browser."
)


def chromium() -> str | None:
    """The system's Chromium or Chrome, if there is one; what the variable CHROMIUM names comes before all others."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    installed = Path(sys.prefix, "bin", "chromium")  # by make, where the system has none
    return next((found for name in (*NAMES, *MACOS, installed) if (found := shutil.which(name))), None)


def pdf(page: Path) -> Path:
    """Print a page as a PDF beside it, with an outline. Raises ValueError where there is no Chromium, and OSError with
    what it said where it printed nothing."""
    browser = chromium()
    if browser is None:
        raise ValueError(NO_CHROMIUM.format(page=page))
    target = page.with_suffix(".pdf")
    with tempfile.TemporaryDirectory(prefix="print-") as folder:
        printed = Path(folder, "report.pdf")
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []  # has no sandbox
        options = [*PRINT.split(), OUTLINE, *root, f"--user-data-dir={folder}/profile", f"--print-to-pdf={printed}"]
        done = subprocess.run([browser, *options, page.resolve().as_uri()], capture_output=True, text=True, timeout=300)
        if not printed.exists():
            raise OSError(f"{browser} printed nothing: {done.stderr.strip()[-500:]}")
        shutil.copyfile(printed, target)
    return target


def as_markdown(machine: str, page: Path) -> Path:
    """Write the executed chapters of a machine as Markdown beside the page, and their figures into a folder there."""
    folder = page.parent / "figures"
    folder.mkdir(exist_ok=True)
    for former in folder.glob("[0-9]*.svg"):  # what was saved while exploring stays
        former.unlink()
    executed = [page.parent / "chapters" / machine / file.name for file in sorted(notebooks.CHAPTERS.glob("*.ipynb"))]
    bodies = {file.stem: _chapter(file, folder) for file in executed}
    head = f"# Transformer training, measured\n\n{_facts(machine)}"
    text = report.numbered("\n\n".join(bodies.values()), *markdown.MARK.split("{}"))
    text = _linked(f"{head}\n\n## Contents\n\nCONTENTS\n\n{text}", bodies)
    target = page.with_suffix(".md")
    target.write_text(re.sub(r"\n{3,}", "\n\n", text) + "\n")
    return target


def _facts(machine: str) -> str:
    return "\n".join(f"- {label}: {markdown.escape(value)}" for label, value in title.facts(machine).items())


def _chapter(file: Path, folder: Path) -> str:
    """The prose and the outputs of an executed chapter; its figures go to the folder, under its name."""
    parts, drawn = [], 0
    inks = light()
    for cell in nbformat.read(file, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(markdown.section(cell.source))
        for output in cell.get("outputs", []):
            data = output.get("data", {"text/plain": output.get("text", "")})
            said, page = data.get("text/markdown"), data.get("text/html", "")
            if said and "<svg" in page:
                drawn += 1
                name = f"{file.stem}-{drawn}.svg"
                (folder / name).write_text(standing_alone(page[page.index("<svg") : page.rindex("</svg>") + 6], inks))
                said = said.replace("](figure.svg)", f"]({folder.name}/{name})")
            if not said:
                only = f"*Here [the page](report.html#{file.stem}) shows what Markdown cannot.*"
                said = only if page else f"```\n{data.get('text/plain', '').strip()}\n```"
            parts.append(said)
    return "\n\n".join(parts)


def _linked(text: str, bodies: Mapping[str, str]) -> str:
    """The text with a list of its chapters, and with its links to headings as GitHub resolves them; a link to what only
    the page has becomes its words."""
    fragments = iter(markdown.anchors(markdown.headings(text)))
    next(fragments), next(fragments)  # the title and the contents themselves
    places, contents = {}, []
    for chapter, body in bodies.items():
        titles = markdown.headings(body)
        here = [next(fragments) for _ in titles]
        contents.append(f"- [{titles[0]}](#{here[0]})")
        places |= {report.anchor(chapter, title): place for title, place in zip(titles, here, strict=True)}
        places[chapter] = here[0]

    def link(found: re.Match) -> str:
        words, place = found.groups()
        return f"[{words}](#{places[place]})" if place in places else words

    linked = re.sub(r"\[([^\[\]]+)\]\(#([^)]+)\)", link, text)
    return linked.replace("CONTENTS", "\n".join(contents), 1)


def light() -> dict[str, str]:
    """The inks of the page in its light scheme, by the names of its style sheet."""
    css = (report.TEMPLATE / "report.css").read_text()
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", css[: css.index("}")]))


def standing_alone(svg: str, inks: Mapping[str, str]) -> str:
    """An SVG of the page as a file that stands alone: in its light inks on white, with the size of its view box."""
    svg = svg.replace("currentColor", "var(--ink)")
    svg = re.sub(
        r"var\(--([a-z0-9-]+)(?:, ?([^()]*|var\([^()]*\)))?\)", lambda m: inks.get(m[1], m[2] or inks["ink"]), svg
    )
    x, y, width, height = re.search(r'viewBox="([^"]+)"', svg)[1].split()
    size = f'width="{width}" height="{height}"'
    ground = f'<rect x="{x}" y="{y}" {size} fill="#ffffff"/>'
    font = "<style>text { font-family: 'Noto Sans', Ubuntu, Calibri, sans-serif !important }</style>"
    head, _, rest = svg.partition(">")
    return f"{head} {size}>{font}{ground}{rest}\n"


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    made = cli.parser(
        "lib.report.document.export",
        "Export the report, which is rendered first where it is not up to date. What is not named here goes to "
        "python -m lib.report.",
        ("pdf", "markdown --machine epyc-2c"),
        {1: "a chapter failed, or there is no Chromium to print with", 2: cli.BAD_INPUT},
    )
    made.add_argument("format", choices=("pdf", "markdown"), help="report.pdf, or report.md with figures/*.svg")
    made.add_argument("--machine", help="whose records, as for python -m lib.report")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 where a chapter failed or the PDF cannot be printed, 2 for bad input."""
    given, others = parser().parse_known_args(arguments)
    code = report.main([*others, *(["--machine", given.machine] if given.machine is not None else [])])
    if code:
        return code
    try:
        page = report.page()
        print(pdf(page) if given.format == "pdf" else as_markdown(given.machine or results.machines()[0], page))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
