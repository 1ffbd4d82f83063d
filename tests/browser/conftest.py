"""JupyterLab in Chromium, for every browser test: the `lab` fixture."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.jupyter import Lab, LabServer

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for the session. Without one the tests fail: a skipped browser test proves nothing."""
    named = os.environ.get("MINIKV_CHROMIUM")
    found = named or next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail("no Chromium: install it, or name it in MINIKV_CHROMIUM", pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=list(CHROMIUM_FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """One JupyterLab for the session, with settings and notebooks of its own."""
    with LabServer(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture
def lab(browser: Browser, lab_server: LabServer, tmp_path: Path) -> Iterator[Lab]:
    """A fresh page in JupyterLab. Errors on the browser's console fail the test."""
    lab = Lab(browser, lab_server)
    yield lab
    errors = lab.close()
    assert not errors, f"errors on the browser's console: {errors}"
