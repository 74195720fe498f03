"""Finds emulators of Pub/Sub and Bigtable, runs them on free loopback ports, and always stops them.

Google's run if they are installed, else those of Docker's image, else the built-in one. Python code uses ``with
running_emulators() as environment:``, or ``with running_emulator(BIGTABLE)`` for a single emulator. ``tidetable
emulators`` does the same in a shell.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import click
import grpc

from pipeline.cli.hints import ExampleGroup
from pipeline.cloud.connection.emulators import answers
from pipeline.cloud.connection.errors import ServerError
from pipeline.local.processes import start_watched

IMAGE = "google/cloud-sdk:emulators"
READY_SECONDS = 60.0
DOWNLOAD_SECONDS = 600.0  # Docker downloads the image on first use
STOP_SECONDS = 10.0
ATTEMPTS = 3


@dataclass(frozen=True)
class Emulator:
    """An emulator of the Cloud SDK."""

    name: str
    variable: str  # the environment variable that Google's clients read
    gcloud_name: str  # its name in gcloud beta emulators
    executable: str  # relative to the SDK's platform/


PUBSUB = Emulator("Pub/Sub", "PUBSUB_EMULATOR_HOST", "pubsub", "pubsub-emulator/bin/cloud-pubsub-emulator")
BIGTABLE = Emulator("Bigtable", "BIGTABLE_EMULATOR_HOST", "bigtable", "bigtable-emulator/cbtemulator")


class Origin(Enum):
    """Where an emulator comes from; the value tells a person."""

    ENVIRONMENT = "the emulator that the environment names"
    SDK = "Google's emulator, of the Cloud SDK"
    DOCKER = "Google's emulator, in Docker"
    BUILT_IN = "the built-in one, in memory, for trying out and tests"


def origins(*, embedded: bool = False) -> str:
    """Returns a line that tells which emulators :func:`running_emulators` would run."""
    pubsub, bigtable = (_origin(emulator, embedded=embedded) for emulator in (PUBSUB, BIGTABLE))
    if pubsub is not bigtable:
        return f"Pub/Sub: {pubsub.value}; Bigtable: {bigtable.value}"
    missing = "" if embedded or pubsub is not Origin.BUILT_IN else "no Google emulator found: "
    return f"{missing}using {pubsub.value}"


@contextmanager
def running_emulators(*, embedded: bool = False) -> Iterator[dict[str, str]]:
    """Runs both emulators until the block ends, and waits until they answer.

    An emulator whose environment variable is already set is used, and neither started nor stopped.

    Args:
        embedded: whether to run the built-in emulator, even if others are installed.

    Yields:
        The environment variables with their addresses. This process's environment is not changed.

    Raises:
        ServerError: an emulator does not start, or does not answer.
    """
    with _serving_both(embedded=embedded) as (pubsub, bigtable):
        yield {PUBSUB.variable: pubsub.address, BIGTABLE.variable: bigtable.address}


@contextmanager
def running_emulator(emulator: Emulator, *, embedded: bool = False) -> Iterator[str]:
    """Runs a single emulator like :func:`running_emulators`, and yields its address."""
    with _serving(emulator, _origin(emulator, embedded=embedded)) as server:
        yield server.address


class _EmulatorProcess:
    """An emulator process in its own session, which the terminal's Ctrl-C does not reach."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (stop closes it)
        self._process = start_watched(command, stdout=self._log, stderr=subprocess.STDOUT)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def found_port_in_use(self) -> bool:
        # Reads the log: the Pub/Sub emulator does not exit when it cannot bind.
        return re.search(r"already (in use|allocated)", self._log_tail()) is not None

    def problem(self, what: str) -> ServerError:
        """Returns a ServerError that states what happened, with the end of the emulator's log."""
        lines = [line.strip() for line in self._log_tail().splitlines() if line and not line.startswith("\tat ")]
        output = " ".join(lines[-3:])[-400:] or "it printed nothing"
        return ServerError(f"the {self._name} emulator {what}: {output}")

    def stop(self) -> None:
        try:
            self._process.communicate(b"\n", timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _log_tail(self) -> str:
        # pread: a seek would move the file position, which the emulator shares and writes at.
        log, length = self._log.fileno(), 16_384
        return os.pread(log, length, max(0, os.fstat(log).st_size - length)).decode(errors="replace")


@dataclass(frozen=True)
class _Server:
    address: str
    process: _EmulatorProcess | None  # None if it was already running


@contextmanager
def _serving_both(*, embedded: bool) -> Iterator[tuple[_Server, _Server]]:
    """Serves Pub/Sub and Bigtable. The built-in emulator is one process for both."""
    origin, of_bigtable = (_origin(emulator, embedded=embedded) for emulator in (PUBSUB, BIGTABLE))
    with _serving(PUBSUB, origin) as pubsub:
        if origin is of_bigtable is Origin.BUILT_IN:
            yield pubsub, pubsub
        else:
            with _serving(BIGTABLE, of_bigtable) as bigtable:
                yield pubsub, bigtable


@contextmanager
def _serving(emulator: Emulator, origin: Origin) -> Iterator[_Server]:
    if origin is not Origin.ENVIRONMENT:
        with _started(emulator, origin) as server:
            yield server
        return
    address = os.environ[emulator.variable]
    if not answers(address):
        raise ServerError(f"{emulator.variable} is {address}, but nothing answers there; unset it to start an emulator")
    yield _Server(address, None)


@contextmanager
def _started(emulator: Emulator, origin: Origin) -> Iterator[_Server]:
    command, ready_seconds = _command(emulator, origin)
    name = "built-in" if origin is Origin.BUILT_IN else emulator.name
    for _ in range(ATTEMPTS):
        port = _free_port()
        process = _EmulatorProcess(name, command(port))
        try:
            address = f"127.0.0.1:{port}"
            if _becomes_ready(process, address, ready_seconds):
                yield _Server(address, process)
                return
        finally:
            process.stop()
    raise ServerError(f"the {name} emulator found its port in use {ATTEMPTS} times in a row")


def _becomes_ready(process: _EmulatorProcess, address: str, seconds: float) -> bool:
    """Waits until the emulator answers. Returns False if another process has taken its port."""
    deadline = time.monotonic() + seconds
    with _channel(address) as channel:
        while True:
            answers = _answers(channel, 0.5)
            if process.found_port_in_use():
                return False
            if process.has_ended():
                raise process.problem("did not start")
            if answers:
                return True
            if time.monotonic() > deadline:
                raise process.problem(f"did not answer within {seconds:.0f} s")


def _channel(address: str) -> grpc.Channel:
    # gRPC's default backoff starts at one second and grows to two minutes.
    options = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    return grpc.insecure_channel(address, options=options)


def _answers(channel: grpc.Channel, seconds: float) -> bool:
    """Returns whether a gRPC server answers in time. UNIMPLEMENTED is an answer, too."""
    # Not channel_ready_future: closing the channel under its polling thread can print a traceback.
    try:
        channel.unary_unary("/tidetable/Ready")(b"", timeout=seconds, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNIMPLEMENTED
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _origin(emulator: Emulator, *, embedded: bool) -> Origin:
    if embedded:
        return Origin.BUILT_IN
    if os.environ.get(emulator.variable):
        return Origin.ENVIRONMENT
    if _executable(emulator).is_file():
        return Origin.SDK
    return Origin.DOCKER if _output(["docker", "info"], seconds=5) is not None else Origin.BUILT_IN


def _command(emulator: Emulator, origin: Origin) -> tuple[Callable[[int], list[str]], float]:
    """Returns a function from a port to the emulator's command, and the seconds it may take to answer."""
    if origin is Origin.SDK:
        executable = str(_executable(emulator))
        return lambda port: [executable, "--host=127.0.0.1", f"--port={port}"], READY_SECONDS
    if origin is Origin.DOCKER:
        click.echo(f"The {emulator.name} emulator runs in Docker; first use downloads {IMAGE}", err=True)
        return lambda port: _docker_command(emulator, port), DOWNLOAD_SECONDS
    return lambda port: [sys.executable, "-m", "pipeline.local.embedded", f"--port={port}"], READY_SECONDS


def _executable(emulator: Emulator) -> Path:
    return (_sdk_root() or Path()) / "platform" / emulator.executable


def _sdk_root() -> Path | None:
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return None
    # Running gcloud takes a second or more; needed only if this gcloud is a wrapper outside the SDK.
    root = Path(gcloud).resolve().parent.parent
    if (root / "platform").is_dir():
        return root
    answer = _output([gcloud, "info", "--format=value(installation.sdk_root)"], seconds=60)
    return Path(answer) if answer else None


def _docker_command(emulator: Emulator, port: int) -> list[str]:
    # --init: as process 1, gcloud's shell script would ignore SIGTERM.
    gcloud = ["gcloud", "beta", "emulators", emulator.gcloud_name, "start", f"--host-port=0.0.0.0:{port}"]
    return ["docker", "run", "--rm", "--init", f"--publish=127.0.0.1:{port}:{port}", IMAGE, *gcloud]


def _output(command: Sequence[str], seconds: float) -> str | None:
    """Returns a program's output, or None if the program is missing, fails or takes too long."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


@click.group(cls=ExampleGroup)
def emulators() -> None:
    """Run emulators of Pub/Sub and Bigtable: Google's, from the Cloud SDK or Docker, or else the built-in one.

    If PUBSUB_EMULATOR_HOST or BIGTABLE_EMULATOR_HOST is already set, that emulator is used and not started.
    """


embedded_option = click.option(
    "--embedded", is_flag=True, help="Use the built-in emulator, in memory, even if Google's are installed."
)


@emulators.command(context_settings={"allow_interspersed_args": False})
@embedded_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, command: tuple[str, ...], *, embedded: bool) -> None:
    """Run COMMAND with both emulators, and stop them when it ends.

    COMMAND finds the emulators through its environment. The exit code is COMMAND's, or 128 plus the signal number if a
    signal ended it.
    """
    if shutil.which(command[0]) is None:
        click.echo(f"Error: {command[0]}: command not found", err=True)
        ctx.exit(127)
    click.echo(origins(embedded=embedded), err=True)
    with running_emulators(embedded=embedded) as environment:
        exit_code = _run(command, environment)
    ctx.exit(exit_code)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=os.environ | environment)
    except OSError as error:
        raise click.ClickException(f"{command[0]}: {error.strerror}") from error
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda signum, _: process.send_signal(signum))
    # A terminal sends Ctrl-C to the command as well; the command decides what to do.
    signal.signal(signal.SIGINT, lambda *_: None)
    returncode = process.wait()
    return returncode if returncode >= 0 else 128 - returncode


@emulators.command()
@embedded_option
def start(*, embedded: bool) -> None:
    """Run both emulators until Ctrl-C or SIGTERM.

    Prints the environment variables to export.
    """
    # An event, not an exception: an exception raised inside a destructor would be lost.
    stopped = threading.Event()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: stopped.set())
    click.echo(origins(embedded=embedded), err=True)
    with _serving_both(embedded=embedded) as (pubsub, bigtable):
        click.echo(f"export {PUBSUB.variable}={pubsub.address}")
        click.echo(f"export {BIGTABLE.variable}={bigtable.address}")
        started = [server.process for server in {pubsub, bigtable} if server.process]
        click.echo("Ctrl-C stops them" if started else "Both are already running; nothing was started", err=True)
        while started and not stopped.wait(0.2):
            for process in started:
                if process.has_ended():
                    raise process.problem("ended unexpectedly")
