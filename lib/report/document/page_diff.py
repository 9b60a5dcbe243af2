"""Compare a stored report with a newly rendered one, as a reader sees them."""

import difflib
import hashlib
import html
import re

FIRST = 12  # lines shown of each chapter's differences
_BLOCK = re.compile(r'(<figure class="plot".*?</figure>)|(?=<(?:h[1-6]|p|li|tr|figure|pre|div|details)\b)', re.DOTALL)
_DRAWN = re.compile(r'<svg\b.*?</svg>|href="data:[^"]*"', re.DOTALL)


def machines(page: str) -> list[str]:
    """Return the machines that a page was rendered from, its own first."""
    found = re.search(r'<meta name="machines" content="([^"]*)">', page[:2000])
    return html.unescape(found[1]).split() if found else []


def difference(stored: str, rendered: str) -> str:
    """Return unified diffs of what a reader sees, by chapter; empty if pages are equal.

    The digest of the inputs may differ. `page` stands for everything outside the chapters."""
    pages = [re.sub(r'(<meta name="inputs" content=")[^"]*', r"\1", page) for page in (stored, rendered)]
    was, now = map(_chapters, pages)
    lines = []
    for name in dict.fromkeys([*now, *was]):
        both = was.get(name, []), now.get(name, [])
        found = list(difflib.unified_diff(*both, f"stored {name}", f"now {name}", n=1, lineterm=""))
        lines += found[:FIRST] + [f"... and {len(found) - FIRST} more lines"] * (len(found) > FIRST)
    return "\n".join(lines) or ("the words are the same, but the markup differs" if pages[0] != pages[1] else "")


def _chapters(page: str) -> dict[str, list[str]]:
    """Return the visible text of each chapter, one line per block."""
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
