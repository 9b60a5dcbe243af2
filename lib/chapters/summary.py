"""Show the answers of the first screen, one a row."""

import html
from collections.abc import Mapping

from IPython.display import HTML

from lib.report.sentences import NO_DATA, Statement


def screen(answers: Mapping[str, Statement]) -> HTML:
    """Return answers with a word or two before each; leave out those without data."""
    rows = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{said._repr_html_()}</dd></div>"
        for label, said in answers.items()
        if said.verdict != NO_DATA
    )
    return HTML(f'<dl class="answers">{rows}</dl>' if rows else "")
