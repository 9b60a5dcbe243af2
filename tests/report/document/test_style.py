"""The page can be read: its colours contrast in both schemes, and its title says what was measured."""

import re

import pytest

from lib.report.document import page, title

CSS = (page.TEMPLATE / "report.css").read_text()


def scheme(dark):
    """The colours of a scheme by name."""
    light, other = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
    found = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", light))
    return found | (dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", other)) if dark else {})


def luminance(colour):
    """Relative luminance as WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_of_black_on_white_is_21_and_of_a_colour_on_itself_1():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)
    assert contrast("#8a3b12", "#8a3b12") == 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("ground", ["page", "soft"])
def test_every_colour_of_text_contrasts_as_wcag_aa_asks(ground, dark):
    colours = scheme(dark)
    assert {"ink", "quiet", "accent", "good", "bad"} <= set(colours)
    texts = [name for name in colours if name not in ("page", "soft", "rule")]
    assert {name: contrast(colours[name], colours[ground]) for name in texts if
            contrast(colours[name], colours[ground]) < 4.5} == {}  # fmt: skip


def test_the_dark_scheme_names_every_colour_of_the_light_one():
    light, dark = scheme(False), scheme(True)
    assert light.keys() == dark.keys()
    assert all(light[name] != dark[name] for name in light)


def test_the_title_names_machine_days_versions_commits_and_records(own_results, save_record):
    from lib.records import code_digest, results

    around = {"hardware": "a test", "machine": "test-1c", "torch": "2.11.0", "python": "3.12.1", "uncommitted": False}
    for round, day, commit in ((1, "2026-01-01", "abc"), (2, "2026-02-03", "def")):
        results.save(
            machine="test-1c", experiment="attention", case={"variant": "naive"}, round=round, status="ok",
            metrics={"total_ms": [1.0]}, environment=around | {"commit": commit}, code=code_digest.code("attention"),
            started=f"{day}T00:00:00+00:00", seconds=1.0,
        )  # fmt: skip
    facts = title.facts("test-1c")
    assert facts["Machine"] == "a test"
    assert facts["Measured"] == "1 January 2026 to 3 February 2026"
    assert (facts["PyTorch"], facts["Python"], facts["Commit"]) == ("2.11.0", "3.12.1", "abc, def")
    assert facts["Records"] == "2, of 1 cases in 2 rounds"
