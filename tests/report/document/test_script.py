"""The page's script in a real browser: columns sort by keyboard, links open what they point into."""

import pytest


@pytest.fixture
def page(chromium, rendered):
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page = context.new_page()
    page.goto(rendered.as_uri())
    yield page
    context.close()


def test_a_column_sorts_by_keyboard_both_ways_and_says_so(page):
    page.evaluate("() => document.querySelectorAll('details.records').forEach(each => each.open = true)")
    table = page.locator("table.sortable").first
    head = table.locator("th", has_text="median, ms")
    cells = (
        f"table => [...table.tBodies[0].rows].map(row => row.cells[{head.evaluate('e => e.cellIndex')}].textContent)"
    )
    for order, signed in (("ascending", 1), ("descending", -1)):
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == order
        numbers = [float(text.replace(",", "")) for text in table.evaluate(cells) if text]
        assert len(numbers) > 10
        assert numbers == sorted(numbers, reverse=signed < 0)
    table.locator("th").first.locator("button").click()
    assert head.get_attribute("aria-sort") is None


def test_a_link_to_a_record_opens_what_holds_it(page):
    page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = false)")
    name = page.evaluate("() => document.querySelector('details.records tr[id]').id")
    row = page.locator(f"#{name}")
    assert not row.is_visible()
    page.evaluate(f"() => {{ location.hash = '{name}' }}")
    row.wait_for(state="visible")
    assert page.evaluate(f"() => Math.abs(document.getElementById('{name}').getBoundingClientRect().top) < 900")
    page.evaluate("() => document.querySelectorAll('details.records').forEach(each => each.open = false)")
    page.evaluate(  # the same link once more, which changes no address
        f"""() => {{ const link = document.createElement("a"); link.href = "#{name}"; link.textContent = "again";
        document.querySelector("main").prepend(link); link.click() }}"""
    )
    row.wait_for(state="visible")


def test_a_download_is_a_file_of_the_records(page):
    with page.expect_download() as download:
        page.locator(".downloads a").last.click()
    assert download.value.suggested_filename.endswith(".parquet")
    assert download.value.path().read_bytes()[:4] == b"PAR1"


def test_a_planted_script_does_not_run(page):
    page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.planted = 1";
        document.body.append(script); const image = document.createElement("img"); image.setAttribute("onerror",
        "window.planted = 2"); image.src = "data:,"; document.body.append(image) }"""
    )
    page.wait_for_timeout(200)
    assert page.evaluate("() => window.planted === undefined")
