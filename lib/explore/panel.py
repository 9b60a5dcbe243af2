"""Offer widgets that choose a query in JupyterLab and show its figure and its table."""

import contextlib
import dataclasses
import html
from collections.abc import Iterator

import ipywidgets as widgets
import itables
import pandas as pd

from lib.explore.query import Query, axes, experiments, figure, first, listing, metrics, options, save
from lib.records import results
from lib.report.headings import heading

ROWS = 5  # of a list that allows several choices
WIDTH = "46em"  # of a figure, so that it fits on the screen with its controls


def offline() -> None:
    """Load the scripts of interactive tables into the notebook, so that they need no network."""
    itables.init_notebook_mode(all_interactive=False, connected=False)


def interactive(query: Query) -> str:
    """Return the rows of a query as an HTML table with sorting, search and pages."""
    rows = listing(query)
    measured = rows.select_dtypes("float").columns
    rows[measured] = rows[measured].map(lambda value: float(f"{value:.4g}"))
    return itables.to_html_datatable(pd.DataFrame(rows), connected=False, showIndex=False, lengthMenu=[10, 25, 100])


class Panel(widgets.VBox):
    """Show the controls of a query above its figure and its table, which follow each change.

    `query` is the current choice. A new experiment, machine, x axis or line field starts again from `first`."""

    def __init__(self, query: Query):
        machines, layout = results.machines(), widgets.Layout(flex_flow="row wrap")
        self.query, self.filters, self.quiet = query, {}, True
        self.experiment = widgets.Dropdown(options=experiments(machines), description="experiment")
        self.machines = widgets.SelectMultiple(options=machines, description="machines", rows=min(ROWS, len(machines)))
        self.x, self.y, self.line = (widgets.Dropdown(description=name) for name in ("x", "y", "line"))
        self.where, self.button = widgets.HBox(layout=layout), widgets.Button(description="Save figure")
        self.message, self.shown = widgets.HTML(), widgets.Output()
        which, drawn = widgets.VBox([self.experiment, self.machines]), widgets.VBox([self.x, self.y, self.line])
        above = widgets.HBox([which, drawn], layout=layout)
        super().__init__([above, self.where, self.button, self.message, self.shown])
        self._set_controls(query)
        self.button.on_click(self._save)
        for control in (self.experiment, self.machines, self.x, self.line):
            control.observe(self._restart, "value")
        self.y.observe(self._narrow, "value")

    def _set_controls(self, query: Query) -> None:
        """Set every control to a query's value, and show the query."""
        self.query, self.quiet = query, True
        records, fields = query.records(), axes(query.experiment)
        self.experiment.value, self.machines.value = query.experiment, query.machines
        for control, names in ((self.x, fields), (self.y, metrics(records)), (self.line, fields)):
            control.options = [(heading(name), name) for name in names]
            control.value = getattr(query, control.description)
        self.filters = {}
        for name in records.fields:
            found = options(records, name)
            control = widgets.SelectMultiple(
                options=[(str(value), value) for value in found], value=query.where.get(name, tuple(found)),
                description=heading(name), rows=min(ROWS, len(found)), style={"description_width": "initial"},
            )  # fmt: skip
            control.observe(self._narrow, "value")
            if len(found) > 1:
                self.filters[name] = control
        self.where.children = tuple(self.filters.values())
        self.quiet = False
        self._show()

    def _restart(self, change: dict) -> None:
        """Start again from what was changed; keep the axes if the experiment is the same."""
        if self.quiet:
            return
        same = self.experiment.value == self.query.experiment
        kept = {"x": self.x.value, "y": self.y.value, "line": self.line.value} if same else {}
        with self._showing_errors():
            self._set_controls(first(self.experiment.value, self.machines.value, **kept))

    def _narrow(self, change: dict) -> None:
        """Apply another metric or filter; all values of a field are no filter."""
        if self.quiet:
            return
        chosen = {name: control.value for name, control in self.filters.items()}
        where = {name: values for name, values in chosen.items() if 0 < len(values) < len(self.filters[name].options)}
        with self._showing_errors():
            self.query = dataclasses.replace(self.query, y=self.y.value, where=where)
            self._show()

    @contextlib.contextmanager
    def _showing_errors(self) -> Iterator[None]:
        """Run a change, and show its ValueError as the message."""
        try:
            self.message.value = ""
            yield
        except ValueError as error:
            self.message.value = html.escape(str(error))

    def _show(self) -> None:
        drawn = f'<div style="max-width: {WIDTH}">{figure(self.query)._repr_html_()}</div>'
        parts = (drawn, interactive(self.query))
        self.shown.outputs = tuple(
            {"output_type": "display_data", "data": {"text/html": part}, "metadata": {}} for part in parts
        )

    def _save(self, _: widgets.Button) -> None:
        self.message.value = f"Saved as {html.escape(str(save(self.query)))}"
