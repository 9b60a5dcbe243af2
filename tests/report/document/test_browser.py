"""The report, its PDF and a measurement notebook in a real browser: whole, quiet, readable, and usable by keyboard."""

import json
import re
import shutil

import pypdf
import pypdfium2
import pytest
from axe_playwright_python.sync_playwright import Axe

from browser import FACES, PATIENCE_S, opened_in
from lib import notebooks
from lib.report.document import export

VIEWS = {  # width and height in CSS pixels
    "wide": (1280, 900),
    "middle": (768, 1024),
    "narrow": (390, 844),
    "print": (665, 950),  # the text of an A4 page
}
SERIOUS = ("serious", "critical")
DRAWN = """() => [...document.querySelectorAll("main figure svg, main img")].filter(e => !e.closest("details"))
  .map(e => [e.getBoundingClientRect().width, e.getBoundingClientRect().height, e.complete ?? true])"""
# what is wider than its frame, unless one can scroll there by keyboard, and the words beyond the edge of a figure
OVERFLOWING = """() => {
  const beyond = (inner, outer) => inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1 ||
    inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1);
  const all = (of) => [...document.querySelectorAll(of)].filter(e => e.checkVisibility());
  return [
    ...all("html, body :not(svg *)").filter(e => e.clientWidth &&
      !e.querySelector("details.detail[open] table") && e.scrollWidth > e.clientWidth + 1 &&
      getComputedStyle(e).display !== "inline" && !(getComputedStyle(e).overflowX === "auto" && e.tabIndex >= 0)),
    ...all("svg text").filter(e => beyond(e.getBoundingClientRect(), e.ownerSVGElement.getBoundingClientRect())),
  ].map(e => `${e.tagName} ${e.getAttribute("class")} ${e.scrollWidth}>${e.clientWidth} ${e.textContent.slice(0, 80)}`);
}"""
# the most that a reader meets; what is folded is not counted
TARGETS = {"height": 30_000, "words": 7_000, "figures": 15, "tables": 16, "tab stops": 150}
SIZE = """() => {
  const seen = (of) => [...document.querySelectorAll(of)].filter(e => e.checkVisibility());
  return {
    height: document.documentElement.scrollHeight,
    words: document.body.innerText.split(/\\s+/).length,
    figures: seen("main figure.plot").length,
    tables: seen("main table").length,
    "tab stops": seen("a[href], button, summary, [tabindex='0']").length,
  };
}"""
PAGES = 20
TOO_WIDE = """() => [...document.querySelectorAll("main figure table")].filter(e => e.checkVisibility() &&
  e.scrollWidth > e.closest("figure").clientWidth + 1)
  .map(e => `${e.scrollWidth} ${e.closest("figure").clientWidth} ${e.closest("figure").textContent.slice(0, 60)}`)"""
SMALL_TEXT = """() => [...document.querySelectorAll("main figure.plot svg text")].filter(e => e.checkVisibility())
  .map(e => [parseFloat(getComputedStyle(e).fontSize) * e.ownerSVGElement.getBoundingClientRect().width /
    e.ownerSVGElement.viewBox.baseVal.width, e.textContent]).filter(([size]) => size < 9)"""


def look(page, name, scheme="light"):
    """Give an open page one of VIEWS in a scheme of colours, and return it."""
    width, height = VIEWS[name]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(media="print" if name == "print" else "screen", color_scheme=scheme)
    return page


def unfold(page, of="details", folded=False):
    """Open these details of a page, or close them."""
    page.evaluate("([of, open]) => document.querySelectorAll(of).forEach(e => e.open = open)", [of, not folded])


