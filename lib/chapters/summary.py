"""Show the answers of the first screen, one a row."""

import html
from collections.abc import Mapping

from lib.report.sentences import NO_DATA, Statement


class Screen:
    """Answers with a word or two before each; those without data are left out."""

    def __init__(self, answers: Mapping[str, Statement]):
        self.answers = {label: said for label, said in answers.items() if said.verdict != NO_DATA}

    def _repr_html_(self) -> str:
        rows = (
            f"<div><dt>{html.escape(label)}</dt><dd>{said._repr_html_()}</dd></div>"
            for label, said in self.answers.items()
        )
        return f'<dl class="answers">{"".join(rows)}</dl>' if self.answers else ""
