"""Finds measured numbers and comparatives in prose written by hand, sentence by sentence; knows no records.

What a report says about speed, memory or error is computed: a claim or a statement that carries its evidence. Prose
asks, instructs, defines and cites. In it a number, a comparative (faster, most, as long as) or a word for an outcome
(dominates, halves, negligible) is a finding, unless its sentence is one of these:

- a question, or a title or caption that opens with a question word and has no full stop, which may compare; what asks
  why may not, since it takes the answer for granted;
- an instruction to look ("Look at whether the line ends lower"), which may compare after its question word;
- an expectation: in a clause with *should*, *would* or *could*, which may compare;
- how to read a figure or table: in a clause that names a place in it ("left of the line it took less time");
- a sentence that cites its source, "(Name 2019)", and a block quotation that does;
- a definition, of theory or of the method, marked by its author: `<!-- definition -->` right after its full stop.

No mark lets a time, a rate or a size in MiB pass. Formulas with a letter and blocks of code are not read, and neither
are names: fp32, write-up 002, context 256, 95% interval, 2^20, n = 10. The strings of code cells are read as captions
and wordings; a number that code fills in, {}, is computed.
"""

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib import comparatives, notebook
from lib.headings import HEADINGS

MARK = "<!-- definition -->"
_MARKED = "\0"  # stands for it in a sentence

_FINDERS = {
    why: (
        re.compile(rf"\b(?:{comparatives.HARMLESS.get(why, '(?!)')})\b", re.IGNORECASE),
        re.compile(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)", re.IGNORECASE),
    )
    for why, patterns in comparatives.CLAIMS.items()
}
_NAME = re.compile(
    r"\b95% intervals?|\b2\^\d+|\bn = \d+|\b(?:write-ups?|documents?|batch|context|sizes?|head size|chapters?|layers?"
    r"|steps?|versions?|rounds?|warm-ups?|issue) \d[\d.]*[BM]?(?:(?:,| and| or|, and) \d+)*(?![\w%.]*\d| ?(?:times|%))"
    r"|\b\d+(?:\.\d+)?B\b(?!/)|\b80GB\b|\b(?:spring|summer|autumn|winter) 20\d\d\b"
)
_DIGITS = re.compile(r"(?<![\w.\-])-?\d(?:[\d.,]*\d)?(?:e-?\d+)?(?:%| ?×|[a-zA-Zµ]\w*)?")
_MEASURED = re.compile(rf"(?:\d|{comparatives.NUMBER_WORD}\b)[\d.,]*[ -]?{comparatives.UNIT}", re.IGNORECASE)
_ASKED = r"\b(?:whether|which|what|where|when|how (?:far|much|many|often|long|large|steep|close|soon))\b"
_LOOK = re.compile(rf"^Look\b.*?{_ASKED}", re.IGNORECASE)
_EXPECTS = re.compile(r"\b(?:should|would|could)\b", re.IGNORECASE)
_READING = re.compile(
    r"\b(?:left|right|above|below|at)\b[^,;:]*\bthe (?:line|diagonal)\b|\ba line (?:that|is)\b"
    r"|\b(?:darker|lighter|hollow|bold|dashed)\b",
    re.IGNORECASE,
)
_CITES = re.compile(r"\([^()]*\b[A-Z][^()]*\b(?:1[89]|20)\d\d[a-z]?\b[^()]*\)|\b[A-Z]\w+ \((?:1[89]|20)\d\d[a-z]?\)")
_SOURCED = re.compile(r"\bwrite-ups? \d{3}\b|\]\(\S+\)", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """A word of a sentence that claims, and why; `cell` is that of a notebook or the line of a text."""

    file: str
    cell: str
    sentence: str
    word: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}, {self.cell}, {self.sentence}: {self.word}: {self.why}"


def words(sentence: str, defined: bool = False) -> list[tuple[str, str]]:
    """The words of one sentence that claim, in their order, each with why; `defined` is that of a marked one."""
    if defined:
        return [(found[0], "a measured unit, which no mark lets pass") for found in _MEASURED.finditer(sentence)]
    if _CITES.search(sentence):
        return []
    sentence = _NAME.sub(lambda name: "_" * len(name[0]), sentence)
    found = [(at.start(), at[0].strip(), "a number") for at in _DIGITS.finditer(sentence)]
    compared = _without_allowed(sentence)
    for why, (harmless, finder) in _FINDERS.items():
        rest = harmless.sub(lambda other: "_" * len(other[0]), compared)
        found += [(at.start(), at[0], why) for at in finder.finditer(rest)]
    return [(word, why) for _, word, why in sorted(found)]


