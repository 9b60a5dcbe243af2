"""Turn records into a table, and the table into sentences, figures and a page.

A notebook writes `from lib import report` and needs no other name: `report.table(records)`, `report.ms(row, "total")`,
`report.mib(row, "peak")`, `report.number(row, "bound_percent")`, `report.times(row)`,
`report.against(row, rival, "total")`, `report.sides(rows, way, rival, "total")`,
`report.apart(rows, "total_ms", "predicted_ms")`, `report.extremes(values, ".2g")`,
`report.show(table[columns], caption, report.note(table))`, `report.answer(key, text)`,
`report.figure(drawing, alt)`.
`report.load("step", machine)` is the table of another experiment, `report.list_processes(records)` has a row for each
process that a table counts, and `report.unfold(records, "loops", columns)` has the rows of tables within records.
"""

from lib.report import answers
from lib.report.answers import answer
from lib.report.sentences import against, apart, extremes, mib, ms, number, sides, times
from lib.report.show import note, show
from lib.report.table import list_processes, load, table, unfold

__all__ = [
    "against", "answer", "apart", "extremes", "figure", "list_processes", "load", "mib", "ms", "note", "number", "show",
    "sides", "table", "times", "unfold",
]  # fmt: skip


def figure(drawing, alt: str, key: str = "") -> None:
    """Display a matplotlib Figure as SVG; `alt` says in words what it shows.

    With a `key`, the notebook `summary` can show it too."""
    # matplotlib takes a second to load, and most commands draw nothing
    from matplotlib import pyplot

    from lib.report import plots

    answers.show_svg(plots.svg(drawing, alt), key)
    # else Jupyter would show it a second time, at the end of the cell
    pyplot.close(drawing)
