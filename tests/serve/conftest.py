"""Headless Chromium, which Debian packages; make test installs it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

MISSING = "Chromium is not installed: run make browser, or install your system's package chromium"


@pytest.fixture(scope="module")  # while it runs, asyncio can't run anything else in this process
def chromium() -> Iterator[Browser]:
    if executable() is None:
        pytest.skip(MISSING)
    with running_chromium() as browser:
        yield browser


def executable() -> str | None:
    """Returns the browser's path, or None if it is not installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Runs the browser until the block ends."""
    path = executable()
    assert path, MISSING
    with sync_playwright() as playwright:
        # These tests load pages of ours alone; without a user namespace, as root, Chromium has no sandbox. Each window
        # would start two more processes for an address bar that nobody sees.
        off = "HttpsUpgrades,MediaRouter,OptimizationHints,PaintHolding,WebUIOmniboxAimPopup,WebUIOmniboxPopup"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", f"--disable-features={off}"])
        yield browser
        browser.close()
