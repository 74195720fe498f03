"""Google's emulators as they are: started, used, stopped, and gone even after SIGKILL.

Fakes stand in only for what cannot be had: a Docker engine, a broken or half-installed Cloud SDK.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from google.cloud import bigtable, pubsub_v1

from pipeline.cloud.errors import ServerProblem
from pipeline.toolbox import emulators
from pipeline.toolbox.emulators import BIGTABLE, PUBSUB, Emulator, running_emulator, running_emulators

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks into Linux's /proc")

BOTH = pytest.mark.parametrize("emulator", [BIGTABLE, PUBSUB], ids=lambda emulator: emulator.gcloud_name)
TIDETABLE = [sys.executable, "-c", "from pipeline.toolbox.cli import main; main()", "emulators"]


@pytest.fixture(autouse=True)
def no_emulators_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for emulator in (BIGTABLE, PUBSUB):
        monkeypatch.delenv(emulator.variable, raising=False)


@pytest.fixture
def sdk_emulator() -> str:
    return str(Path(shutil.which("gcloud") or "").resolve().parents[1] / "platform" / BIGTABLE.executable)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def processes(address: str) -> list[int]:
    """The processes whose command line names the address's port; the emulator's own is the session's leader."""
    flag = f"--port={port_of(address)}".encode()
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if flag in cmdline.read_bytes().split(b"\0"):
                found.append(int(cmdline.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
    return sorted(found, key=lambda pid: os.getsid(pid) != pid)


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
def tidetable(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """``tidetable emulators …`` in a process group of its own, as in a terminal."""
    with subprocess.Popen(
        [*TIDETABLE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def printed_addresses(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    return [process.stdout.readline().strip().partition("=")[2] for _ in range(2)]


def test_pubsub_delivers_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the block Google's own Pub/Sub client publishes and pulls."""
    with running_emulator(PUBSUB) as address:
        monkeypatch.setenv(PUBSUB.variable, address)
        topic, subscription = "projects/tidetable/topics/events", "projects/tidetable/subscriptions/events"
        with pubsub_v1.SubscriberClient() as subscriber:
            publisher = pubsub_v1.PublisherClient()
            publisher.create_topic(name=topic)
            subscriber.create_subscription(name=subscription, topic=topic)
            publisher.publish(topic, b"reading").result(timeout=30)
            pulled = subscriber.pull(subscription=subscription, max_messages=1, timeout=30)
            publisher.transport.close()
    assert [received.message.data for received in pulled.received_messages] == [b"reading"]


def test_bigtable_reads_back_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside the block Google's own Bigtable client creates a table, writes and reads."""
    with running_emulator(BIGTABLE) as address:
        monkeypatch.setenv(BIGTABLE.variable, address)
        table = bigtable.Client(project="tidetable", admin=True).instance("local").table("readings")
        table.create(column_families={"raw": None})
        row = table.direct_row(b"sensor#1")
        row.set_cell("raw", b"temperature", b"23.5")
        row.commit()
        assert table.read_row(b"sensor#1").cell_value("raw", b"temperature") == b"23.5"


def test_both_are_gone_after_the_block() -> None:
    """When the block ends by an exception too, the ports are closed and no process is left."""
    with pytest.raises(ZeroDivisionError), running_emulators() as environment:
        assert set(environment) == {"PUBSUB_EMULATOR_HOST", "BIGTABLE_EMULATOR_HOST"}
        assert all(is_open(address) and processes(address) for address in environment.values())
        _ = 1 / 0
    assert eventually(lambda: all(map(is_gone, environment.values())))


def test_killed_owner_leaves_no_emulator_behind() -> None:
    """SIGKILL of the owner ends both emulators, though the command it ran lives on."""
    script = "import os; print('=' + os.environ['PUBSUB_EMULATOR_HOST']);"
    script += "print('=' + os.environ['BIGTABLE_EMULATOR_HOST']); print(os.getpid(), flush=True); input()"
    with tidetable("run", "--", sys.executable, "-c", script) as owner:
        assert owner.stdout
        addresses = printed_addresses(owner)
        command = int(owner.stdout.readline())
        owner.kill()
        try:
            assert eventually(lambda: all(map(is_gone, addresses)))
            os.kill(command, 0)
        finally:
            os.kill(command, signal.SIGKILL)


@BOTH
def test_listens_on_loopback_only(emulator: Emulator) -> None:
    """Every socket on which an emulator listens is bound to a loopback address."""
    with running_emulator(emulator) as address:
        listening = listening_addresses(processes(address))
    assert (f"127.0.0.1:{port_of(address)}") in listening
    assert all(ip_address(listener.rpartition(":")[0]).is_loopback for listener in listening)


def listening_addresses(pids: list[int]) -> set[str]:
    links = [os.readlink(link) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir()]
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path("/proc/net", table).read_text().splitlines()]
    listening = [line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in links]
    return {decoded(*local.split(":")) for local in listening}


def decoded(host: str, port: str) -> str:
    """An address of /proc/net/tcp: hexadecimal, in words of four bytes, each in the machine's order."""
    words = [int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8)]
    address = ip_address(b"".join(words))
    return f"{getattr(address, 'ipv4_mapped', None) or address}:{int(port, 16)}"


def test_one_already_in_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator that the environment names is yielded as it is, and still runs after the block."""
    with running_emulator(BIGTABLE) as address:
        monkeypatch.setenv(BIGTABLE.variable, address)
        monkeypatch.setenv("PATH", "")  # nothing could be started
        with running_emulator(BIGTABLE) as used:
            assert used == address
        assert is_open(address)


def test_a_dead_address_in_the_environment_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable left over from an emulator that has gone is an error which names it."""
    monkeypatch.setenv(BIGTABLE.variable, f"127.0.0.1:{emulators._free_port()}")
    monkeypatch.setattr(emulators, "ANSWER_SECONDS", 0.5)
    with pytest.raises(ServerProblem, match="BIGTABLE_EMULATOR_HOST is 127.0.0.1:.*nothing answers"):
        running_emulator(BIGTABLE).__enter__()


@BOTH
def test_a_taken_port_is_tried_again(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """When somebody takes the port first, another port is tried; three times is enough to give up."""
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken, free = somebody.getsockname()[1], emulators._free_port()
        ports = iter([taken, free])
        monkeypatch.setattr(emulators, "_free_port", lambda: next(ports))
        with running_emulator(emulator) as address:
            assert address == f"127.0.0.1:{free}"
        monkeypatch.setattr(emulators, "_free_port", lambda: taken)
        with pytest.raises(ServerProblem, match="port taken 3 times"):
            running_emulator(emulator).__enter__()


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_wrapped_gcloud_is_asked_for_its_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sdk_emulator: str
) -> None:
    """Where gcloud on the PATH is only a wrapper, its own answer leads to the emulators."""
    root = Path(sdk_emulator).parents[2]
    executable(tmp_path / "bin/gcloud", f'[ "$*" = "info --format=value(installation.sdk_root)" ] && echo {root}')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with running_emulator(BIGTABLE) as address:
        assert is_open(address)


@BOTH
def test_docker_runs_googles_image(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sdk_emulator: str
) -> None:
    """Without a Cloud SDK a Docker engine runs Google's image, published on loopback only, until the block ends."""
    calls = tmp_path / "calls"
    executable(
        tmp_path / "bin/docker",
        f'echo "$@" >> {calls}; [ "$1" = info ] && exit; for last; do :; done; '
        f'exec {sdk_emulator} --host=127.0.0.1 --port="${{last##*:}}"',
    )
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with running_emulator(emulator) as address:
        assert is_open(address)
    assert eventually(lambda: is_gone(address))
    port = port_of(address)
    assert calls.read_text().splitlines() == [
        "info",
        f"run --rm --init --publish=127.0.0.1:{port}:{port} google/cloud-sdk:emulators "
        f"gcloud beta emulators {emulator.gcloud_name} start --host-port=0.0.0.0:{port}",
    ]


@pytest.mark.parametrize(
    ("root", "advice"),
    [
        (None, "cloud.google.com/sdk/docs/install.*gcloud components install .*pubsub-emulator bigtable.*Docker"),
        ("/opt/google-cloud-sdk", "run 'gcloud components install beta pubsub-emulator bigtable'"),
        ("/usr/lib/google-cloud-sdk", "apt-get install google-cloud-cli-pubsub-emulator google-cloud-cli-bigtable"),
    ],
)
def test_nothing_found_says_how_to_install(
    root: str | None, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without emulators and without a Docker engine, one line gives the command that installs them."""
    executable(tmp_path / "docker", "exit 1")  # a client without an engine
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(emulators, "_sdk_root", lambda: root and Path(root) / "absent" / "..")
    with pytest.raises(ServerProblem, match=advice) as problem:
        running_emulator(BIGTABLE).__enter__()
    assert "\n" not in str(problem.value)
