"""Makes the HTML of a chapter harmless: what could run, load or lie over the page is taken out; knows no chapter.

What our own classes write is treated like any other output, because a record, a table of a write-up or another
library's output may stand in it: nothing is trusted for where it comes from. Only what is listed here stays, and the
page's policy (`policy`) stops a browser from running or loading anything else.
"""

import base64
import functools
import hashlib
import html
import re

TAGS = """
a abbr b blockquote br caption code col colgroup dd del details div dl dt em figcaption figure h2 h3 h4 h5 h6 hr i img
ins kbd li ol p pre q s samp section small span strong sub summary sup table tbody td tfoot th thead tr u ul var
svg g defs clipPath pattern path rect circle line polygon polyline use text tspan title desc
math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup mover munder munderover mtable mtr mtd mstyle
mpadded mphantom
"""
ATTRIBUTES = """
alt aria-hidden aria-label aria-sort class colspan data-copy data-verdict download height href id lang open role
rowspan scope src style tabindex title width
clip-path d dx dy cx cy fill patternUnits points preserveAspectRatio r rx ry transform version viewBox x x1 x2
xlink:href y y1 y2
accent accentunder columnalign display displaystyle fence form linethickness lspace mathvariant maxsize minsize rspace
scriptlevel separator stretchy
"""
STYLES = """
color fill fill-opacity fill-rule font-family font-size font-style font-weight opacity stroke stroke-dasharray
stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity stroke-width text-align text-anchor
text-decoration white-space
"""
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,")
ADDRESS = re.compile(r"#|https?:|mailto:|[^:\x00-\x20]*$")
DOWNLOAD = re.compile(r"data:(text/csv|application/(gzip|vnd\.apache\.parquet));base64,")


def harmless(body: str) -> str:
    """The HTML with no more than prose, tables, figures, formulas and links: no script, style sheet, form or frame, no
    event handler, no address but those of the web, of this folder, of a part of the page, and of embedded pictures and
    downloads."""
    return _cleaner().clean(re.sub(r"<(script|style)\b.*?</\1\s*>", "", body, flags=re.DOTALL | re.IGNORECASE))


@functools.cache
def _cleaner():
    import bleach
    from bleach.css_sanitizer import CSSSanitizer

    return bleach.Cleaner(
        tags=set(TAGS.split()), attributes=_allowed, protocols={"http", "https", "mailto", "data"}, strip=True,
        css_sanitizer=CSSSanitizer(allowed_css_properties=STYLES.split(), allowed_svg_properties=[]),
    )  # fmt: skip


def _allowed(tag: str, name: str, value: str) -> bool:
    if name not in ATTRIBUTES.split():
        return False
    value = html.unescape(value)
    if name == "src":  # a picture from elsewhere would be a request
        return tag == "img" and bool(PICTURE.match(value))
    if name in ("href", "xlink:href"):
        return value.startswith("#") or (tag == "a" and bool(ADDRESS.match(value) or DOWNLOAD.match(value)))
    return not re.search(r"url\((?!['\"]?#)", value, flags=re.IGNORECASE)


def policy(script: str) -> str:
    """The content security policy of a page that runs this script and nothing else, and loads nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
