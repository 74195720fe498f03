"""Opens the page in a browser, as a person does, and checks what a person may not see."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from typing import Any

from playwright.sync_api import Browser, Page, expect

expect.set_options(timeout=20_000)  # the page asks for what is new every five seconds


@contextmanager
def opened(chromium: Browser, address: str, path: str = "", script: str = "", **options: Any) -> Iterator[Page]:
    """A page that logs no error, and asks no other host. The script runs before those of the page."""
    problems: list[str] = []
    with ExitStack() as stack:
        context = chromium.new_context(**options)
        context.add_init_script(script)
        stack.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a script ran: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
        page.goto(f"{address}/{path}")
        yield page
    assert problems == []


def violations(page: Page) -> list[tuple[str, list[str]]]:
    """Returns the rules of accessibility that axe-core finds broken, with the elements that break them."""
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run()")["violations"]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
