"""Backfills whose pipelines are built faster, and whose notes are in a folder of their own."""

from pathlib import Path

import pytest

from tests.support.untyped import unchecked_types as unchecked_types


@pytest.fixture(autouse=True)
def state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns the folder of the notes of interrupted backfills."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"
