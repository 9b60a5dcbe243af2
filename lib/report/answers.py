"""Tell a notebook's answers, and collect them for the notebooks that quote.

An answer is a sentence with a key. The notebook shows it, and keeps it in the metadata of the cell's output, where
`collect` finds it. `summary` and `questions` get all answers as a parameter and quote them.
"""

import html
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from IPython.display import display
from nbformat import NotebookNode

from lib import paths, records

SVG = re.compile(r"<svg .*?</svg>", re.DOTALL)
LONG = 400  # letters of a sentence


def answer(key: str, text: str, shown: bool = True) -> None:
    """Keep a sentence under its key, and show it in bold unless told not to."""
    data = {}
    if shown:
        data = {"text/markdown": f"**{text}**", "text/plain": text}
        # bold within bold would end it
        if "**" in text:
            data["text/markdown"] = text
    display(data, raw=True, metadata={"answer": key, "text": text})


def show_svg(svg: str, key: str = "") -> None:
    """Show an SVG, such as a quoted figure, and keep it under its key if it has one.

    Its alternative text is that of its `aria-label`."""
    alt = html.unescape(re.search(r'aria-label="([^"]*)"', svg)[1])
    shown = (
        f'<figure class="plot"><div class="scroll" tabindex="0" role="group" aria-label="figure">{svg}</div></figure>'
    )
    display({"text/html": shown, "text/plain": alt}, raw=True, metadata={"alt": alt, "figure": key})


def quote(keys: Iterable[str], source: Mapping[str, str], mark: str = "") -> tuple[str, list[str], list[str]]:
    """Return the first two sentences under keys, all tables, and the other sentences.

    The very first sentence is put between marks."""
    told = [source[key] for key in keys if key in source]
    tables = [text for text in told if "\n" in text]
    sentences = [text for text in told if text not in tables]
    first = [f"{mark}{text}{mark}" for text in sentences[:1]] + sentences[1:2]
    # a long one is a paragraph of its own
    between = "\n\n" if max(map(len, first), default=0) > LONG else " "
    return between.join(first), tables, sentences[2:]


def fold(caption: str, text: str) -> str:
    """Return Markdown that is folded beneath its caption."""
    return f"<details><summary>{caption}</summary>\n\n{text}\n\n</details>"


def collect(notebook: NotebookNode) -> dict[str, str]:
    """Return the answers of an executed notebook by key, figures as `figure:<key>`."""
    collected = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            metadata = output.get("metadata", {})
            if "answer" in metadata:
                collected[metadata["answer"]] = metadata["text"]
            if metadata.get("figure"):
                collected[f"figure:{metadata['figure']}"] = SVG.search(output.data["text/html"])[0]
    return collected


def file(machine: str) -> Path:
    """Return the file that keeps the answers of a machine's last report."""
    return paths.runs() / machine / "answers.json"


def load(machine: str = "") -> dict[str, str]:
    """Load the answers of the last report, by default on the latest machine."""
    path = file(machine or next(iter(records.machines()), ""))
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))
