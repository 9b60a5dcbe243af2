"""Render, print or publish the report.

The command is `python -m lib.report [render|pdf|publish] [--machine NAME ...]`.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from nbconvert import MarkdownExporter
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from traitlets.config import Config

from lib import paths, records, sources, validate
from lib.report import answers, page
from lib.validate import BadInput

LONGEST_S = 300  # for the browser to print
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", str(Path(sys.prefix, "bin", "chromium")))
PRINT = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --no-pdf-header-footer "
    "--generate-pdf-document-outline"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code.

    0 is well, 1 means that a chapter failed or a file could not be made, and 2 is bad input."""
    parser = argparse.ArgumentParser(prog="python -m lib.report", description="Render the report from the records.")
    parser.add_argument("verb", nargs="?", default="render", choices=("render", "pdf", "publish"))
    parser.add_argument(
        "--machine", nargs="+", default=[], help="machine to report on, then those beside it; default: the latest"
    )
    options = parser.parse_args(arguments)
    try:
        known = records.machines()
        if not known:
            raise BadInput("machine: no records found; `make report` measures some")
        for machine in options.machine:
            validate.choice("machine", machine, known)
        machines = options.machine or known[:1]
        if options.verb == "publish":
            if len(machines) > 1:
                raise BadInput(f"machine: got {len(machines)}, expected one to publish")
            failed = publish(machines[0])
        else:
            failed = page.render(machines)
        for name, reason in failed.items():
            print(f"{name}: {reason}", file=sys.stderr)
        if options.verb == "pdf":
            print(pdf(sources.page()))
        elif options.verb != "publish":
            print(sources.page())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return int(bool(failed))


def browser() -> str | None:
    """Find Chromium or Chrome; the variable CHROMIUM takes precedence."""
    if "CHROMIUM" in os.environ:
        return shutil.which(os.environ["CHROMIUM"])
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def pdf(html_file: Path) -> Path:
    """Print the page as a PDF beside it.

    Raises OSError without Chromium, if it takes too long, or with what it says if it makes no file."""
    program = browser()
    if program is None:
        raise OSError(f"browser: got none, expected Chromium; CHROMIUM= names one, and any browser prints {html_file}")
    printed = html_file.with_suffix(".pdf")
    printed.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="print-") as folder:
        options = [*PRINT.split(), f"--user-data-dir={folder}", f"--print-to-pdf={printed.resolve()}"]
        command = [program, *options, html_file.resolve().as_uri()]
        try:
            done = subprocess.run(command, capture_output=True, errors="replace", timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            raise OSError(f"{program} took longer than {LONGEST_S} s to print") from None
    if not printed.exists():
        raise OSError(f"{program} printed nothing: {done.stderr.strip()[-500:]}")
    return printed


def publish(machine: str) -> dict[str, str]:
    """Write a machine's records, answers and report for git, and print where.

    Only experiments that were measured here are replaced. Returns the chapters that failed, each with its reason."""
    folder = paths.REFERENCE / machine
    measured = []
    for experiment in sorted((paths.results() / machine).glob("[!.]*")):
        lines = [json.dumps(record) for record in records.of_machine(experiment.name, machine)]
        if lines:
            records.write(folder / f"{experiment.name}.jsonl", "\n".join(lines) + "\n")
            print(f"{len(lines):,} records of {experiment.name}")
            measured.append(experiment.name)
    for file in sorted(folder.glob("*.jsonl")):
        if measured and file.stem not in measured:
            print(f"{file.name} stays, but report.md does not tell of {file.stem}: it was not measured here")
    chapters, failed = page.execute([machine])
    records.write(folder / "answers.json", answers.file(machine).read_text(encoding="utf-8"))
    for former in folder.glob("figures/*"):
        former.unlink()
    records.write(folder / "report.md", as_markdown(page.join(chapters, failed), page.facts(machine), folder))
    print(folder / "report.md")
    return failed


def as_markdown(notebook: NotebookNode, facts: Mapping[str, object], folder: Path) -> str:
    """Export the joined notebook as Markdown, with figures as files.

    The files are below a folder, and the notebook is changed. `facts` are those of `page.facts`."""
    # marks around chapters are for the page alone
    notebook.cells = [cell for cell in notebook.cells if cell.metadata.get("raw_mimetype") != "text/html"]
    contents = []
    drawn: Counter[str] = Counter()
    for cell in notebook.cells:
        chapter = cell.metadata.get("chapter")
        if "level" in cell.metadata:
            # one level down
            cell.source = f"#{cell.source}"
        if cell.metadata.get("level") == 1:
            contents.append(f"- [{cell.metadata['heading']}](#{chapter})")
            cell.source = f'<a id="{chapter}"></a>\n\n{cell.source}'
        if cell.cell_type == "markdown":
            # a macro that GitHub refuses
            cell.source = cell.source.replace(r"\operatorname{", r"\mathrm{")
        for output in cell.get("outputs", []):
            drawing = answers.SVG.search(output.get("data", {}).get("text/html", ""))
            if drawing:
                drawn[chapter] += 1
                name = f"figures/{chapter}-{drawn[chapter]}.svg"
                records.write(folder / name, standalone(drawing[0]))
                output.data = {"text/markdown": f"![{output.metadata['alt']}]({name})"}
    head = [
        f"# Transformer training on {facts['hardware']}",
        f"{facts['parts']} · Measured {facts['measured']} · PyTorch {facts['torch']} · commit {facts['commit']}",
    ]
    notebook.cells.insert(0, new_markdown_cell("\n\n".join([*head, *facts["warnings"], "\n".join(contents)])))
    kinds = ["text/markdown", "image/png", "image/jpeg", "text/latex", "text/plain"]
    exporter = MarkdownExporter(exclude_input=True, config=Config(NbConvertBase={"display_data_priority": kinds}))
    text, resources = exporter.from_notebook_node(notebook, {"output_files_dir": "figures"})
    for name, content in resources["outputs"].items():
        (folder / name).write_bytes(content)
    return re.sub(r"\n{3,}", "\n\n", text)


def standalone(drawing: str) -> str:
    """Return a figure as a file: its own inks on a white ground, and a size."""
    text = re.sub(r"var\(--[a-z]+, (#[0-9a-f]+)\)", r"\1", drawing).replace("currentColor", "#222222")
    x, y, width, height = map(float, re.search(r'viewBox="([^"]+)"', text)[1].split())
    ground = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="#ffffff"/>'
    head, _, rest = text.partition(">")
    # half as large again as its points, so that its text is as large as a page's
    return f'{head} width="{1.5 * width:.0f}" height="{1.5 * height:.0f}">{ground}{rest}\n'


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            # ends as an exception does, so that the kernel and its folder go, too
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
