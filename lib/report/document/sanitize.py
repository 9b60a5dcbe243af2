"""Remove whatever could run, load or cover the page from a chapter's HTML.

Output of this project's own classes is treated like any other, since it may contain text from a record, a write-up
or another library. Only what is listed here stays. The page's `policy` also keeps a browser from running or loading
more.
"""

import base64
import hashlib
import re

import nh3

TAGS = """
a abbr b blockquote br caption code col colgroup data dd del details div dl dt em figcaption figure h2 h3 h4 h5 h6 hr i
img ins kbd li ol p pre q s samp section small span strong sub summary sup table tbody td tfoot th thead tr u ul var wbr
svg g defs clipPath pattern path rect circle line polygon polyline use text tspan title desc
math mrow mi mn mo ms mtext mspace mfrac msqrt mroot msub msup msubsup mover munder munderover mtable mtr mtd mstyle
mpadded mphantom
"""
ATTRIBUTES = """
alt aria-hidden aria-label aria-sort class colspan data-label data-q data-verdict download height href id lang open role
rowspan scope src style tabindex title value width
clip-path d dx dy cx cy fill patternUnits points preserveAspectRatio r rx ry transform version viewBox x x1 x2 y y1 y2
accent accentunder columnalign display displaystyle fence form linethickness lspace mathvariant maxsize minsize rspace
scriptlevel separator stretchy
"""
STYLES = """
color fill fill-opacity fill-rule font-family font-size font-style font-weight opacity stroke stroke-dasharray
stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity stroke-width text-align text-anchor
text-decoration white-space
"""
PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp);base64,")
ADDRESS = re.compile(
    r"#|https?:|mailto:|[^:\x00-\x20]*$|data:(text/csv|application/(gzip|vnd\.apache\.parquet));base64,"
)
ELSEWHERE = re.compile(r"url\((?!['\"]?#)|\\", re.IGNORECASE)  # an address outside the page, or an escaped one


def clean(body: str) -> str:
    """Return the HTML with prose, tables, figures, formulas and links only.

    No script, style sheet, form, frame or event handler stays. Addresses may point to the web, this folder, a part
    of the page, or embedded pictures and downloads."""
    return nh3.clean(
        body,
        tags=set(TAGS.split()),
        clean_content_tags={"script", "style"},
        attributes={"*": set(ATTRIBUTES.split())},
        attribute_filter=_filter_attribute,
        filter_style_properties=set(STYLES.split()),
        url_schemes={"http", "https", "mailto", "data"},
        link_rel=None,
    )


def _filter_attribute(tag: str, name: str, value: str) -> str | None:
    if name == "src":  # a picture from elsewhere would be a request
        return value if tag == "img" and PICTURE.match(value) else None
    if name == "href":
        return value if value.startswith("#") or (tag == "a" and ADDRESS.match(value)) else None
    return None if ELSEWHERE.search(value) else value


def policy(script: str) -> str:
    """Return a content security policy that runs only this script and loads nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
