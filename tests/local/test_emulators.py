"""Tests with Google's real emulators: started, used, stopped, and gone even after SIGKILL.

Fakes replace only a Docker engine and a broken or incomplete Cloud SDK.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from google.cloud import bigtable, pubsub_v1

from pipeline.cloud.connection.errors import ServerError
from pipeline.local import emulators
from pipeline.local.emulators import BIGTABLE, PUBSUB, Emulator, origins, running_emulator, running_emulators

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks into Linux's /proc")

EACH = pytest.mark.parametrize("emulator", [BIGTABLE, PUBSUB], ids=lambda emulator: emulator.gcloud_name)
FOUND_OR_BUILT_IN = pytest.mark.parametrize("embedded", [False, True], ids=["found", "embedded"])
FOUND = pytest.param(False, id="found", marks=pytest.mark.exhaustive)  # takes a second to start
BUILT_IN = pytest.mark.parametrize("embedded", [FOUND, pytest.param(True, id="embedded")])


@pytest.fixture(autouse=True)
def no_emulators_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BIGTABLE.variable, raising=False)
    monkeypatch.delenv(PUBSUB.variable, raising=False)


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Emulators that this module has started."""
    with running_emulators() as environment:
        yield environment


@pytest.fixture
def started(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names them in the environment, so that commands use them instead of starting others."""
    for variable, address in environment.items():
        monkeypatch.setenv(variable, address)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def processes(address: str) -> list[int]:
    """Returns the processes with the address's port on their command line: the emulator and its watching shell."""
    flag = f"--port={port_of(address)}".encode()
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
            if flag in cmdline.read_bytes().split(b"\0"):
                found.append(int(cmdline.parent.name))
    return found


def is_open(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port_of(address))) == 0


