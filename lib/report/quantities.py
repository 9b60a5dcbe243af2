"""Mark each computed number with the name of its quantity, so that two values of one are found.

>>> name("box-2c", "step", {"size": "small", "precision": "fp32"}, "total_ms")
'box-2c/step/small-fp32/total_ms'
"""

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lib.stats.intervals import Interval


@dataclass(frozen=True)
class Quantity:
    """Hold a computed number as the report shows it: its name and verdict, if any, value and text."""

    name: str
    value: Interval
    shown: str
    verdict: str = ""

    def __str__(self) -> str:
        return self.shown

    def __html__(self) -> str:
        """Return the text as HTML that carries the name, the value and its interval."""
        if not self.name:
            return html.escape(self.shown)
        wide = self.value.known and self.value.reach > 0
        numbers = (self.value.value, self.value.low, self.value.high) if wide else (self.value.value,)
        ends = (f"{end:.6g}" for end in numbers)
        verdict = f' data-verdict="{html.escape(self.verdict)}"' if self.verdict else ""
        name = html.escape(self.name, quote=True)
        return f'<data data-q="{name}" value="{" ".join(ends)}"{verdict}>{html.escape(self.shown)}</data>'


def case(machine: str, experiment: str, fields: Mapping) -> str:
    """Name a case: machine, experiment and the values of its fields, true ones by their names."""
    values = ({"True": str(key), "False": ""}.get(str(value), str(value)) for key, value in fields.items())
    return f"{machine}/{experiment}/{'-'.join(filter(None, values))}"


def name(machine: str, experiment: str, fields: Mapping, metric: str) -> str:
    """Return the name of a metric of a case, or of its ratio to a baseline: metric/baseline."""
    return f"{case(machine, experiment, fields)}/{metric}"


def marked(text: str, quantities: Iterable[Quantity]) -> str:
    """Return a text as HTML, each quantity marked where it stands; they come in the order of the text."""
    parts, done = [], 0
    for one in quantities:
        at = text.find(one.shown, done)
        if at >= 0:
            parts += [html.escape(text[done:at]), one.__html__()]
            done = at + len(one.shown)
    return "".join([*parts, html.escape(text[done:])])
