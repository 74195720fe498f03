"""Emulators that the environment names: whether they answer is checked once, within seconds."""

import socket

import pytest

from pipeline.cloud.connection import emulators
from pipeline.cloud.connection.emulators import BIGTABLE, PUBSUB, check_emulator
from pipeline.cloud.connection.errors import ServerError
from pipeline.local.emulators import BIGTABLE as BIGTABLE_EMULATOR
from pipeline.local.emulators import running_emulator


@pytest.fixture(autouse=True)
def nothing_checked_before():
    """The port may be one that another test's server had."""
    emulators._check.cache_clear()


@pytest.mark.parametrize("variable", [BIGTABLE, PUBSUB])
@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost", "http://localhost:1", "nowhere.invalid:8086"])
def test_an_address_without_an_emulator(variable, address, monkeypatch):
    """The error names the variable and its value."""
    monkeypatch.setenv(variable, address)
    with pytest.raises(ServerError, match=f"^{variable} is {address}, but nothing answers there: "):
        check_emulator(variable)


def test_a_silent_server(monkeypatch):
    """A server that accepts connections and says nothing, as Docker's proxy does, is not waited for either."""
    monkeypatch.setattr(emulators, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv(BIGTABLE, address)
        with pytest.raises(ServerError, match=f"{BIGTABLE} is {address}, but nothing answers there"):
            check_emulator(BIGTABLE)


def test_an_emulator_that_went_away(monkeypatch):
    """An emulator that has answered is not checked again: a job waits until it is back."""
    with running_emulator(BIGTABLE_EMULATOR) as address:
        monkeypatch.setenv(BIGTABLE, address)
        check_emulator(BIGTABLE)
    check_emulator(BIGTABLE)


def test_no_emulator(monkeypatch):
    """Without the variable, Google's servers are used, and nothing is checked."""
    monkeypatch.delenv(BIGTABLE, raising=False)
    check_emulator(BIGTABLE)
