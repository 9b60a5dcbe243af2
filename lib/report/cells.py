"""Take from an executed notebook what the page shows of it."""

import html
import itertools
import re

from nbconvert.filters import strip_ansi
from nbconvert.filters.markdown_mistune import MarkdownWithMath, MathBlockParser
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from lib.report.show import LINE

# tags of cells whose code, or text, the page does not show: `by-hand` tells those who run the notebook what to change
UNTOLD = {"parameters", "injected-parameters", "measure", "notebook-only", "by-hand"}
# tags of cells whose last value, the records or the plain table, is for those who run the notebook
WITHOUT_VALUE = {"measure", "notebook-only"}


def cells_of_page(notebook: NotebookNode) -> list[NotebookNode]:
    """Split markdown cells at each heading; keep code cells with outputs.

    The code of cells that show nothing stands with that of the next one that does."""
    cells = []
    code: list[str] = []
    lines: list[str] = []
    for cell in notebook.cells:
        is_untold = bool(UNTOLD.intersection(cell.metadata.get("tags", [])))
        if cell.cell_type == "markdown" and not is_untold:
            cells += _sections(cell)
        if cell.cell_type == "code" and not is_untold:
            code.append(cell.source)
        shown = cell.get("outputs", [])
        if WITHOUT_VALUE.intersection(cell.metadata.get("tags", [])):
            shown = [output for output in shown if output.output_type != "execute_result"]
        outputs = []
        for output in itertools.chain.from_iterable(map(_outputs, shown)):
            if is_line(output):
                text = output.data["text/html"]
                # the same line is enough once
                if text in lines:
                    continue
                lines.append(text)
            outputs.append(output)
        if outputs:
            cells.append(new_code_cell("\n\n".join(code), outputs=outputs))
            code = []
    return cells


class _Headings(MathBlockParser):
    """Note where headings begin; no line of code, of a formula or of a list is one."""

    def parse_atx_heading(self, match: re.Match, state) -> int:
        end = super().parse_atx_heading(match, state)
        if not state.depth():
            token = state.tokens[-1]
            heading = NotebookNode(heading=token["text"], level=token["attrs"]["level"])
            state.env.setdefault("headings", {})[match.start()] = heading
        return end


def _sections(cell: NotebookNode) -> list[NotebookNode]:
    """Split a markdown cell at its headings."""
    source = "\n".join(cell.source.splitlines())
    _, state = MarkdownWithMath(renderer=None, block=_Headings()).parse(source)
    headings = state.env.get("headings", {})
    sections = []
    for start, end in itertools.pairwise(sorted({0, *headings, len(source)})):
        section = new_markdown_cell(source[start:end], attachments=cell.get("attachments", {}))
        section.metadata = headings.get(start, NotebookNode())
        if section.source.strip():
            sections.append(section)
    return sections


def _outputs(output: NotebookNode) -> list[NotebookNode]:
    """Return an output as the page shows it: a line for each warning, no progress."""
    if output.output_type == "stream" and output.name == "stderr":
        return [line(text) for text in re.findall("Warning: (.*)", output.text)]
    # the head of the chapter tells of an error
    if output.output_type == "error":
        return []
    for holder, name in ((output, "text"), (output.get("data", {}), "text/plain")):
        if name in holder:
            holder[name] = strip_ansi(holder[name])
    # an empty table and an answer that is not shown have data without a text
    if "data" in output and not any(output.data.values()):
        return []
    return [output]


def line(text: str) -> NotebookNode:
    """Return an output that is one muted line."""
    shown = {"text/html": f"{LINE}{html.escape(text)}</p>", "text/markdown": f"*{text}*"}
    return new_output("display_data", shown)


def is_line(output: NotebookNode) -> bool:
    """Tell if an output warns or says what is missing, as an empty table does."""
    return output.get("data", {}).get("text/html", "").startswith(LINE)