@pytest.fixture(scope="module")
def opened(rendered, chromium):
    """The report as it comes, and what the browser said and asked for while it opened."""
    page, page_said, asked = chromium.new_page(), [], []
    page.on("console", lambda message: page_said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page_said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(rendered.as_uri())
    yield page, page_said, asked
    page.close()


@pytest.fixture
def plain(opened):
    """The report in the wide view, with everything folded."""
    page = look(opened[0], "wide")
    unfold(page, folded=True)
    return page


@pytest.fixture(scope="module", params=FACES)
def faced(rendered, chromium, request):
    """The report in one of FACES."""
    page = opened_in(chromium, rendered, request.param)
    yield page
    page.close()


def test_the_page_raises_no_error_and_asks_for_nothing(opened, rendered):
    _, page_said, asked = opened
    assert not page_said
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [rendered.as_uri()]


def test_the_page_is_as_short_as_its_readers_were_promised(plain):
    size = plain.evaluate(SIZE)
    print(size)
    assert {name: size[name] for name, most in TARGETS.items() if size[name] > most} == {}


def test_the_words_of_a_figure_are_legible_on_a_phone(plain):
    assert look(plain, "narrow").evaluate(SMALL_TEXT) == []


def test_in_any_face_figures_are_drawn_and_nothing_overflows_folded_or_not(faced):
    for name in VIEWS:
        look(faced, name)
        for folded, tables in ((True, 1), (False, 5 if name == "print" else 20)):
            unfold(faced, "main details:not(.mark)", folded)
            assert faced.locator("main table:visible").count() > tables
            assert faced.evaluate(OVERFLOWING) == []
            assert name in ("middle", "print") or faced.evaluate(TOO_WIDE) == []
        drawn = faced.evaluate(DRAWN)
        assert len(drawn) >= 10
        assert all(width > 100 and height > 50 and complete for width, height, complete in drawn)


def test_a_formula_that_is_too_wide_scrolls_by_keyboard(plain):
    plain.set_viewport_size({"width": 320, "height": 600})
    plain.evaluate(
        "() => [...document.querySelectorAll('.formula math')].find(e => e.scrollWidth > e.clientWidth + 20).focus()"
    )
    plain.keyboard.press("ArrowRight")
    plain.wait_for_function("() => document.activeElement.matches('math') && document.activeElement.scrollLeft > 0")


def test_the_dark_scheme_is_dark_and_paper_is_light(plain):
    luminance = "() => getComputedStyle(document.body).color.match(/[0-9]+/g).slice(0, 3).map(Number)"
    assert min(look(plain, "wide", "dark").evaluate(luminance)) > 150
    assert max(look(plain, "print", "dark").evaluate(luminance)) < 80


@pytest.mark.parametrize("name", ["wide", "narrow"])
def test_the_contents_work_by_keyboard(plain, name):
    page = look(plain, name)
    target = "05_attention-attention"
    focused = "() => document.activeElement.getAttribute('href') || document.activeElement.tagName"
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0) }")
    page.mouse.click(1, 1)  # so that the next tab begins at the top
    for _ in range(60):
        page.keyboard.press("Tab")
        at = page.evaluate(focused)
        if at == "SUMMARY" and page.evaluate("() => !!document.activeElement.closest('nav')"):
            page.keyboard.press("Enter")
        if at == f"#{target}":
            break
    assert at == f"#{target}"
    page.keyboard.press("Enter")
    top = f"document.getElementById('{target}').getBoundingClientRect().top"
    page.wait_for_function(f"() => Math.abs({top}) < 300", timeout=10_000)
    assert page.url.endswith(f"#{target}")
    page.keyboard.press("Tab")
    assert page.evaluate(  # what has the focus next lies behind the heading
        f"() => !!(document.getElementById('{target}').compareDocumentPosition(document.activeElement) & 4)"
    )


@pytest.fixture(scope="module")
def sampled(chromium, rendered):
    """The report with three rows of each table, which stand for the others, since axe takes its time."""
    page = look(opened_in(chromium, rendered, "wide"), "wide")
    page.evaluate("() => document.querySelectorAll('tbody tr:nth-child(n + 4)').forEach(row => row.remove())")
    yield page
    page.close()


