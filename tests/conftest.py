"""Emulators, one pair for all test processes.

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
from contextlib import ExitStack, suppress
from multiprocessing.connection import Client, Listener
from threading import Thread

import pytest
from hypothesis import settings

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import BIGTABLE, PUBSUB, Emulator, origins, running_emulator
from tests.support import preloaded

_EMULATORS = pytest.StashKey[str]()
_created: list[tuple[str, TableName]] = []  # the address of the emulator and the name of each table of a module
_ON_GOOGLES = {"cloud", "faults", "job", "local", "table"}  # folders whose tests show how Google's emulators behave
_LENDER = "LENDER_OF_EMULATORS"  # the variable with the path of the socket where a test process gets their addresses

settings.register_profile("all", deadline=None)  # the machine may be busy
settings.load_profile("all")
settings.register_profile("few", max_examples=10, deadline=None)  # for make test
settings.register_profile("fewest", max_examples=5, deadline=None)  # for make check


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds an option that chooses the emulators."""
    parser.addoption("--embedded", action="store_true", help="run on the built-in emulator, even if others are found")
    parser.addoption("--mixed", action="store_true", help="run what needs a table alone on the built-in emulator")


def pytest_configure(config: pytest.Config) -> None:
    """Finds emulators. The process that starts the others runs the emulators and the server of preloaded programs."""
    for emulator in (PUBSUB, BIGTABLE):
        os.environ.pop(emulator.variable, None)  # others may use those that the environment names
    # A shell starts its background jobs with SIGINT ignored, which every process below them inherits.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_EMULATORS] = origins(embedded=config.option.embedded)
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory()
        os.environ[preloaded.VARIABLE] = path = f"{folder.name}/socket"
        server = subprocess.Popen([sys.executable, preloaded.__file__, "serve", path], stdin=subprocess.PIPE)
        config.add_cleanup(lambda: (server.communicate(), folder.cleanup()))
        listener, running = Listener(family="AF_UNIX"), ExitStack()
        os.environ[_LENDER] = str(listener.address)
        config.add_cleanup(running.close)
        Thread(target=_lend, args=(listener, running), daemon=True).start()


def _lend(listener: Listener, running: ExitStack) -> None:
    """Starts each emulator when a test process first asks for it, and answers with its address or the problem."""
    answers: dict[tuple[Emulator, bool], str | Exception] = {}
    while True:
        with listener.accept() as client:
            emulator, embedded = asked = client.recv()
            if asked not in answers:
                try:
                    answers[asked] = running.enter_context(running_emulator(emulator, embedded=embedded))
                except Exception as error:  # noqa: BLE001 (raised in the process that asked)
                    answers[asked] = error
            client.send(answers[asked])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of a module that says so on the built-in emulators too; in a mixed run, some on these alone."""
    options = metafunc.config.option
    fixtures = [each for each in ("bigtable", "pubsub") if each in metafunc.fixturenames]
    which = []
    if metafunc.definition.get_closest_marker("on_both"):
        which = [False, True]
    elif options.mixed and not _ON_GOOGLES & set(metafunc.definition.path.relative_to(metafunc.config.rootpath).parts):
        which = [True]
    if fixtures and which and not options.embedded:
        values = [[embedded] * len(fixtures) for embedded in which]
        ids = ["built-in" if embedded else "" for embedded in which]
        metafunc.parametrize(fixtures, values, indirect=True, ids=ids, scope="session")


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
    mixed = "; the built-in one for tests that need a table alone" if config.option.mixed else ""
    return f"emulators: {config.stash[_EMULATORS]}{mixed}"


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
def bigtable(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Bigtable emulator that Google's clients in this process use."""
    from pipeline.cloud.tables import tables

    create = tables.create

    def noted(name: TableName, schema: TableSchema) -> bool:
        _created.append((os.environ[BIGTABLE.variable], name))
        return create(name, schema)

    tables.create = noted
    yield from _exported(BIGTABLE, request)
    tables.create = create


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Deletes a module's tables after its last test: the emulator looks for what it may collect once a second."""
    if _created and (nextitem is None or nextitem.path != item.path):
        from pipeline.cloud.tables import tables

        for address, name in _created:
            if os.environ.get(BIGTABLE.variable) == address:
                with suppress(ServerError):
                    tables.delete(name)
        _created.clear()


@pytest.fixture(scope="session")
def pubsub(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Pub/Sub emulator that Google's clients in this process use."""
    yield from _exported(PUBSUB, request)


@pytest.fixture(scope="session")
def googles(pytestconfig: pytest.Config) -> None:
    """Skips what is about Google's own emulators where the tests do not run on them."""
    if "built-in" in pytestconfig.stash[_EMULATORS]:
        pytest.skip("they compare with Google's emulators, or start them; `gcloud components install` has them")


@pytest.fixture(scope="session")
def gcloud() -> str:
    """The path of gcloud; skips what it has to read where it is not installed."""
    return shutil.which("gcloud") or pytest.skip("gcloud is not installed")


def _exported(emulator: Emulator, request: pytest.FixtureRequest) -> Iterator[str]:
    with Client(os.environ[_LENDER]) as lender:
        lender.send((emulator, getattr(request, "param", request.config.option.embedded)))
        address = lender.recv()
    if isinstance(address, Exception):
        raise address
    os.environ[emulator.variable] = address
    yield address
    os.environ.pop(emulator.variable)
