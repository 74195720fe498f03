"""Batch writers that do not wait for a job's rows, where no job is beside them."""

import pytest

from pipeline.core.rollups import settling


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    """Settles roll-ups again at once."""
    monkeypatch.setattr(settling, "_ON_THEIR_WAY_S", 0)
