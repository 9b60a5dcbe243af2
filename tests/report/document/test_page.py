"""The report is one file that asks nothing of the network, and follows from its records."""

import collections
import html
import itertools
import re
import shutil

import pytest

import cells
from executed import told
from lib import notebooks, paths, timing
from lib.chapters.questions import QUESTIONS
from lib.experiments import measure
from lib.records import results, staleness
from lib.report import __main__ as report
from lib.report.document import page, sanitize, title
from plain import one
from reference import MACHINE
from resealed import reseal
from wcag import contrast


@pytest.fixture(scope="module")
def text(rendered):
    return rendered.read_text()


def test_the_page_loads_nothing_and_runs_its_own_script_alone(text):
    loads = re.findall(r'<(?!a\b)[a-zA-Z][^<>]*\s(?:src|href|xlink:href)="([^"]*)"', text)
    assert len(loads) > 1
    assert all(address.startswith(("#", "data:")) for address in loads)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script == (page.TEMPLATE / "report.js").read_text()
    assert f'content="{html.escape(sanitize.policy(script), quote=True)}"' in text.replace("&#39;", "&#x27;")
    rest = text.replace(script, "")
    assert rest.count("<script") == 1
    assert not re.search(r"@import|url\((?!(?:&quot;)?#)|https?://(?!www\.w3\.org)", rest)
    assert not re.search(r"<[^>]+\son\w+=", rest)


def test_the_page_stays_small_and_holds_its_downloads(rendered, text):
    assert rendered.stat().st_size < 6_000_000
    assert len(re.findall(r'<a download="records-[^"]+" href="data:application/', text)) == 2


def test_the_title_page_says_what_was_measured(text):
    header = html.unescape(text.partition("<main")[0])
    facts = title.facts(MACHINE)
    for label in ("Machine", "Measured", "PyTorch"):
        assert facts[label] in header
    assert facts.get("Code", "") in header  # of a reference of older code


def test_every_element_of_the_page_ends(text):
    for tag in ("section", "details", "figure", "div", "table"):
        assert len(re.findall(rf"<{tag}[\s>]", text)) == text.count(f"</{tag}>") > 0, tag


def test_ids_are_unique_and_every_link_and_question_leads_somewhere(rendered, text):
    ids = re.findall(r'<[a-zA-Z][^<>]*\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    links = [html.unescape(link) for link in re.findall(r'<a\b[^<>]*\shref="([^"]*)"', text)]
    inside = [link[1:] for link in links if link.startswith("#")]
    outside = [link for link in links if not link.startswith(("#", "data:"))]
    assert set(inside) <= set(ids)
    assert any(link.startswith("record-") for link in inside)  # where evidence leads
    assert outside
    assert all((rendered.parent / link).exists() for link in outside)
    asked = re.search(r'<section id="12_questions".*?</section>', text, re.DOTALL)[0]
    assert asked.count('<a href="#') + asked.count("not run") >= len(QUESTIONS)  # what was not run has no place


QUANTITY = re.compile(r'<data data-q="([^"]+)" value="([^"]*)"(?: data-verdict="([^"]*)")?>')


def values(text):
    """Return each quantity of a page with the values and the verdicts that it has there."""
    found = collections.defaultdict(set)
    for name, value, verdict in QUANTITY.findall(text):
        found[name].add((value, verdict))
    return found


def test_a_quantity_has_one_value_and_one_verdict_wherever_it_stands(text):
    found = values(text)
    assert len(found) > 100
    assert {name: each for name, each in found.items() if len({value for value, _ in each}) > 1} == {}
    assert {name: each for name, each in found.items() if len({said for _, said in each} - {""}) > 1} == {}


def contradicting(value, verdict):
    """Return True if a ratio with its interval cannot have this verdict."""
    of, *ends = map(float, value.split())
    low, high = ends or (of, of)
    return {"faster": high >= 1, "slower": low <= 1, "same": not 0.97 <= of <= 1.031}.get(verdict, False)


