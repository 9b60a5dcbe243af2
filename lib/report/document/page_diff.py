"""Says where a stored report differs from one rendered anew; renders nothing and knows no records."""

import difflib
import html
import itertools
import re
from collections import defaultdict

FIRST = 5  # differences of a chapter that are printed, and it is said how many more there are
AROUND = 60  # characters shown on either side of a difference
_BLOCK = re.compile(r'(<figure class="plot".*?</figure>)|(?=<(?:h[1-6]|p|li|tr|figure|pre|div|details)\b)', re.DOTALL)


def machines(page: str) -> list[str]:
    """The machine whose records a page says it was rendered from, and then those beside it."""
    found = re.search(r'<meta name="machines" content="([^"]*)">', page[:2000])
    return html.unescape(found[1]).split() if found else []


def differences(stored: str, rendered: str) -> dict[str, list[str]]:
    """What differs, in words, by the chapter that it is in; `page` is all around the chapters. Only the digest of what
    a page was rendered from may differ."""
    was, now = _chapters(stored), _chapters(rendered)
    found = {name: _differences(was[name], now[name]) for name in dict.fromkeys([*now, *was])}
    return {name: lines for name, lines in found.items() if lines}


def report(found: dict[str, list[str]]) -> str:
    """The differences as lines to print, the first few of each chapter."""
    lines = []
    for name, differences in found.items():
        lines += [f"{name}: {len(differences)} different", *(f"  {line}" for line in differences[:FIRST])]
        lines += [f"  and {len(differences) - FIRST} more"] if len(differences) > FIRST else []
    return "\n".join(lines)


def _chapters(page: str) -> defaultdict[str, list[str]]:
    """The blocks of a page (paragraphs, rows of tables, whole figures) by the chapter that they are in."""
    page = re.sub(r'(<meta name="inputs" content=")[^"]*', r"\1", page)
    chapters, name = defaultdict(list), "page"
    for part in re.split(r'(?=<section id="\d)|(?<=</section>)', page):
        begins = re.match(r'<section id="([^"]+)"', part)
        name = begins[1] if begins else "page"
        chapters[name] += [block for block in _BLOCK.split(part) if block]
    return chapters


def _differences(was: list[str], now: list[str]) -> list[str]:
    lines, places = [], _places(now or was)
    for kind, start, end, first, last in difflib.SequenceMatcher(None, was, now, autojunk=False).get_opcodes():
        pairs = itertools.zip_longest(was[start:end], now[first:last], fillvalue="") if kind != "equal" else ()
        for at, (old, new) in enumerate(pairs, first):
            place = places[min(at, len(places) - 1)]
            lines.append(place + _difference(_text(old), _text(new)))
    return lines


def _places(blocks: list[str]) -> list[str]:
    """For each block, the figure that it is or the table that it is in."""
    places, place = [], ""
    for block in blocks:
        label = re.search(r'<b class="label">(\w+ \d+)\.</b>', block)
        place = f"{label[1]}: " if label else place if block.startswith("<tr") else ""
        places.append(place)
    return places


def _text(block: str) -> str:
    """What a reader sees of a block."""
    block = re.sub(r"<(style|script)\b.*?</\1>", "", block, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", block)).split())


def _difference(was: str, now: str) -> str:
    """Two texts around the first character in which they differ."""
    if was == now:
        return f"the same words, drawn or marked up otherwise: {_around(now, 0)}"
    at = next((i for i, (a, b) in enumerate(zip(was, now, strict=False)) if a != b), min(len(was), len(now)))
    return f"stored: {_around(was, at)} | now: {_around(now, at)}"


def _around(text: str, at: int) -> str:
    """The text about a place, in whole words, or a dash for none."""
    start = text.rfind(" ", 0, max(0, at - AROUND)) + 1 if at > AROUND else 0
    end = text.find(" ", at + AROUND)
    shown = text[start : end if end > 0 else len(text)]
    return ("… " if start else "") + shown + (" …" if end > 0 else "") if shown else "–"
