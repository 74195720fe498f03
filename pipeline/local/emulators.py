"""Finds Google's Pub/Sub and Bigtable emulators, runs them on free loopback ports, and always stops them.

Python code uses ``with running_emulators() as environment:``, or ``with running_emulator(BIGTABLE)`` for a single
emulator. ``tidetable emulators`` does the same in a shell.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import grpc

from pipeline.cli.examples import ExampleGroup
from pipeline.cloud.connection.emulators import answers
from pipeline.cloud.connection.errors import ServerProblem
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


@contextmanager
def running_emulators() -> Iterator[dict[str, str]]:
    """Runs both emulators until the block ends, and waits until they answer.

    An emulator whose environment variable is already set is used, and neither started nor stopped.

    Yields:
        The environment variables with their addresses. This process's environment is not changed.

    Raises:
        ServerProblem: an emulator is not installed, does not start, or does not answer.
    """
    with running_emulator(BIGTABLE) as bigtable, running_emulator(PUBSUB) as pubsub:
        yield {PUBSUB.variable: pubsub, BIGTABLE.variable: bigtable}


@contextmanager
def running_emulator(emulator: Emulator) -> Iterator[str]:
    """Runs a single emulator like :func:`running_emulators`, and yields its address."""
    with _serving(emulator) as server:
        yield server.address


class _Process:
    """An emulator process in its own session, which the terminal's Ctrl-C does not reach."""

    def __init__(self, emulator: Emulator, command: Sequence[str]) -> None:
        self._name = emulator.name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (stop closes it)
        self._process = start_watched(command, stdout=self._log, stderr=subprocess.STDOUT)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def found_port_in_use(self) -> bool:
        # Reads the log: the Pub/Sub emulator does not exit when it cannot bind.
        return re.search(r"already (in use|allocated)", self._log_tail()) is not None

    def problem(self, what: str) -> ServerProblem:
        """Returns a ServerProblem that states what happened, with the end of the emulator's log."""
        lines = [line.strip() for line in self._log_tail().splitlines() if line and not line.startswith("\tat ")]
        output = " ".join(lines[-3:])[-400:] or "it printed nothing"
        return ServerProblem(f"the {self._name} emulator {what}: {output}")

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
    process: _Process | None  # None if it was already running


@contextmanager
def _serving(emulator: Emulator) -> Iterator[_Server]:
    address = os.environ.get(emulator.variable)
    if not address:
        with _started(emulator) as server:
            yield server
        return
    if not answers(address):
        raise ServerProblem(
            f"{emulator.variable} is {address}, but nothing answers there; unset it to start an emulator"
        )
    yield _Server(address, None)


@contextmanager
def _started(emulator: Emulator) -> Iterator[_Server]:
    command, ready_seconds = _find(emulator)
    for _ in range(ATTEMPTS):
        port = _free_port()
        process = _Process(emulator, command(port))
        try:
            address = f"127.0.0.1:{port}"
            if _becomes_ready(process, address, ready_seconds):
                yield _Server(address, process)
                return
        finally:
            process.stop()
    raise ServerProblem(f"the {emulator.name} emulator found its port in use {ATTEMPTS} times in a row")


def _becomes_ready(process: _Process, address: str, seconds: float) -> bool:
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


def _find(emulator: Emulator) -> tuple[Callable[[int], list[str]], float]:
    """Returns a function from a port to the emulator's command, and the seconds it may take to answer."""
    root = _sdk_root()
    if root and (executable := root / "platform" / emulator.executable).is_file():
        return lambda port: [str(executable), "--host=127.0.0.1", f"--port={port}"], READY_SECONDS
    if _output(["docker", "info"], seconds=5) is not None:
        click.echo(f"The {emulator.name} emulator runs in Docker; first use downloads {IMAGE}", err=True)
        return lambda port: _docker_command(emulator, port), DOWNLOAD_SECONDS
    raise ServerProblem(f"no {emulator.name} emulator on this machine: {_how_to_install(root)}")


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


def _how_to_install(sdk_root: Path | None) -> str:
    components = "gcloud components install beta pubsub-emulator bigtable"
    if sdk_root is None:
        cli = "the Google Cloud CLI (https://cloud.google.com/sdk/docs/install)"
        return f"install {cli} and run '{components}', or start a Docker engine"
    if sdk_root.is_relative_to("/usr/lib"):  # Debian's package, whose gcloud refuses to install components
        packages = "google-cloud-cli-pubsub-emulator google-cloud-cli-bigtable-emulator"
        return f"run 'sudo apt-get install {packages}'"
    return f"run '{components}'"


def _output(command: Sequence[str], seconds: float) -> str | None:
    """Returns a program's output, or None if the program is missing, fails or takes too long."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


@click.group(cls=ExampleGroup)
def emulators() -> None:
    """Run Google's Pub/Sub and Bigtable emulators, from the Cloud SDK or Docker.

    If PUBSUB_EMULATOR_HOST or BIGTABLE_EMULATOR_HOST is already set, that emulator is used and not started.
    """


@emulators.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Run COMMAND with both emulators, and stop them when it ends.

    COMMAND finds the emulators through its environment. The exit code is COMMAND's, or 128 plus the signal number if a
    signal ended it.
    """
    if shutil.which(command[0]) is None:
        click.echo(f"Error: {command[0]}: command not found", err=True)
        ctx.exit(127)
    with running_emulators() as environment:
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
def start() -> None:
    """Run both emulators until Ctrl-C or SIGTERM.

    Prints the environment variables to export.
    """
    # An event, not an exception: an exception raised inside a destructor would be lost.
    stopped = threading.Event()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: stopped.set())
    with _serving(PUBSUB) as pubsub, _serving(BIGTABLE) as bigtable:
        click.echo(f"export {PUBSUB.variable}={pubsub.address}")
        click.echo(f"export {BIGTABLE.variable}={bigtable.address}")
        started = [server.process for server in (pubsub, bigtable) if server.process]
        click.echo("Ctrl-C stops them" if started else "Both are already running; nothing was started", err=True)
        while started and not stopped.wait(0.2):
            for process in started:
                if process.has_ended():
                    raise process.problem("ended unexpectedly")