def test_no_verdict_contradicts_the_interval_beside_it(text):
    judged = [(name, *one) for name, each in values(text).items() for one in each if one[1]]
    assert len(judged) > 10
    assert [one for one in judged if contradicting(*one[1:])] == []
    assert contradicting("1.1 1.0 1.2", "faster")
    assert not contradicting("0.9 0.8 0.95", "faster")


def test_two_tables_do_not_share_most_of_their_rows(text):
    folded = "".join(re.findall(r'<details class="detail">.*?</section>', text, re.DOTALL))
    visible = re.sub(r'<details class="detail">.*?</section>', "", text, flags=re.DOTALL)
    for part in (visible, folded):
        tables = [
            [set(values(row)) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)[1:]]
            for table in re.findall(r"<table.*?</table>", part, re.DOTALL)
        ]
        for first, second in itertools.permutations(filter(None, tables), 2):
            same = [row for row in first if row & set().union(*second)]
            assert len(same) <= max(1, len(first) / 2, len(second) / 2), same[:2]


def test_each_chapter_is_in_the_contents_its_detail_folded_and_no_heading_comes_twice(text):
    chapters = sorted(notebooks.CHAPTERS.glob("*.ipynb"))
    for chapter in chapters:
        section = re.search(rf'<section id="{chapter.stem}" class=".*?</section>', text, re.DOTALL)[0]
        visible = section.partition('<details class="detail">')[0]
        assert chapter.stem < page.FIRST_APPENDIX or "<figure" not in visible
        assert "In detail</h3>" not in section
        assert f'<li><a href="#{re.search(r"<h2 id=.([^>]+).>", section)[1]}">' in text
    headings = [re.sub("<.*?>", "", one) for one in re.findall(r"<h[234] id=.*?>(.*?)</h", text)]
    assert [one for one, times in collections.Counter(headings).items() if times > 1] == []
    assert text.count("<h2 id=") == len(chapters)


def test_figures_and_tables_are_numbered_in_their_order_and_figures_described(text):
    for kind in ("Figure", "Table"):
        numbers = [int(n) for n in re.findall(rf'<b class="label">{kind} (\d+)\.</b>', text)]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= 5
    for svg in re.findall(r"<svg[^>]*>", text):
        assert 'role="img"' in svg
        assert re.search(r'aria-label="[^"]{20,}"', svg)


def test_formulas_are_mathml_and_neither_markup_nor_a_path_of_the_machine_is_left(text):
    assert text.count("<math") >= 10
    assert "$$" not in text
    assert "Traceback" not in text
    assert str(paths.REPORTS.parent) not in text


def test_a_second_call_renders_nothing_and_a_changed_record_does(rendered, capsys, monkeypatch, tmp_path):
    rendered = shutil.copytree(rendered.parent, tmp_path / "reports") / rendered.name
    monkeypatch.setenv("RESULTS", str(rendered.parent / "results"))
    before = rendered.stat().st_mtime_ns
    assert report.main([]) == 0
    assert rendered.stat().st_mtime_ns == before
    assert "is up to date" in capsys.readouterr().out
    machine = results.machines()[0]
    digest = page.inputs(machine)
    kept = next((results.REFERENCE / machine).glob("*/*.json"))
    changed = results.folder() / kept.relative_to(results.REFERENCE)
    changed.parent.mkdir(parents=True)
    shutil.copy(kept, changed)
    reseal(changed, seconds=1.5)
    assert page.inputs(machine) != digest


SHOWN = "from IPython.display import HTML\nHTML('<div class=\"claim\"><p>Shown before the error.</p></div>')"
LACKING = "from IPython.display import HTML\nHTML('')"