@pytest.mark.parametrize(("scheme", "rules"), [("light", {}), ("dark", {"runOnly": ["color-contrast"]})])
def test_axe_finds_nothing_serious(sampled, scheme, rules):
    sampled.emulate_media(color_scheme=scheme)
    response = Axe().run(sampled, options={"resultTypes": ["violations"], **rules}).response
    assert response["passes"]
    found = [v for v in response["violations"] if v["impact"] in SERIOUS]
    assert not [(v["id"], [node["html"][:200] for node in v["nodes"][:3]]) for v in found]


def test_a_column_sorts_by_keyboard_both_ways_and_says_so(plain):
    unfold(plain)
    table = plain.locator("table.sortable").first
    head = table.locator("th", has_text="median, ms")
    cells = (
        f"table => [...table.tBodies[0].rows].map(row => row.cells[{head.evaluate('e => e.cellIndex')}].textContent)"
    )
    for order, signed in (("ascending", 1), ("descending", -1)):
        head.locator("button").focus()
        plain.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        numbers = [float(text.replace(",", "")) for text in table.evaluate(cells) if text]
        assert len(numbers) > 10
        assert numbers == sorted(numbers, reverse=signed < 0)
    table.locator("th").first.locator("button").click()
    assert head.get_attribute("aria-sort") is None


def test_a_link_to_a_record_opens_what_holds_it(plain):
    name = plain.evaluate("() => document.querySelector('details.records tr[id]').id")
    row = plain.locator(f"#{name}")
    assert not row.is_visible()
    plain.evaluate(f"() => {{ location.hash = '{name}' }}")
    row.wait_for(state="visible")
    assert plain.evaluate(f"() => Math.abs(document.getElementById('{name}').getBoundingClientRect().top) < 900")
    unfold(plain, "details.records", folded=True)
    plain.evaluate(  # the same link once more, which changes no address
        f"""() => {{ const link = document.createElement("a"); link.href = "#{name}"; link.textContent = "again";
        document.querySelector("main").prepend(link); link.click() }}"""
    )
    row.wait_for(state="visible")


def test_a_download_is_a_file_of_the_records(plain):
    unfold(plain)
    with plain.expect_download() as download:
        plain.locator(".downloads a").last.click()
    assert download.value.suggested_filename.endswith(".parquet")
    assert download.value.path().read_bytes()[:4] == b"PAR1"


