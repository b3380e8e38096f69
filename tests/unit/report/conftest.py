"""The browser of the tests of pages."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The distribution's Chromium; skips where it is missing (Debian: `apt install chromium`).

    Its event loop runs in this thread until it is closed; other tests could not start their own.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=QUIET)
        yield found
        found.close()
