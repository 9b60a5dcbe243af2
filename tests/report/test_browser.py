"""The page in a real browser: quiet, readable in every view, and usable by keyboard; and its PDF."""

import pypdf
import pytest
from axe_playwright_python.sync_playwright import Axe

from lib.report import __main__ as command

VIEWS = {"wide": (1280, 900), "middle": (768, 1024), "phone": (390, 844)}  # width and height in CSS pixels
# tables wider than their box, unless the box scrolls by keyboard, and the words beyond the edge of a figure
OVERFLOWING = """() => {
  const all = (of) => [...document.querySelectorAll(of)].filter(e => e.checkVisibility());
  const beyond = (inner, outer) => inner.left < outer.left - 1 || inner.right > outer.right + 1;
  return [
    ...all("html").filter(e => e.scrollWidth > e.clientWidth),
    ...all("main table, main pre, main .formula math").filter(e => !e.closest("[tabindex='0']") &&
      beyond(e.getBoundingClientRect(), document.querySelector("main").getBoundingClientRect())),
    ...all("main .scroll, main .formula").filter(e =>
      beyond(e.getBoundingClientRect(), e.parentElement.getBoundingClientRect())),
    ...all("main math").filter(e => e.getBoundingClientRect().left < e.closest("section").getBoundingClientRect().left),
    ...all("svg text").filter(e => beyond(e.getBoundingClientRect(), e.ownerSVGElement.getBoundingClientRect())),
  ].map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)}`);
}"""
SMALLEST_TEXT = """() => Math.min(...[...document.querySelectorAll("figure.plot svg text")].map(e =>
  parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width /
  e.ownerSVGElement.viewBox.baseVal.width))"""


@pytest.fixture(scope="module")
def opened(report, chromium):
    """The page, and what the browser said and asked for while it opened."""
    page = chromium.new_page()
    messages = []
    addresses = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(report.file.as_uri())
    yield page, messages, addresses
    page.close()


@pytest.fixture
def page(opened):
    """The page as a reader with a wide screen finds it."""
    shown = opened[0]
    shown.set_viewport_size({"width": 1280, "height": 900})
    shown.emulate_media(media="screen", color_scheme="light")
    unfold(shown, False)
    return shown


def unfold(page, opened=True) -> None:
    page.evaluate("opened => document.querySelectorAll('details').forEach(e => e.open = opened)", opened)


def test_the_browser_has_nothing_to_say_and_loads_nothing_else(opened, report):
    _, messages, addresses = opened
    assert messages == []
    assert [url for url in addresses if not url.startswith("data:")] == [report.file.as_uri()]


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("view", VIEWS)
def test_nothing_overflows(page, view, folded):
    width, height = VIEWS[view]
    page.set_viewport_size({"width": width, "height": height})
    unfold(page, not folded)
    assert page.locator("nav > div").is_visible() == (view == "wide")
    assert page.locator("main table:visible").count() >= 2
    assert page.evaluate(OVERFLOWING) == []


def test_words_in_figures_are_legible_on_a_phone(page):
    page.set_viewport_size({"width": 390, "height": 844})
    unfold(page)
    assert page.evaluate(SMALLEST_TEXT) > 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, scheme):
    page.emulate_media(color_scheme=scheme)
    unfold(page)
    response = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert response["passes"]
    for violation in response["violations"]:
        assert violation["impact"] not in ("serious", "critical"), violation["nodes"][0]["html"][:200]


def test_figures_take_the_ink_of_the_scheme(page):
    ink = "() => getComputedStyle(document.querySelector('section svg text')).fill"
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ink) != light


def test_a_link_into_a_fold_opens_it(page):
    table = page.locator("#attention details.detail table")
    assert not table.is_visible()
    page.evaluate("document.querySelector('#attention details.detail table').id = 'inside'; location.hash = '#inside'")
    table.wait_for(state="visible")


def test_the_contents_mark_the_chapter_that_is_read(page):
    for chapter in ("#step", "#attention"):
        page.evaluate("chapter => document.querySelector(chapter).scrollIntoView()", chapter)
        page.wait_for_function("chapter => document.querySelector('nav a[aria-current]').hash === chapter", arg=chapter)


def test_paper_is_light_and_leaves_out_what_is_folded(page):
    page.emulate_media(media="print", color_scheme="dark")
    background, ink = page.evaluate("() => ['background', 'color'].map(e => getComputedStyle(document.body)[e])")
    assert max(map(int, ink.removeprefix("rgb(").removesuffix(")").split(", "))) < 80
    assert "rgba(0, 0, 0, 0)" in background
    assert page.locator("details.code:visible").count() == 0
    assert page.locator("#attention figure.table").is_visible()


def test_the_pdf_has_all_chapters(report, installed_chromium):
    printed = command.pdf(report.file)
    pages = [page.extract_text() for page in pypdf.PdfReader(printed).pages]
    for title in ("A training step", "Attention", "The optimizer", "Precision"):
        assert title in "".join(pages)
    assert len(pages) < 7
    assert min(map(len, pages)) > 50


def test_without_chromium_it_says_what_to_do(report, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "/nowhere/chromium")
    with pytest.raises(OSError, match="browser: got none, expected Chromium"):
        command.pdf(report.file)


def test_a_chromium_that_prints_nothing_is_reported(report, monkeypatch, tmp_path):
    broken = tmp_path / "chromium"
    broken.write_text("#!/bin/sh\necho no display >&2\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    with pytest.raises(OSError, match="printed nothing: no display"):
        command.pdf(report.file)
