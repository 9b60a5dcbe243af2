"""The report as Markdown and as LaTeX holds what the page does; without Chromium a PDF is refused."""

import re
import xml.dom.minidom

import mistune
import nbformat
import pytest

from lib.report import __main__
from lib.report.document import export


@pytest.fixture(scope="module")
def written(rendered):
    """The report as Markdown, beside its page."""
    figures = rendered.parent / "figures"
    figures.mkdir(exist_ok=True)
    for name in ("explore-kept.svg", "99_former-1.svg"):
        (figures / name).write_text("<svg/>")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", str(rendered.parent / "results"))
        assert __main__.main(["markdown"]) == 0
    assert not (figures / "99_former-1.svg").exists()  # of a former export, while what was saved by hand stays:
    (figures / "explore-kept.svg").unlink()
    return rendered.with_suffix(".md")


@pytest.fixture(scope="module")
def tokens(written):
    """All tokens of the Markdown, whichever others they stand in."""
    parse = mistune.create_markdown(renderer=None, plugins=["table", "math"])
    return list(flat(parse(written.read_text())))


def flat(found):
    for token in found:
        yield token
        yield from flat(token.get("children", []))


def images(text):
    return re.findall(r'<img src="([^"]+)" alt="[^"]{20,}">', text)


def addresses(tokens, kind):
    return [token["attrs"]["url"] for token in tokens if token["type"] == kind]


def test_the_markup_is_what_a_repository_shows(tokens, written):
    shown = "a b br code dd details div dl dt em figcaption figure img p small sub summary sup wbr"
    raw = "".join(token["raw"] for token in tokens if "html" in token["type"])
    assert set(re.findall(r"<([a-z0-9]+)", raw)) <= set(shown.split())
    assert not re.search(r"<svg|style=|\\operatorname|Traceback", written.read_text())


def test_every_link_and_image_leads_to_what_exists(tokens, written):
    text = written.read_text()
    ids = re.findall(r'<a id="([^"]+)">', text)
    assert len(ids) == len(set(ids))
    links = addresses(tokens, "link") + re.findall(r'href="([^"]+)"', text)
    assert len(links) > 30
    for address in links + images(text):
        file, _, fragment = address.partition("#")
        assert not re.match(r"[a-z]+:|/", file)
        assert (written.parent / file).exists() if file else fragment in ids, address


def test_each_figure_is_a_file_that_stands_alone_in_light_inks_on_white(written):
    found = images(written.read_text())
    assert len(found) >= 10
    assert sorted(found) == sorted(f"figures/{file.name}" for file in (written.parent / "figures").iterdir())
    for image in found:
        text = (written.parent / image).read_text()
        root = xml.dom.minidom.parseString(text).documentElement
        assert float(root.getAttribute("width")) > 100
        assert 'fill="#ffffff"' in text
        assert "sans-serif" in text
        assert not re.search(r"var\(|currentColor|https?://(?!www\.w3\.org)", text)


def test_sentences_with_verdicts_tables_and_figures_are_those_of_the_page(tokens, written, rendered):
    text, page = written.read_text(), rendered.read_text()
    said = re.findall(r'<div class="claim"[^>]*><p>(.*?)</p>', re.sub("</?data[^>]*>", "", page))
    assert len(said) > 30
    assert all(sentence in text for sentence in said)
    for kind in ("Figure", "Table"):
        count = page.count(f'<b class="label">{kind} ')
        assert [str(i + 1) for i in range(count)] == re.findall(rf'<b class="label">{kind} (\d+)\.</b>', text)
    assert re.search(r"<p>[^<]+ <em>\(unclear\)</em></p><details><summary>evidence</summary><p>", text)
    assert "<em>(measured)" not in text
    drawn = len([token for token in tokens if token["type"] == "table"])
    assert drawn >= page.count('<b class="label">Table ')


def test_a_numbered_table_is_printed_as_latex(written, capsys, monkeypatch):
    monkeypatch.setenv("RESULTS", str(written.parent / "results"))
    assert __main__.main(["latex", "7"]) == 0
    text = capsys.readouterr().out
    caption = re.search(r'<b class="label">Table 7\.</b> (.+)', written.read_text())[1]
    assert rf"\caption{{{caption}}}" in text
    assert re.match(r"\\begin\{table\}(?s:.*)\\end\{table\}\n$", text)
    assert __main__.main(["latex", "700"]) == 2
    assert "number: got 700, expected at most" in capsys.readouterr().err


def test_what_could_run_is_in_no_figure_and_no_output(tmp_path):
    svg = '<svg viewBox="0 0 1 1" aria-label="x"><script>planted()</script><path onload="planted()" d="M 0 0"/></svg>'
    output = nbformat.v4.new_output("display_data", {"text/html": f"<p>x</p>{svg}<iframe src=planted()></iframe>"})
    cells = [nbformat.v4.new_markdown_cell("# One"), nbformat.v4.new_code_cell("1", outputs=[output])]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "01_one.ipynb")
    shown = export._chapter_cells(tmp_path / "01_one.ipynb", tmp_path)[1].outputs[0].data["text/html"]
    assert "planted" not in shown + (tmp_path / "01_one-1.svg").read_text()


def test_without_chromium_no_pdf_is_written_and_what_to_do_is_said(rendered, monkeypatch, capsys):
    monkeypatch.setenv("RESULTS", str(rendered.parent / "results"))
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    assert __main__.main(["pdf"]) == 1
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
