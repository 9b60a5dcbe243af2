"""The report as Markdown holds what the page does, for a repository's page; without Chromium a PDF is refused."""

import html
import re
import xml.dom.minidom

import mistune
import pandas as pd
import pytest

from lib.report import markdown, plots, sentences, tables
from lib.report.document import export
from lib.stats.intervals import Interval


@pytest.fixture(scope="module")
def written(rendered):
    """The report as Markdown, beside its page."""
    figures = rendered.parent / "figures"
    figures.mkdir(exist_ok=True)
    for name in ("explore-kept.svg", "99_former-1.svg"):
        (figures / name).write_text("<svg/>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", str(rendered.parent / "results"))
        assert export.main(["markdown"]) == 0
    assert not (figures / "99_former-1.svg").exists()  # of a former export, while what was saved by hand stays:
    (figures / "explore-kept.svg").unlink()
    return rendered.with_suffix(".md")


@pytest.fixture(scope="module")
def tokens(written):
    """All tokens of the Markdown, whichever others they stand in."""
    parse = mistune.create_markdown(renderer=None, plugins=["table", "footnotes", "math"])
    return list(flat(parse(written.read_text())))


def flat(found):
    for token in found:
        yield token
        yield from flat(token.get("children", []))


def addresses(tokens, kind):
    return [token["attrs"]["url"] for token in tokens if token["type"] == kind]


def test_no_markup_but_markdown_is_left(tokens, written):
    assert not [token["raw"] for token in tokens if "html" in token["type"]]
    assert not re.search(r"</?[a-z]+[ />]|\\operatorname|Traceback|CONTENTS", written.read_text())


def test_every_link_and_image_leads_to_what_exists(tokens, written):
    headings = re.findall(r"^#+ (.+)$", written.read_text(), re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    slugs = {slug if not slugs[:i].count(slug) else f"{slug}-{slugs[:i].count(slug)}" for i, slug in enumerate(slugs)}
    links = addresses(tokens, "link")
    assert len(links) > 10
    for address in links + addresses(tokens, "image"):
        file, _, fragment = address.partition("#")
        if file:
            assert not re.match(r"[a-z]+:|/", address)
            assert (written.parent / file).exists(), address
        else:
            assert fragment in slugs


def test_each_figure_is_a_file_that_stands_alone_in_light_inks_on_white(tokens, written):
    images = addresses(tokens, "image")
    assert len(images) >= 15
    assert sorted(images) == sorted(f"figures/{file.name}" for file in (written.parent / "figures").iterdir())
    for image in images:
        text = (written.parent / image).read_text()
        root = xml.dom.minidom.parseString(text).documentElement
        assert float(root.getAttribute("width")) > 100
        assert 'fill="#ffffff"' in text
        assert "sans-serif" in text
        assert not re.search(r"var\(|currentColor|https?://(?!www\.w3\.org)", text)


def test_sentences_tables_and_figures_are_those_of_the_page(tokens, written, rendered):
    text, page = written.read_text(), rendered.read_text()
    said = re.findall(r'<div class="claim"[^>]*><p>(.*?)</p>', page)
    assert len(said) > 30
    assert all(markdown.escape(html.unescape(sentence)) in text for sentence in said)
    for kind in ("Figure", "Table"):
        count = page.count(f'<b class="label">{kind} ')
        assert [f"**{kind} {i + 1}.**" for i in range(count)] == re.findall(rf"\*\*{kind} \d+\.\*\*", text)
    drawn = len([token for token in tokens if token["type"] == "table"]) + text.count(markdown.ABSENT)
    assert drawn >= page.count('<b class="label">Table ')


def test_every_verdict_has_its_evidence_as_a_footnote(written):
    text = written.read_text()
    used, given = set(re.findall(r"\[\^(\w+)\](?!:)", text)), set(re.findall(r"^\[\^(\w+)\]: .", text, re.MULTILINE))
    assert used == given
    assert re.search(r"\*\(inconclusive\)\*\[\^", text)


def test_a_statement_a_table_and_a_figure_as_markdown():
    said = sentences.Statement("a_b takes <2> ms.", "faster", "n = 3")._repr_markdown_()
    assert re.fullmatch(r"a_b takes \\<2\\> ms\. \*\(faster\)\*\[\^(\w+)\]\n\n\[\^\1\]: n = 3", said)
    frame = pd.DataFrame({"x|y": [Interval(2.0, 1.9, 2.1, 9, 3), None], "what": ["*", None]})
    table = tables.Table(frame, "Caption", "note", ["", "why not"])._repr_markdown_().split("\n")
    assert table[0] == "**Table** Caption"
    assert table[2:6] == ["| x\\|y | what |", "| ---: | --- |", "| 2.00 (1.90–2.10) | \\* |", "| why not |  |"]
    assert table[-1] == "*note*"
    assert markdown.ABSENT in tables.Table(frame[:0], "Caption")._repr_markdown_()
    assert "![alt](figure.svg)" in plots.Figure("<svg>", "Caption", "alt", "note")._repr_markdown_()
    assert markdown.ABSENT in plots.Figure("", "Caption", "alt", "")._repr_markdown_()


def test_headings_alike_have_links_apart():
    assert markdown.anchors(["The idea", "What is kept?", "The idea"]) == ["the-idea", "what-is-kept", "the-idea-1"]


def test_without_chromium_no_pdf_is_written_and_what_to_do_is_said(rendered, monkeypatch, capsys):
    monkeypatch.setenv("RESULTS", str(rendered.parent / "results"))
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    assert export.main(["pdf"]) == 1
    message = capsys.readouterr().err
    assert "apt install chromium" in message
    assert str(rendered) in message


def test_a_chromium_that_prints_nothing_is_reported(rendered, monkeypatch, tmp_path):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho no display >&2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    with pytest.raises(OSError, match="printed nothing: no display"):
        export.pdf(rendered)


def test_an_unknown_machine_is_refused(own_results, capsys):
    assert export.main(["markdown", "--machine", "epyc-3c"]) == 2
    assert "nearest is 'epyc-2c'" in capsys.readouterr().err


def test_prose_goes_one_heading_down_without_comments_and_with_formulas_that_github_sets():
    source = "## Heads <!-- definition -->\n\n$\\operatorname{LN}(x)$ <!-- of\ntwo lines -->"
    assert markdown.section(source) == "### Heads\n\n$\\mathrm{LN}(x)$"