def test_a_chapter_that_fails_is_a_box_in_the_page_and_the_others_are_whole(
    save_record, monkeypatch, tmp_path, capsys
):  # fmt: skip
    around = {"torch": staleness.installed(), "commit": "0", "uncommitted": False}
    save_record(total_ms=[1.0], environment=around)
    folder = tmp_path / "chapters"
    folder.mkdir()
    for name, *sources in (
        ("01_raises", SHOWN, f"open('{tmp_path}/deep/<b>none.json')"), ("02_dies", SHOWN, "import os\nos._exit(3)"),
        ("03_whole", SHOWN), ("04_lacks_records", LACKING), ("80_raises", SHOWN, "1 / 0"),
    ):  # fmt: skip
        cells.write(folder / f"{name}.ipynb", "machine = 'none'", *sources, title=f"# Title of {name}\n\nA question?")
    monkeypatch.setattr(notebooks, "CHAPTERS", folder)
    assert report.main(["markdown", "--machine", "test-1c"]) == 1
    said = capsys.readouterr().err.splitlines()
    text, written = (page.page().with_suffix(suffix).read_text() for suffix in (".html", ".md"))
    raised = "FileNotFoundError: [Errno 2] No such file or directory: '<b>none.json'"
    reasons = {"01_raises": raised, "02_dies": "DeadKernelError", "80_raises": "ZeroDivisionError: division by zero"}
    for (name, reason), line in zip(reasons.items(), said, strict=True):
        assert f"{name}.ipynb: {reason}" in line
        box = f'<p class="failed">This chapter stopped at an error: <code>{html.escape(reason, quote=False)}'
        assert f"Title of {name}</h2>{box}" in text
        assert re.search(rf"Title of {name}\n\nA question\?\n\n{re.escape(box)}", written.replace("&#x27;", "'"))
    for made in (text, written):  # of what ended well, just the one without an answer says so
        _, lacking = made.split("Title of 04_lacks_records")[-2:]
        assert made.count("Nothing that answers this was measured") == 1
        assert lacking.index("A question?") < lacking.index("Nothing that answers this was measured")
    for made, failed in ((text, 'class="failed"'), (written, "This chapter stopped")):
        assert made.count(failed) == 3
        assert made.count("Shown before the error.") == 4 + (made is text) * 4  # the page shows the code too
        assert "Traceback" not in made
    assert str(tmp_path) not in re.sub('<details class="code">.*?</details>', "", text, flags=re.DOTALL)
    assert not page.up_to_date(page.page(), page.inputs("test-1c")), "it is to be rendered again"
    monkeypatch.setattr(page, "render", lambda *_: {folder / "01_raises.ipynb": "an error"})
    assert report.main(["--check", "--machine", "test-1c"]) == 1
    assert capsys.readouterr().err == "01_raises: an error\n"


def test_an_unknown_machine_is_refused_with_the_nearest(capsys, own_results, save_record):
    save_record(forward_ms=[1.0])
    assert report.main(["--machine", "test-2c"]) == 2
    assert "nearest: test-1c" in capsys.readouterr().err


def test_of_a_partly_measured_machine_what_is_missing_is_said(own_results):
    with measure.recording(one("ceilings"), 1) as record:
        work = record.setup()
        record.metrics |= measure.errors(work) | measure.times(work, timing.Plan(0, 6))
    with measure.recording(one("step", size="2.7B", context_length=1024, batch_size=64), 1) as record:
        record.setup()
    (machine,) = {file.name for file in own_results.iterdir() if file.is_dir()}
    text = told(machine)
    assert all(title.facts(machine).values())
    assert "predicted not to fit" in text
    assert text.count("no records") >= 4


# Its colours contrast in both schemes

CSS = (page.TEMPLATE / "report.css").read_text()


def scheme(dark):
    """The colours of a scheme by name."""
    light, other = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
    return found | (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", other)) if dark else {})


def test_every_colour_of_text_contrasts_in_both_schemes_as_wcag_aa_asks():
    light, dark = scheme(False), scheme(True)
    assert light.keys() == dark.keys() >= {"ink", "quiet", "accent", "good", "bad"}
    assert all(light[name] != dark[name] for name in light)
    for colours in (light, dark):
        texts = [name for name in colours if name not in ("page", "soft", "rule")]
        contrasts = {(name, on): contrast(colours[name], colours[on]) for name in texts for on in ("page", "soft")}
        assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
