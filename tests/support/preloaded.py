"""Runs the project's programs in processes that start in milliseconds: forks of one that has imported what they import.

Most of a command's CPU time goes into the import of other people's packages. :data:`TIDETABLE` and :data:`JOB` begin
the command lines of ``tidetable`` and of ``python -m pipeline``. Such a process hands its arguments, environment,
folder and files to the server, passes signals on to the fork, and ends as it ends. The server imports no module of ours
that looks at its process: each fork does that itself.

``tests/conftest.py`` runs a server for all test processes of a session; it imports the packages for the first program.
Without a server, as in a benchmark, the process becomes the program itself.
"""

import json
import os
import selectors
import shlex
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

VARIABLE = "PRELOADED_PROGRAMS"
"""The environment variable with the path of the server's socket."""

_START = [sys.executable, "-IS", __file__]
TIDETABLE = [*_START, "tidetable"]
JOB = [*_START, "pipeline"]

_PACKAGES = (
    "apache_beam.runners.direct.direct_runner", "apache_beam.runners.dataflow.dataflow_runner",
    "apache_beam.runners.portability.fn_api_runner", "apache_beam.io.gcp.pubsub", "apache_beam.testing.test_stream",
    "click", "fastapi", "fastapi_offline", "google.cloud.bigtable", "google.cloud.bigtable_admin_v2",
    "google.cloud.pubsub_v1", "google.cloud.storage", "matplotlib.pyplot", "plotext", "pyarrow.parquet", "rich.console",
    "rich.progress", "uvicorn",
    "pipeline.cloud.reading.reader", "pipeline.core.answers.points", "pipeline.transforms.aggregate",
)  # fmt: skip
_LENGTH = struct.Struct("<I")
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def serve(path: str) -> Callable[[], None]:
    """Serves until standard input ends. Returns in each fork: what to run there."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    children: dict[int, tuple[socket.socket, int]] = {}  # the client of each, and a file that tells when it ends
    imported = False
    with selectors.DefaultSelector() as events:
        for source in (listener.fileno(), ended.fileno(), 0):
            events.register(source, selectors.EVENT_READ)
        while True:
            for ready in [key.fd for key, _ in events.select()]:
                if ready == 0:
                    for pid in children:
                        os.kill(pid, signal.SIGKILL)
                    sys.exit()
                elif ready == listener.fileno():
                    client, _ = listener.accept()
                    if not imported:
                        imported = _import_packages()
                    pid = os.fork()
                    if not pid:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        for each in (listener, ended, wake):
                            each.close()
                        for of_child, gone in children.values():
                            of_child.close()
                            os.close(gone)
                        return _begun(client)
                    client_pid, *_ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                    children[pid] = client, os.pidfd_open(client_pid)
                    events.register(children[pid][1], selectors.EVENT_READ)
                elif ready == ended.fileno():
                    ended.recv(4096)
                    while (found := _ended_child()) is not None:
                        client, gone = children.pop(found[0])
                        with suppress(KeyError):  # it was, if the client was killed
                            events.unregister(gone)
                        os.close(gone)
                        with client, suppress(OSError):
                            client.sendall(struct.pack("<i", found[1]))
                else:
                    for pid, (_, gone) in children.items():
                        if gone == ready:
                            os.kill(pid, signal.SIGKILL)  # the client was killed
                            events.unregister(gone)


def _import_packages() -> bool:
    import gc
    from importlib import import_module

    for package in _PACKAGES:
        import_module(package)
    gc.freeze()  # the memory that forks share stays shared
    return True


def _ended_child() -> tuple[int, int] | None:
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _begun(client: socket.socket) -> Callable[[], None]:
    """Makes this fork the process that the client asks for. Returns what to run."""
    length, files, *_ = socket.recv_fds(client, _LENGTH.size, 3)
    asked = json.loads(_received(client, _LENGTH.unpack(length)[0]))
    client.sendall(_LENGTH.pack(os.getpid()))
    client.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    _open_standard_streams()
    signal.signal(signal.SIGINT, signal.SIG_IGN if asked["ignores_sigint"] else signal.default_int_handler)
    sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    program, *arguments = asked["arguments"]
    sys.argv = [program, *arguments]
    if program == "pipeline":
        sys.path.insert(0, asked["folder"])

    def run() -> None:
        if program == "pipeline":
            from pipeline.__main__ import main
        else:
            from pipeline.cli.extras import main
        main()

    return run


def _open_standard_streams() -> None:
    """Opens them as Python does at its start."""
    buffering = 1 if os.isatty(1) or os.environ.get("PYTHONUNBUFFERED") else -1
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", buffering, closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _received(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError("the other side has ended")
        data += part
    return data


def link_environment(folder: Path) -> dict[str, str]:
    """Links this environment as ``.venv`` in a folder, with a ``tidetable`` that is preloaded.

    Returns the variables of a shell that has activated it.
    """
    programs = folder / ".venv/bin"
    programs.mkdir(parents=True)
    for each in (*Path(sys.prefix, "bin").iterdir(), *Path(sys.prefix).iterdir()):
        if each.name not in ("bin", "tidetable"):
            (programs if each.parent.name == "bin" else programs.parent).joinpath(each.name).symlink_to(each)
    (programs / "tidetable").write_text(f'#!/bin/sh\nexec {shlex.join(TIDETABLE)} "$@"\n')
    (programs / "tidetable").chmod(0o755)
    return os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}


def run_preloaded(arguments: list[str]) -> NoReturn:
    """Lets the server run a program, passes signals on to it, and ends as it ends."""
    if VARIABLE not in os.environ:
        program, *rest = arguments
        module = ["-m", "pipeline"] if program == "pipeline" else [str(Path(sys.executable).with_name("tidetable"))]
        os.execv(sys.executable, [sys.executable, *module, *rest])  # noqa: S606
    server = socket.socket(socket.AF_UNIX)
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    server.connect(os.environ[VARIABLE])
    ignores_sigint = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    asked = json.dumps(
        {
            "arguments": arguments,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "ignores_sigint": ignores_sigint,
        }
    ).encode()
    socket.send_fds(server, [_LENGTH.pack(len(asked))], [0, 1, 2])
    server.sendall(asked)
    (pid,) = _LENGTH.unpack(_received(server, _LENGTH.size))
    for signum in _FORWARDED:
        if signum != signal.SIGINT or not ignores_sigint:
            signal.signal(signum, lambda each, _: os.kill(pid, each))
    for number in range(3):
        os.close(number)  # a pipe ends when the program ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    (code,) = struct.unpack("<i", _received(server, 4))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])()
    run_preloaded(sys.argv[1:])
