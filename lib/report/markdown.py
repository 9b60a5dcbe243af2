"""Sets text, tables and links as GitHub-flavoured Markdown; knows neither records nor what a cell means."""

import hashlib
import re
from collections.abc import Iterable, Sequence

ABSENT = "*Not measured on this machine.*"
MARK = "**{}**"  # around the word Figure or Table, which the report numbers


def escape(text: str) -> str:
    """The text with what Markdown would take for markup shown as it is."""
    text = re.sub(r"([\\`*\[\]<>|$~])", r"\\\1", text)
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[bool]) -> str:
    """A pipe table of cells in Markdown; the columns marked in `numbers` are flush right."""
    rule = ["---:" if number else "---" for number in numbers]
    lines = [map(escape, heads), rule, *rows]
    return "\n".join("| " + " | ".join(" ".join(cell.split()) for cell in line) + " |" for line in lines)


def captioned(kind: str, caption: str, body: str, note: str = "") -> str:
    """A table or figure with its caption above and its note below."""
    parts = [f"{MARK.format(kind)} {escape(caption)}", body, f"*{escape(note)}*" if note else ""]
    return "\n\n".join(part for part in parts if part)


def noted(text: str, note: str) -> str:
    """A paragraph with a footnote. Equal paragraphs have one footnote under one label."""
    label = hashlib.sha256((text + note).encode()).hexdigest()[:8]
    return f"{text}[^{label}]\n\n[^{label}]: {escape(note)}"


def section(source: str) -> str:
    """The source with its headings one level down, without comments, and its formulas without the macro that GitHub
    refuses."""
    source = re.sub(r"[ \t]*<!--.*?-->", "", source, flags=re.DOTALL)
    return re.sub(r"^#", "##", source, flags=re.MULTILINE).replace(r"\operatorname{", r"\mathrm{")


def headings(source: str) -> list[str]:
    """The texts of the headings of a source, in their order."""
    return re.findall(r"^#+ (.+)$", source, flags=re.MULTILINE)


def anchors(titles: Iterable[str]) -> list[str]:
    """The fragments by which GitHub links the headings of a document, in their order."""
    seen: dict[str, int] = {}
    found = []
    for title in titles:
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        found.append(f"{slug}-{seen[slug]}" if seen.get(slug) else slug)
        seen[slug] = seen.get(slug, 0) + 1
    return found
