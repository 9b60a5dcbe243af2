"""Shares a running Chromium among the tests that look at pages."""

import pytest

from lib.report import __main__ as report


@pytest.fixture(scope="session")
def installed_chromium():
    """The path of the Chromium that there is."""
    return report.browser() or pytest.skip("there is no Chromium; `make .venv/browser` installs one where it can")


@pytest.fixture(scope="module")
def chromium(installed_chromium):
    """A running Chromium without a window, as Playwright's Browser.

    It ends with the module, since its event loop is in the way of kernels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium, args=["--no-sandbox"])
        yield browser
        browser.close()
