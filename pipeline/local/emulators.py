"""Google's Pub/Sub and Bigtable emulators: found, started on free loopback ports, never left behind.

Library code writes ``with running_emulators() as environment:``, or ``with running_emulator(BIGTABLE)``
for one alone; ``tidetable emulators`` is the same for a shell.
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

from pipeline.cloud.errors import ServerProblem
from pipeline.local.processes import start_watched

IMAGE = "google/cloud-sdk:emulators"
READY_SECONDS = 60.0
DOWNLOAD_SECONDS = 600.0  # Docker fetches the image when it is first used
ANSWER_SECONDS = 10.0  # for one that the environment says is running
STOP_SECONDS = 10.0
ATTEMPTS = 3


@dataclass(frozen=True)
class Emulator:
    """One of Google's emulators, as the Cloud SDK ships it."""

    name: str
    variable: str  # the environment variable by which Google's clients find it
    gcloud_name: str  # gcloud beta emulators NAME start
    executable: str  # below the SDK's platform/


PUBSUB = Emulator("Pub/Sub", "PUBSUB_EMULATOR_HOST", "pubsub", "pubsub-emulator/bin/cloud-pubsub-emulator")
BIGTABLE = Emulator("Bigtable", "BIGTABLE_EMULATOR_HOST", "bigtable", "bigtable-emulator/cbtemulator")


@contextmanager
def running_emulators() -> Iterator[dict[str, str]]:
    """Both emulators, ready to answer, for as long as the block runs.

    One whose variable is already in the environment is used as it is, and neither started nor stopped.

    Yields:
        both variables with their addresses; this process's own environment is left as it is.

    Raises:
        ServerProblem: an emulator is not installed, does not start, or does not answer.
    """
    with running_emulator(BIGTABLE) as bigtable, running_emulator(PUBSUB) as pubsub:
        yield {PUBSUB.variable: pubsub, BIGTABLE.variable: bigtable}


@contextmanager
def running_emulator(emulator: Emulator) -> Iterator[str]:
    """One emulator alone, on the terms of :func:`running_emulators`; yields its address."""
    with _serving(emulator) as server:
        yield server.address


class _Process:
    """An emulator in a session of its own, out of reach of the terminal's Ctrl-C."""

    def __init__(self, emulator: Emulator, command: Sequence[str]) -> None:
        self._name = emulator.name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (stop closes it)
        self._process = start_watched(command, stdout=self._log, stderr=subprocess.STDOUT)

    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def found_its_port_taken(self) -> bool:
        # Asked of the log, because the Pub/Sub emulator does not exit when it cannot bind.
        return re.search(r"already (in use|allocated)", self._log_tail()) is not None

    def problem(self, what: str) -> ServerProblem:
        """That ``what`` befell the emulator, with the end of its log as the reason."""
        lines = [line.strip() for line in self._log_tail().splitlines() if line and not line.startswith("\tat ")]
        last_words = " ".join(lines[-3:])[-400:] or "it said nothing"
        return ServerProblem(f"the {self._name} emulator {what}: {last_words}")

    def stop(self) -> None:
        try:
            self._process.communicate(b"\n", timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _log_tail(self) -> str:
        # pread, since the emulator writes at the file position that it shares with us.
        log, length = self._log.fileno(), 16_384
        return os.pread(log, length, max(0, os.fstat(log).st_size - length)).decode(errors="replace")


@dataclass(frozen=True)
class _Server:
    address: str
    process: _Process | None  # None when somebody else started it


@contextmanager
def _serving(emulator: Emulator) -> Iterator[_Server]:
    address = os.environ.get(emulator.variable)
    if not address:
        with _started(emulator) as server:
            yield server
        return
    with _channel(address) as channel:
        if not _answers(channel, ANSWER_SECONDS):
            raise ServerProblem(
                f"{emulator.variable} is {address}, where nothing answers; unset it to have one started"
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
    raise ServerProblem(f"the {emulator.name} emulator found its port taken {ATTEMPTS} times in a row")


def _becomes_ready(process: _Process, address: str, seconds: float) -> bool:
    """Waits until the emulator answers; ``False`` when somebody was faster to take its port."""
    deadline = time.monotonic() + seconds
    with _channel(address) as channel:
        while True:
            answers = _answers(channel, 0.5)
            if process.found_its_port_taken():
                return False
            if process.has_ended():
                raise process.problem("did not start")
            if answers:
                return True
            if time.monotonic() > deadline:
                raise process.problem(f"did not answer within {seconds:.0f} s")


def _channel(address: str) -> grpc.Channel:
    # gRPC's default pause between attempts begins at a second and grows to two minutes.
    quick = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]
    return grpc.insecure_channel(address, options=quick)


def _answers(channel: grpc.Channel, seconds: float) -> bool:
    """Whether a gRPC server answers in time, if only that it knows no such method."""
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
    """The emulator's command line for a port, and how many seconds it may take to answer."""
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
    # Asking gcloud takes a second or more: that is for a gcloud which only wraps the one in the SDK.
    root = Path(gcloud).resolve().parent.parent
    if (root / "platform").is_dir():
        return root
    answer = _output([gcloud, "info", "--format=value(installation.sdk_root)"], seconds=60)
    return Path(answer) if answer else None


def _docker_command(emulator: Emulator, port: int) -> list[str]:
    # --init, because gcloud's shell script as process 1 would ignore the SIGTERM that stops it.
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
    """What a program prints; ``None`` when it is missing, fails or takes too long."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.strip()


@click.group()
def emulators() -> None:
    """Run Google's Pub/Sub and Bigtable emulators, from the Cloud SDK or from Docker.

    One whose variable (PUBSUB_EMULATOR_HOST, BIGTABLE_EMULATOR_HOST) is already set is used as it is.
    """


@emulators.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, command: tuple[str, ...]) -> None:
    """Run COMMAND with both emulators in its environment, and stop them when it ends.

    The exit code is the command's own; 128 and the signal's number when a signal ended it.
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
    # A terminal sends Ctrl-C to the command as well: what it means is the command's to decide.
    signal.signal(signal.SIGINT, lambda *_: None)
    returncode = process.wait()
    return returncode if returncode >= 0 else 128 - returncode


@emulators.command()
def start() -> None:
    """Run both emulators until Ctrl-C or SIGTERM; prints the variables to export."""
    # A flag and no exception: one that was raised inside a destructor would be lost.
    stopped = threading.Event()
    for stopping in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stopping, lambda *_: stopped.set())
    with _serving(PUBSUB) as pubsub, _serving(BIGTABLE) as bigtable:
        click.echo(f"export {PUBSUB.variable}={pubsub.address}")
        click.echo(f"export {BIGTABLE.variable}={bigtable.address}")
        started = [server.process for server in (pubsub, bigtable) if server.process]
        click.echo("Ctrl-C stops them" if started else "Both run already; nothing was started", err=True)
        while started and not stopped.wait(0.2):
            for process in started:
                if process.has_ended():
                    raise process.problem("ended by itself")