def _without_allowed(sentence: str) -> str:
    """The sentence with all that may compare blanked out, at its old length."""
    asks = sentence.endswith("?") or (re.match(_ASKED, sentence, re.IGNORECASE) and not sentence.endswith("."))
    if asks and not re.search(r"\bwhy\b", sentence, re.IGNORECASE):
        return ""
    look = _LOOK.match(sentence)
    clauses = re.split(r"(?<=[,;:])", sentence)
    kept, start = "", 0
    for clause in clauses:
        asked = look and start + len(clause) > look.end() and not re.search(r"[;:]", sentence[look.end() : start])
        if _EXPECTS.search(clause) or _READING.search(clause):
            clause = "_" * len(clause)
        elif asked:
            clean = max(0, look.end() - start)
            clause = clause[:clean] + "_" * (len(clause) - clean)
        kept, start = kept + clause, start + len(clause)
    return kept


def markdown(text: str, file: str = "text", cell: str = "line {}") -> list[Finding]:
    """The findings in a Markdown text; `{}` in `cell` is the line on which the paragraph begins."""
    found = []
    for line, paragraph in _paragraphs(text):
        for sentence, defined in _sentences(paragraph):
            found += [Finding(file, cell.format(line), sentence, *pair) for pair in words(sentence, defined)]
    return found


def code(source: str, file: str = "text", cell: str = "line 1") -> list[Finding]:
    """The findings in the strings of Python code that hold more than one word; a string with {}, which a function of
    `lib.sentences` fills in, is the wording of a claim and may compare."""
    found = []
    for string in _strings(ast.parse(source)):
        for sentence, _ in _sentences(string):
            filled = re.search(r"\{\}", sentence)
            found += [
                Finding(file, cell, sentence, word, why)
                for word, why in words(sentence)
                if not filled or why == "a number"
            ]
    return found


def chapter(file: Path) -> list[Finding]:
    """The findings in a notebook, cell by cell."""
    found = []
    for cell in json.loads(file.read_text())["cells"]:
        check = markdown if cell["cell_type"] == "markdown" else code
        found += check("".join(cell["source"]), file.name, cell["id"])
    return found


def findings(file: Path) -> list[Finding]:
    """The findings in a notebook or in a text file."""
    return chapter(file) if file.suffix == ".ipynb" else markdown(file.read_text(), file.name)


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, headings and list items with the line that each begins on; without blocks of code, displayed
    formulas, comments and quotations that name their source."""
    left_out = r"^(?P<fence>```|~~~).*?^(?P=fence)|\$\$.*?\$\$|<!--(?! definition -->).*?-->"
    text = re.sub(left_out, lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        new = re.match(r"\s*(?:#|[-*+] |\d+[.)] |\|)", line) or (block and _quoted(line) != _quoted(block[0]))
        if block and (new or not line.strip() or block[0].startswith("#")):
            paragraph = " ".join(re.sub(r"^\s*(?:>\s?)*(?:#+ |[-*+] |\d+[.)] )?", "", part) for part in block)
            if not _quoted(block[0]) or not (_CITES.search(paragraph) or _SOURCED.search(paragraph)):
                yield number - len(block), paragraph
            block = []
        if line.strip():
            block.append(line)


def _quoted(line: str) -> bool:
    return line.lstrip().startswith(">")


def _sentences(paragraph: str) -> Iterator[tuple[str, bool]]:
    """Sentences as a reader sees them, a formula as …, each with whether it is marked as a definition."""
    text = re.sub(r"\$([^$]+)\$", lambda formula: _formula(formula[1]), paragraph.replace("`", ""))
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text.replace(MARK, _MARKED))
    text = re.sub(r"</?[a-zA-Z][^>]*>|(?<!\w)[*_]+|[*_]+(?!\w)", "", text)
    text = re.sub(r"\b(et al|e\.g|i\.e|cf|vs)\.", r"\1", text)
    for sentence in re.split(rf"(?<=[.!?{_MARKED}])[\"')\]]*\s+", text):
        if sentence.strip():
            yield sentence.replace(_MARKED, "").strip(), sentence.rstrip().endswith(_MARKED)


def _formula(tex: str) -> str:
    """A formula as …, unless it is a mere number with or without its sign of times or percent."""
    plain = re.sub(r"\\(?:times|cdot)", "×", tex)
    plain = re.sub(r"\\(?:approx|sim|simeq)", "≈", plain)
    plain = re.sub(r"\\[%,;! ]", lambda sign: sign[0][1:].strip(",;! "), plain)
    return "…" if re.search(r"[A-Za-z\\]", plain) else plain


def _strings(tree: ast.AST) -> Iterator[str]:
    """The strings of a program of more than one word that are no list of columns, with {} or {name} for values."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "{name}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if len(text.split()) > 1 and not all(word in HEADINGS for word in text.split()):
            yield text


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, or 1 when there are findings."""
    parser = argparse.ArgumentParser(prog="python -m lib.prose", description="Find what hand-written prose claims.")
    parser.add_argument("files", nargs="*", type=Path, help="Markdown files or notebooks; by default all chapters")
    given = parser.parse_args(arguments)
    found = [one for file in given.files or sorted(notebook.CHAPTERS.glob("*.ipynb")) for one in findings(file)]
    print("\n".join(map(str, found)) or "No number or comparative outside a claim, a definition or a quotation")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
