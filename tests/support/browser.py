"""Shares what the tests in a real browser need: Chromium, faces of type, the rendered report and JupyterLab."""

import base64
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import filelock
import matplotlib
import pytest

import said
from lib import paths
from lib.records import results
from lib.report import __main__ as report
from lib.report.document import export, page
from reference import MACHINE

TOKEN = "for-the-tests"
PATIENCE_S = 120  # on two cores that do other things too
SETTINGS = {  # of JupyterLab: all cells in the page at once, also those out of sight, and no news from elsewhere
    "lab/user-settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings": '{"windowingMode": "none"}',
    "labconfig/page_config.json": '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}',
}


FACES = {  # that matplotlib brings, so that a page is seen in a wide and in a narrow one whatever is installed
    "wide": {"": "DejaVuSans", "bold": "DejaVuSans-Bold", "italic": "DejaVuSans-Oblique"},
    "narrow": {"": "STIXGeneral", "bold": "STIXGeneralBol", "italic": "STIXGeneralItalic"},
}


def opened_in(chromium, file: Path, face: str):
    """Open the report in one of FACES, all of its text, and return the page."""
    page = chromium.new_page(bypass_csp=True)  # since the page's own policy lets it load no face
    page.goto(file.as_uri())
    page.add_style_tag(content=_style(face))
    page.evaluate("() => Promise.all([...document.fonts].map(each => each.load()))")
    return page


def _style(face: str) -> str:
    cuts = {"": "", "bold": "font-weight: bold;", "italic": "font-style: italic;"}
    rules = [
        f'@font-face {{ font-family: given; {cuts[cut]} src: url("data:font/ttf;base64,{_base64(name)}") }}'
        for cut, name in FACES[face].items()
    ]
    return "".join(rules) + ":root { --serif: given; --sans: given; --mono: given; --math: given }"


def _base64(name: str) -> str:
    return base64.b64encode(Path(matplotlib.get_data_path(), "fonts", "ttf", f"{name}.ttf").read_bytes()).decode()


@pytest.fixture(scope="session")
def installed_chromium():
    """The path of the Chromium that there is."""
    return export.chromium() or pytest.skip("there is no Chromium; `make .venv/browser` installs one where it can")


@pytest.fixture(scope="module")
def chromium(installed_chromium):
    """A running Chromium without a window, as Playwright's Browser; ends with the module, since the event loop that it
    occupies is in the way of kernels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=installed_chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def rendered(tmp_path_factory):
    """The report of a machine whose records are in git, with the notebooks that made them, rendered once for all
    processes of the tests: the path of a copy of its page, beside which RESULTS would be. Its executed chapters keep
    what `said` reads."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rendered"
    with filelock.FileLock(f"{folder}.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RESULTS", str(folder / "results"))
        if not page.page().exists():
            said.in_kernels(patch, folder / "ipython")
            names = {results.read(file)["environment"].get("run", "by hand") for file in results.files(MACHINE)}
            (paths.runs() / MACHINE).mkdir(parents=True)
            for name in names - {"by hand"}:
                (paths.runs() / MACHINE / f"{name}.ipynb").touch()
            assert report.main(["--machine", MACHINE]) == 0
    return shutil.copytree(folder, tmp_path_factory.mktemp("own") / "reports") / "report.html"


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: its folder of notebooks, and that of the records that they write."""

    url: str
    notebooks: Path
    results: Path

    def address(self, notebook: str) -> str:
        """Where a notebook of the folder opens, alone."""
        return f"{self.url}/lab/tree/{notebook}?reset&token={TOKEN}"


@pytest.fixture(scope="module")
def jupyterlab(tmp_path_factory):
    """JupyterLab on an empty folder, with settings of its own; the test puts its notebooks there."""
    folder = tmp_path_factory.mktemp("lab")
    for name, text in SETTINGS.items():
        (folder / "config" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "config" / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lab = Lab(f"http://127.0.0.1:{port}", folder / "notebooks", folder / "results")
    lab.notebooks.mkdir()
    own = {name: str(folder / name.split("_")[1].lower()) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    options = [
        "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0", f"--ServerApp.root_dir={lab.notebooks}", f"--IdentityProvider.token={TOKEN}",
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], stdout=log, stderr=subprocess.STDOUT,
            env=os.environ | own | {"RESULTS": str(lab.results), "PYTHONPATH": str(paths.ROOT)},
        )  # fmt: skip
    try:
        _wait_until_it_answers(lab, server, folder / "log")
        yield lab
    finally:
        server.terminate()
        server.wait(PATIENCE_S)


def _wait_until_it_answers(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            urllib.request.urlopen(f"{lab.url}/api/status?token={TOKEN}", timeout=5).close()
            return
        except urllib.error.URLError:
            if server.poll() is not None or time.monotonic() > end:
                pytest.fail(f"JupyterLab did not start: {log.read_text()[-2000:]}")
            time.sleep(0.2)
