"""Headless Chromium, which Debian packages; make test installs it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with running_chromium() as browser:
        yield browser


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Runs the browser until the block ends."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert executable, "Chromium is not installed: run make browser, or install your system's package chromium"
    with sync_playwright() as playwright:
        # These tests load pages of ours alone; without a user namespace, as root, Chromium has no sandbox. Each window
        # would start two more processes for an address bar that nobody sees.
        off = "HttpsUpgrades,MediaRouter,OptimizationHints,PaintHolding,WebUIOmniboxAimPopup,WebUIOmniboxPopup"
        browser = playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", f"--disable-features={off}"]
        )
        yield browser
        browser.close()
