"""Take from an executed notebook what the page shows of it."""

import html
import itertools
import re

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from lib import execution
from lib.report.show import LINE

# tags of cells whose code, or text, the page does not show: `by-hand` tells those who run the notebook what to change
UNTOLD = {"parameters", "injected-parameters", "measure", "pair", "setup", "notebook-only", "by-hand"}
# tags of cells whose last value, the records or the plain table, is for those who run the notebook
BY_HAND = {"measure", "notebook-only"}
HEADING = re.compile(r"(#{1,6}) +(.*)")
TEXT = 9  # the level of what is no heading, below all of them


def cells_of_page(notebook: NotebookNode) -> list[NotebookNode]:
    """Split markdown cells at each heading; keep code cells with outputs.

    The code of cells that show nothing stands with that of the next one that does."""
    cells = []
    code: list[str] = []
    lines: list[str] = []
    for cell in notebook.cells:
        is_untold = bool(UNTOLD.intersection(cell.metadata.get("tags", [])))
        if cell.cell_type == "markdown" and not is_untold:
            for text in filter(str.strip, re.split(r"(?m)^(?=#{1,6} )", cell.source)):
                cells.append(new_markdown_cell(text))
                heading = HEADING.match(text)
                if heading:
                    cells[-1].metadata = NotebookNode(heading=heading[2].strip(), level=len(heading[1]))
        if cell.cell_type == "code" and not is_untold:
            code.append(cell.source)
        shown = cell.get("outputs", [])
        if BY_HAND.intersection(cell.metadata.get("tags", [])):
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


def _outputs(output: NotebookNode) -> list[NotebookNode]:
    """Return an output as the page shows it; of warnings a line each, no progress."""
    if output.output_type == "stream" and output.name == "stderr":
        return [line(text) for text in re.findall("Warning: (.*)", output.text)]
    # of the old kind alone
    if output.output_type == "error" and output.ename == execution.NOT_MEASURED:
        return [line(output.evalue)]
    # the head of the chapter tells of another error
    if output.output_type == "error":
        return []
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