def is_gone(address: str) -> bool:
    return not is_open(address) and not processes(address)


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@contextmanager
def tidetable_emulators(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``tidetable emulators …`` in its own process group, as in a terminal."""
    command = [sys.executable, "-c", "from pipeline.cli.root import main; main()", "emulators", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def flags(embedded: bool) -> list[str]:
    return ["--embedded"] if embedded else []


def line_from(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().rstrip("\n")


def executable(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


# What an executable of a fake SDK runs, or a fake engine: a server at the port with which its last argument ends.
SERVES = f'for last; do :; done; exec {sys.executable} -m pipeline.local.embedded --port="${{last##*[:=]}}"'


@pytest.mark.usefixtures("started")
def test_googles_clients_are_answered() -> None:
    """Inside the block, Google's clients publish and pull, create a table, write and read."""
    topic, subscription = "projects/tidetable/topics/events", "projects/tidetable/subscriptions/events"
    with pubsub_v1.SubscriberClient() as subscriber:
        publisher = pubsub_v1.PublisherClient()
        publisher.create_topic(name=topic)
        subscriber.create_subscription(name=subscription, topic=topic)
        publisher.publish(topic, b"reading").result(timeout=30)
        pulled = subscriber.pull(subscription=subscription, max_messages=1, timeout=30)
    table = bigtable.Client(project="tidetable", admin=True).instance("local").table("readings")
    table.create(column_families={"raw": None})
    row = table.direct_row(b"sensor#1")
    row.set_cell("raw", b"temperature", b"23.5")
    row.commit()
    assert table.read_row(b"sensor#1").cell_value("raw", b"temperature") == b"23.5"
    assert [received.message.data for received in pulled.received_messages] == [b"reading"]


@BUILT_IN
def test_both_stop_after_the_block(embedded: bool) -> None:
    """After an exception in the block, the ports are closed and no process is left."""
    addresses: list[str] = []

    def fail_inside_the_block() -> None:
        with running_emulators(embedded=embedded) as environment:
            assert set(environment) == {"PUBSUB_EMULATOR_HOST", "BIGTABLE_EMULATOR_HOST"}
            addresses.extend(environment.values())
            assert all(is_open(address) and processes(address) for address in addresses)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside_the_block()
    assert eventually(lambda: all(map(is_gone, addresses)))


@FOUND_OR_BUILT_IN
def test_killed_owner_leaves_no_emulator_behind(embedded: bool) -> None:
    """SIGKILL of the owner ends both emulators, although the command that it ran survives."""
    script = "echo $PUBSUB_EMULATOR_HOST; echo $BIGTABLE_EMULATOR_HOST; echo $$; exec sleep 1000"
    with tidetable_emulators("run", *flags(embedded), "--", "sh", "-c", script) as owner:
        addresses = [line_from(owner), line_from(owner)]
        command = int(line_from(owner))
        assert all(map(processes, addresses))
        owner.kill()
        try:
            assert eventually(lambda: all(map(is_gone, addresses)))
        finally:
            os.kill(command, signal.SIGKILL)  # fails if it did not survive


@EACH
def test_listens_on_loopback_only(emulator: Emulator, environment: dict[str, str]) -> None:
    """The emulator's port listens only on 127.0.0.1, as IPv4 or as an IPv4-mapped IPv6 address."""
    address = environment[emulator.variable]
    tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    sockets = [line.split() for line in tables.splitlines()]
    listening = [local.split(":") for _, local, _, state, *_ in sockets if state == "0A"]
    hosts = {host for host, port in listening if int(port, 16) == port_of(address)}
    assert hosts in ({"0100007F"}, {"0000000000000000FFFF00000100007F"})  # words in little-endian order


def test_an_emulator_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator that the environment names is used and not stopped; if nothing answers there, it is an error."""
    with running_emulator(BIGTABLE) as address:
        monkeypatch.setenv(BIGTABLE.variable, address)
        monkeypatch.setenv("PATH", "")  # no emulator can be started
        with running_emulator(BIGTABLE) as used:
            assert used == address
        assert is_open(address)
    with pytest.raises(ServerError, match=f"BIGTABLE_EMULATOR_HOST is {address}, but nothing answers there"):
        running_emulator(BIGTABLE).__enter__()


@pytest.mark.parametrize("emulator", [BIGTABLE, pytest.param(PUBSUB, marks=pytest.mark.exhaustive)])
def test_another_port_is_tried_if_one_is_in_use(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """If another process takes the port, another port is tried, at most three in all."""
    with socket.create_server(("127.0.0.1", 0)) as other_process:
        taken, free = other_process.getsockname()[1], emulators._free_port()
        ports = iter([taken, free, taken, taken, taken])
        monkeypatch.setattr(emulators, "_free_port", lambda: next(ports))
        with running_emulator(emulator) as address:
            assert port_of(address) == free
        monkeypatch.setattr(emulators, "ATTEMPTS", 1 if emulator is PUBSUB else 3)  # this one takes seconds to start
        with pytest.raises(ServerError, match=r"port in use [13] times"):
            running_emulator(emulator).__enter__()


def test_a_wrapped_gcloud_is_asked_for_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If gcloud on the PATH is only a wrapper, its output locates the emulators."""
    answer = f'[ "$*" = "info --format=value(installation.sdk_root)" ] && echo {tmp_path}/sdk'
    executable(tmp_path / "bin/gcloud", answer)
    executable(tmp_path / "sdk/platform" / BIGTABLE.executable, f": > {tmp_path}/started; {SERVES}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with running_emulator(BIGTABLE) as address:
        assert is_open(address)
    assert (tmp_path / "started").exists()


def test_an_emulator_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If an emulator ends before it answers, the error is one line with the end of its log."""
    executable(tmp_path / "bin/gcloud", "")
    executable(tmp_path / "platform" / PUBSUB.executable, "echo 'ERROR: no java\n\nInstall it.'; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ServerError, match=r"^the Pub/Sub emulator did not start: ERROR: no java Install it\.$"):
        running_emulator(PUBSUB).__enter__()


def test_an_emulator_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator that survives SIGTERM is killed with all its children after a deadline."""
    executable(tmp_path / "bin/gcloud", "")
    executable(tmp_path / "platform" / BIGTABLE.executable, f"trap '' TERM; while :; do ({SERVES}); done")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(emulators, "STOP_SECONDS", 0.5)
    with running_emulator(BIGTABLE) as address:
        pass
    assert eventually(lambda: is_gone(address))


@EACH
def test_docker_runs_googles_image(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Cloud SDK, Docker runs Google's image, published only on loopback."""
    script = f'echo "$@" >> {tmp_path}/calls; [ "$1" = info ] && exit; {SERVES}'
    executable(tmp_path / "bin/docker", script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with running_emulator(emulator) as address:
        port = port_of(address)
    assert eventually(lambda: is_gone(address))
    assert (tmp_path / "calls").read_text().splitlines() == [
        "info",
        f"run --rm --init --publish=127.0.0.1:{port}:{port} google/cloud-sdk:emulators "
        f"gcloud beta emulators {emulator.gcloud_name} start --host-port=0.0.0.0:{port}",
    ]


@BUILT_IN
def test_run_has_both_emulators_in_its_environment(embedded: bool) -> None:
    """The command has both emulators in its environment; they are gone after it."""
    with tidetable_emulators("run", *flags(embedded), "--", "sh", "-c", "env; exit 7") as run:
        output, _ = run.communicate()
    addresses = dict(line.split("=", 1) for line in output.splitlines() if "_EMULATOR_HOST=" in line)
    assert set(addresses) == {"PUBSUB_EMULATOR_HOST", "BIGTABLE_EMULATOR_HOST"}
    assert run.returncode == 7
    assert eventually(lambda: all(map(is_gone, addresses.values())))


@pytest.mark.usefixtures("started")
def test_run_has_the_exit_code_of_its_command() -> None:
    """A command that a signal kills has the exit code that a shell gives it."""
    with tidetable_emulators("run", "--", "sh", "-c", "kill -KILL $$") as run:
        run.communicate()
    assert run.returncode == 128 + signal.SIGKILL


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_run_lets_its_command_answer_signals(signum: int) -> None:
    """SIGTERM and SIGHUP are passed on, and Ctrl-C reaches the whole terminal: the command handles all three."""
    send = os.killpg if signum == signal.SIGINT else os.kill
    script = f"""if True:
        import os, signal, sys
        signal.signal({signum}, lambda *_: sys.exit(5))
        print("ready", flush=True)
        signal.pause()"""
    with tidetable_emulators("run", sys.executable, "-c", script) as run:
        assert line_from(run) == "ready"
        send(run.pid, signum)
        assert run.wait(timeout=60) == 5


def test_run_of_an_unknown_command_is_127() -> None:
    """A command that is not on the PATH prints one line and exits with 127, as in a shell."""
    with tidetable_emulators("run", "no-such-command", "--flag") as run:
        assert run.communicate() == ("", "Error: no-such-command: command not found\n")
    assert run.returncode == 127


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive), signal.SIGTERM])
def test_start_runs_until_it_is_stopped(signum: int) -> None:
    """The variables are printed for a shell; Ctrl-C or SIGTERM stops both emulators with exit code 0."""
    with tidetable_emulators("start") as start:
        lines = [line_from(start), line_from(start)]
        assert [line.partition("=")[0] for line in lines] == [f"export {each.variable}" for each in (PUBSUB, BIGTABLE)]
        assert all(map(is_open, lines))
        assert start.stderr
        assert start.stderr.readline() == f"{origins()}\n"
        assert start.stderr.readline() == "Ctrl-C stops them\n"
        start.send_signal(signum)
        assert start.communicate() == ("", "")
    assert start.returncode == 0
    assert eventually(lambda: all(map(is_gone, lines)))


@BUILT_IN
def test_start_ends_if_an_emulator_dies(embedded: bool) -> None:
    """If an emulator dies, the other is stopped, and the exit code is 1."""
    name = "built-in" if embedded or "built-in" in origins() else "Bigtable"
    with tidetable_emulators("start", *flags(embedded)) as start:
        pubsub, bigtable = line_from(start), line_from(start)
        (emulator,) = [pid for pid in processes(bigtable) if os.getsid(pid) == pid]
        os.kill(emulator, signal.SIGKILL)
        _, errors = start.communicate()
    assert f"Error: the {name} emulator ended unexpectedly: " in errors
    assert start.returncode == 1
    assert eventually(lambda: is_gone(pubsub) and is_gone(bigtable))


def test_the_built_in_emulator_starts_at_once() -> None:
    """It serves both APIs, in one process, in well under a second of the processor's time."""
    before = os.times()
    with running_emulators(embedded=True) as environment:
        pubsub, bigtable = environment.values()
    after = os.times()
    assert pubsub == bigtable
    used_s = sum(after[2:4]) - sum(before[2:4])
    assert used_s < 0.8


def test_which_emulators_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the environment, else the SDK's, else Docker's, else the built-in one; a line says which."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    in_memory = "the built-in one, in memory, for trying out and tests"
    assert origins() == f"no Google emulator found: using {in_memory}"
    assert origins(embedded=True) == f"using {in_memory}"
    executable(tmp_path / "bin/docker", "exit 1")  # a client without an engine
    assert origins() == f"no Google emulator found: using {in_memory}"
    executable(tmp_path / "bin/docker", "")
    assert origins() == "using Google's emulator, in Docker"
    executable(tmp_path / "bin/gcloud", "")
    executable(tmp_path / "platform" / BIGTABLE.executable, "")
    assert origins() == (
        "Pub/Sub: Google's emulator, in Docker; Bigtable: Google's emulator, of the Cloud SDK"
    )  # fmt: skip
    executable(tmp_path / "platform" / PUBSUB.executable, "")
    assert origins() == "using Google's emulator, of the Cloud SDK"
    assert origins(embedded=True) == f"using {in_memory}"
    monkeypatch.setenv(BIGTABLE.variable, "localhost:8086")
    monkeypatch.setenv(PUBSUB.variable, "localhost:8085")
    assert origins() == "using the emulator that the environment names"
