"""Says where a stored report differs from one rendered anew; renders nothing and knows no records."""

import difflib
import hashlib
import html
import re

FIRST = 12  # lines of a chapter's differences that are shown
_BLOCK = re.compile(r'(<figure class="plot".*?</figure>)|(?=<(?:h[1-6]|p|li|tr|figure|pre|div|details)\b)', re.DOTALL)
_DRAWN = re.compile(r'<svg\b.*?</svg>|href="data:[^"]*"', re.DOTALL)


def machines(page: str) -> list[str]:
    """Return the machine whose records a page says it was rendered from, and then those beside it."""
    found = re.search(r'<meta name="machines" content="([^"]*)">', page[:2000])
    return html.unescape(found[1]).split() if found else []


def difference(stored: str, rendered: str) -> str:
    """Return what a reader would see differ, chapter by chapter, as unified diffs; nothing where the pages are equal.

    Only the digest of what a page was rendered from may differ. `page` is all around the chapters.
    """
    pages = [re.sub(r'(<meta name="inputs" content=")[^"]*', r"\1", page) for page in (stored, rendered)]
    was, now = map(_chapters, pages)
    lines = []
    for name in dict.fromkeys([*now, *was]):
        both = was.get(name, []), now.get(name, [])
        found = list(difflib.unified_diff(*both, f"stored {name}", f"now {name}", n=1, lineterm=""))
        lines += found[:FIRST] + [f"... and {len(found) - FIRST} more lines"] * (len(found) > FIRST)
    return "\n".join(lines) or ("the same words, marked up otherwise" if pages[0] != pages[1] else "")


def _chapters(page: str) -> dict[str, list[str]]:
    """Return what a reader sees of a page, a block a line, by the chapter that it is in."""
    chapters: dict[str, list[str]] = {}
    for part in re.split(r'(?=<section id="\d)|(?<=</section>)', page):
        begins = re.match(r'<section id="([^"]+)"', part)
        texts = map(_text, filter(None, _BLOCK.split(part)))
        chapters.setdefault(begins[1] if begins else "page", []).extend(filter(None, texts))
    return chapters


def _text(block: str) -> str:
    """Return the words of a block, with a digest for each drawing and download in it."""
    drawn = [f"[drawn {hashlib.sha256(each.encode()).hexdigest()[:8]}]" for each in _DRAWN.findall(block)]
    words = html.unescape(re.sub(r"<(style|script)\b.*?</\1>|<[^>]+>", " ", block, flags=re.DOTALL))
    return " ".join([*words.split(), *drawn])
