"""Emulators, one pair per test process, and the SIGINT handler that tests of Ctrl-C need.

Every test creates its own topics and tables in the emulators.
"""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import settings

from pipeline.local.emulators import BIGTABLE, PUBSUB, Emulator, origins, running_emulator
from tests.support import preloaded

_EMULATORS = pytest.StashKey[str]()

settings.register_profile("all", deadline=None)  # the machine may be busy
settings.load_profile("all")
settings.register_profile("few", max_examples=20, deadline=None)  # for make test
settings.register_profile("fewest", max_examples=5, deadline=None)  # for make check


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds an option that chooses the emulators."""
    parser.addoption("--embedded", action="store_true", help="run on the built-in emulator, even if others are found")


def pytest_configure(config: pytest.Config) -> None:
    """Finds emulators, and runs the server of preloaded programs in the process that starts the others."""
    for emulator in (PUBSUB, BIGTABLE):
        os.environ.pop(emulator.variable, None)  # others may use those that the environment names
    config.stash[_EMULATORS] = origins(embedded=config.option.embedded)
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory()
        os.environ[preloaded.VARIABLE] = path = f"{folder.name}/socket"
        server = subprocess.Popen([sys.executable, preloaded.__file__, "serve", path], stdin=subprocess.PIPE)
        config.add_cleanup(lambda: (server.communicate(), folder.cleanup()))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[object]:
    """Lets one of several processes compile the tests first, which takes longer than all the others need after it."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    compiled = session.config._tmp_path_factory.getbasetemp().parent / "compiled"
    deadline = time.monotonic() + 60
    while worker not in (None, "gw0") and not compiled.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    try:
        return (yield)
    finally:
        gc.freeze()  # what is imported stays: the garbage collector need not look at it again
        if worker == "gw0":
            compiled.touch()


def pytest_report_header(config: pytest.Config) -> str:
    """Says which emulators the tests run on."""
    return f"emulators: {config.stash[_EMULATORS]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Counts the tests that miss something, with how to get it."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(skipped).items():
        terminalreporter.write_line(f"{count} tests did not run: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session", autouse=True)
def _no_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps the variables and profiles of whoever runs the tests away from the commands under test."""
    for name in [name for name in os.environ if name.startswith("TIDETABLE_")]:
        del os.environ[name]
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def bigtable(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of a Bigtable emulator that Google's clients in this process use."""
    yield from _exported(BIGTABLE, embedded=pytestconfig.option.embedded)


@pytest.fixture(scope="session")
def pubsub(pytestconfig: pytest.Config) -> Iterator[str]:
    """The address of a Pub/Sub emulator that Google's clients in this process use."""
    yield from _exported(PUBSUB, embedded=pytestconfig.option.embedded)


@pytest.fixture(scope="session")
def googles(pytestconfig: pytest.Config) -> None:
    """Skips what is about Google's own emulators where the tests do not run on them."""
    if "built-in" in pytestconfig.stash[_EMULATORS]:
        pytest.skip("they compare with Google's emulators, or start them; `gcloud components install` has them")


@pytest.fixture(scope="session")
def gcloud() -> str:
    """The path of gcloud; skips what it has to read where it is not installed."""
    return shutil.which("gcloud") or pytest.skip("gcloud is not installed")


@pytest.fixture
def sigint_interrupts() -> Iterator[None]:
    """Makes SIGINT interrupt this process and those started by the test.

    A shell starts its background jobs with SIGINT ignored, which every process below them inherits.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _exported(emulator: Emulator, *, embedded: bool) -> Iterator[str]:
    with running_emulator(emulator, embedded=embedded) as address:
        os.environ[emulator.variable] = address
        yield address
    os.environ.pop(emulator.variable)
