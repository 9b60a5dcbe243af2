"""Repair chapters of the old kind, in which a lookup without data raises NotMeasured and the cell ends.

The new kind reads `report.table`, where nothing raises. This module goes with the last notebook of the old kind.
"""

from collections.abc import Sequence

from nbformat import NotebookNode

from lib.report.cells import HEADING, TEXT, is_line


def is_old(notebook: NotebookNode) -> bool:
    """Tell if a notebook is of the old kind: it has cells that may raise, or shows no plain table."""
    shows_table = False
    for cell in notebook.cells:
        if "raises-exception" in cell.metadata.get("tags", []):
            return True
        shows_table = shows_table or "report.show(" in cell.source or "report.table(" in cell.source
    return not shows_table


def without_empty_sections(cells: Sequence[NotebookNode]) -> list[NotebookNode]:
    """Leave out each section, below the title, that only warns or says what is missing."""
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


def answer_first(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Put a chapter's first answer above the lines that warn or say what is missing."""
    for position, cell in enumerate(cells, start=1):
        if any("answer" in output.get("metadata", {}) for output in cell.get("outputs", [])):
            # False sorts before True, and sorting keeps the order of what is equal
            told = sorted(cells[:position], key=lambda cell: cell.cell_type == "code" and not _tells(cell))
            return told + cells[position:]
    return cells


def _tells(cell: NotebookNode) -> bool:
    """Tell if a cell says more than its heading, warnings and what is missing."""
    if cell.cell_type == "markdown":
        return bool(HEADING.sub("", cell.source, count=1).strip())
    return not all(map(is_line, cell.outputs))