def test_a_planted_script_does_not_run(plain):
    plain.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.planted = 1";
        document.body.append(script); const image = document.createElement("img"); image.setAttribute("onerror",
        "window.planted = 2"); image.src = "data:,"; document.body.append(image) }"""
    )
    plain.wait_for_timeout(200)
    assert plain.evaluate("() => window.planted === undefined")


@pytest.fixture(scope="module")
def printed(rendered, installed_chromium):
    return export.pdf(rendered)


def titles(outline):
    return [title for one in outline for title in (titles(one) if isinstance(one, list) else [one.title])]


def test_the_pdf_has_an_outline_of_every_chapter_and_numbered_pages(printed, rendered):
    reader = pypdf.PdfReader(printed)
    print(f"{len(reader.pages)} pages")
    assert len(reader.pages) <= PAGES
    chapters = re.findall(r'class="chapter"><h2 id="[^"]+">(.*?)</h2>', rendered.read_text().replace(">\n", ">"))
    assert len(chapters) == len(list(notebooks.CHAPTERS.glob("[0-7]*.ipynb")))
    assert set(chapters) <= set(titles(reader.outline))
    for number in (2, len(reader.pages)):
        assert str(number) in reader.pages[number - 1].extract_text().split("\n")


def test_no_page_of_the_pdf_is_blank_no_text_lies_beyond_it_and_no_heading_ends_it(printed, rendered):
    headings = {re.sub("<.*?>", "", text) for text in re.findall(r"<h[234] id=.*?>(.*?)</h", rendered.read_text())}
    headings -= set(re.findall(r'<a href="#[^"]+">([^<]+)</a></small>', rendered.read_text()))  # links may end a page
    document = pypdfium2.PdfDocument(printed)
    for number, page in enumerate(document, start=1):
        width, height = page.get_size()
        darkest, _ = page.render(scale=0.2).to_pil().convert("L").getextrema()
        assert darkest < 200, number
        text = page.get_textpage()
        rects = [text.get_rect(i) for i in range(text.count_rects())]
        assert all(x0 >= 0 and x1 <= width and y0 >= 0 and y1 <= height for x0, y0, x1, y1 in rects), number
        lines = [line.strip() for line in text.get_text_range().splitlines() if line.strip()]
        last = [line for line in lines if line != str(number)][-1]
        assert last not in headings, number


PARAMETERS = {"seq_len": [16], "warmup": 0, "samples": 6, "target_percent": 0, "seconds": 0, "pairs": 0}


@pytest.fixture
def attention_notebook(jupyterlab):
    """A copy of the measurement notebook of attention, with little to measure, in JupyterLab's folder."""
    stored = json.loads((notebooks.NOTEBOOKS / "attention.ipynb").read_text())
    (cell,) = [cell for cell in stored["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    source = "".join(cell["source"])
    for name, value in PARAMETERS.items():
        source = re.sub(rf"^{name} = .*$", f"{name} = {value}", source, flags=re.MULTILINE)
    cell["source"] = source
    (jupyterlab.notebooks / "attention.ipynb").write_text(json.dumps(stored))
    return source


def _wait_for(page, shown) -> None:
    """Wait until a notebook shows this, or fail at once with what a cell raised."""
    raised = page.locator('.jp-OutputArea [data-mime-type*="stderr"]', has_text="Traceback")
    shown.or_(raised).first.wait_for()
    if raised.count():
        pytest.fail(raised.first.inner_text()[-2000:])


def _run_all_cells(page) -> None:
    """Once the kernel has started, run all cells by the menu."""
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()


def test_a_measurement_notebook_runs_in_jupyterlab_with_a_parameter_changed(chromium, jupyterlab, attention_notebook):
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(jupyterlab.address("attention.ipynb"))
    parameters = page.locator(".jp-CodeCell .cm-content").first
    parameters.get_by_text("seq_len").wait_for()
    parameters.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.insert_text(attention_notebook.replace("seq_len = [16]", "seq_len = [16, 24]"))
    _run_all_cells(page)
    figure = page.locator(".jp-OutputArea figure.plot svg").first
    _wait_for(page, figure)
    assert figure.bounding_box()["height"] > 100
    assert {"16", "24"} <= {text.strip() for text in figure.locator("text").all_text_contents()}
    lengths = {json.loads(file.read_text())["case"]["seq_len"] for file in jupyterlab.results.rglob("*.json")}
    assert lengths == {16, 24}
    assert page.locator('.jp-OutputArea [data-mime-type*="stderr"]').count() == 0
    page.close()


def test_the_records_are_explored_in_jupyterlab(chromium, jupyterlab):
    shutil.copy(notebooks.NOTEBOOKS / "explore.ipynb", jupyterlab.notebooks)
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE_S * 1000)
    page.goto(jupyterlab.address("explore.ipynb"))
    _run_all_cells(page)
    controls = page.locator(".jp-OutputArea .widget-vbox").first
    _wait_for(page, controls.locator("figure.plot svg text", has_text="sdpa").first)
    controls.locator(".widget-dropdown", has_text="experiment").locator("select").select_option("adam")
    _wait_for(page, controls.locator("figure.plot svg text", has_text="single_tensor").first)
    assert controls.locator("figure.plot svg text", has_text="sdpa").count() == 0
    controls.get_by_role("button", name="Save figure").click()
    controls.get_by_text("saved as").wait_for()
    saved = [file.name for file in (jupyterlab.results.parent / "figures").glob("explore-adam-*.svg")]
    assert len(saved) == 1
    page.close()
