"""The real emulators, one pair for each test process; every test makes topics and tables of its own in them."""

import os
from collections.abc import Iterator

import pytest

from pipeline.local.emulators import BIGTABLE, PUBSUB, Emulator, running_emulator


@pytest.fixture(scope="session")
def bigtable() -> Iterator[str]:
    """The address of a Bigtable emulator that Google's clients in this process use."""
    yield from _exported(BIGTABLE)


@pytest.fixture(scope="session")
def pubsub() -> Iterator[str]:
    """The address of a Pub/Sub emulator that Google's clients in this process use."""
    yield from _exported(PUBSUB)


def _exported(emulator: Emulator) -> Iterator[str]:
    before = os.environ.pop(emulator.variable, None)  # a test run never writes to a server that others use
    with running_emulator(emulator) as address:
        os.environ[emulator.variable] = address
        yield address
    os.environ.pop(emulator.variable)
    if before is not None:
        os.environ[emulator.variable] = before
