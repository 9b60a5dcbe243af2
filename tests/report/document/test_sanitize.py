"""What could run is taken out of a chapter's HTML, and what shows stays as it was."""

import re

import nbformat
import pytest

from lib.report import plots
from lib.report.document import page, sanitize

PLANTED = [
    "<script>window.planted = 1</script>",
    "<SCRIPT src='https://example.org/x.js'></SCRIPT >",
    "<script>planted",
    "<img src=x onerror=planted()>",
    "<p onclick='planted()' onmouseover=planted()>x</p>",
    "<a href='javascript:planted()'>x</a>",
    "<a href=' java&#10;script&#58;planted()'>x</a>",
    "<a href='data:text/html,<script>planted()</script>'>x</a>",
    "<svg><a xlink:href='javascript&#58;planted()'><text>x</text></a></svg>",
    "<svg onload=planted()><script>planted()</script><animate attributeName=href values=javascript:planted() /></svg>",
    "<svg><foreignObject><iframe srcdoc='<script>planted()</script>'></iframe></foreignObject></svg>",
    "<math href='javascript:planted()'><mi xlink:href='javascript:planted()'>x</mi></math>",
    "<form action='javascript:planted()'><button formaction='javascript:planted()'>x</button></form>",
    "<object data='javascript:planted()'></object><embed src='javascript:planted()'><base href='//planted()'>",
    "<meta http-equiv=refresh content='0;url=javascript:planted()'><link rel=stylesheet href='//planted()'>",
    "<div style='position:fixed;background:url(https://planted())'>x</div>",
    "<style>p { background: url(https://planted()) }</style>",
    "<svg><g style='fill: url(https://planted())' clip-path='url(https://planted())'></g></svg>",
    "<svg><g style='fill: \\75rl(https://planted())' fill='\\75rl(https://planted())'></g></svg>",
    "<svg></p><style><a title='</style><img src=x onerror=planted()>'></svg>",
    "<math><mtext><table><mglyph><style><img src=x onerror=planted()></style></mglyph></table></mtext></math>",
    "<svg><use href='https://planted()#x'/></svg>",
    "<img src='https://planted()/x.png'>",
]


def test_the_hatches_of_a_figure_stay_and_fill_its_bars():
    ax = plots.axes()[0]
    ax.barh(["a", "b"], [1, 2], **plots.bar(plots.SKY))
    svg = plots.show(ax, "caption", "alt", "note").svg
    kept = sanitize.clean(svg)
    filled = re.findall(r"fill:url\(&quot;#(\w+)&quot;\)", kept)
    assert len(filled) == 2 == len(re.findall(r"fill: ?url\(#", svg))
    assert all(f'<pattern id="{name}"' in kept for name in filled)
    assert f'fill="{plots.SKY.lower()}"' in kept  # the ground of the hatch
    assert len(svg) < 60_000  # a dotted hatch alone is as large


@pytest.mark.faults(14, "a script in the output of a notebook")
@pytest.mark.parametrize("planted", PLANTED)
def test_what_could_run_or_load_is_taken_out(planted):
    left = sanitize.clean(f"<p>before</p>{planted}")
    assert left.startswith("<p>before</p>")
    for mark in ("<script", "<style", "<iframe", "<form", "javascript", "onerror", "onload", "position", "https:"):
        assert mark not in left.lower()


def test_an_output_of_a_chapter_is_harmless_in_the_page(tmp_path):
    output = nbformat.v4.new_output("execute_result", {"text/html": "".join(PLANTED), "text/plain": ""})
    prose = nbformat.v4.new_markdown_cell("[a link](javascript:planted()) <b onclick='planted()'>bold</b> $x^2$")
    cells = [prose, nbformat.v4.new_code_cell("1", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "07_planted.ipynb")
    section = page.section(tmp_path / "07_planted.ipynb")
    assert "<b>bold</b>" in section
    assert "<msup><mi>x</mi><mn>2</mn></msup>" in section
    for mark in ("<script", "javascript:", "onclick=", "onerror=", "<iframe", "planted()'"):
        assert mark not in section.lower()


KEPT = [
    '<svg role="img" aria-label="points" viewBox="0 0 4 2"><defs><clipPath id="c"><rect width="4" height="2"></rect>'
    '</clipPath></defs><g clip-path="url(#c)"><path d="M 0 0 L 1 1" style="fill:none;stroke:var(--quiet)"></path>'
    '<text x="1" y="2" transform="rotate(-25)" style="font-size:10px;text-anchor:end">ms</text></g></svg>',
    '<math display="block" xmlns="http://www.w3.org/1998/Math/MathML"><mfrac><mi>a</mi><mn>2</mn></mfrac>'
    '<mo stretchy="true" fence="true">(</mo><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math>',
    '<details class="mark" data-verdict="no data"><summary>no data</summary><p>x</p></details>',
    '<div class="scroll" tabindex="0" role="region" aria-label="x"><table><tbody><tr id="record-a-r1"><td colspan="2">1'
    "</td></tr></tbody></table></div>",
    '<a href="#record-a-r1">x</a><a href="runs/epyc-2c/a.ipynb">y</a><a href="https://pytorch.org">z</a>',
    '<a download="r.csv.gz" href="data:application/gzip;base64,AAAA">r</a>',
    '<img alt="x" src="data:image/png;base64,AAAA">',
]


@pytest.mark.parametrize("kept", KEPT)
def test_figures_formulas_tables_links_and_downloads_stay(kept):
    assert sanitize.clean(kept).replace(' xmlns="http://www.w3.org/1998/Math/MathML"', "") == kept.replace(
        ' xmlns="http://www.w3.org/1998/Math/MathML"', ""
    )


def test_the_policy_names_one_script_by_its_digest_and_lets_nothing_load():
    policy = sanitize.policy("x = 1")
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert policy != sanitize.policy("x = 2")
