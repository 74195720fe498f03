"""Short waits for the tests of ``tidetable dead-letters``."""

import pytest

from pipeline.cloud.pubsub.backlog import Backlog


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause of half a second counts as the end where a command asks for a second: an emulator answers at once."""
    pages = Backlog.pages
    monkeypatch.setattr(
        Backlog, "pages", lambda *args, wait_seconds, **how: pages(*args, wait_seconds=wait_seconds / 2, **how)
    )
