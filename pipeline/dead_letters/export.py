"""``tidetable dead-letters export``: writes dead letters to a file of JSON lines."""

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import click

from pipeline.cli.options import force_option, limit_option
from pipeline.cloud.connection.errors import ServerError
from pipeline.core.dead_letters import letter_json
from pipeline.core.events.message import Message
from pipeline.core.notation.text import counted, json_line
from pipeline.dead_letters.options import LetterScan, ScanRequest, scan_options


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@scan_options
@limit_option()
@click.option("--ack", is_flag=True, help="Acknowledge the exported messages once the file is complete and closed.")
@force_option
@click.pass_context
def export(ctx: click.Context, file: Path, request: ScanRequest, limit: int | None, ack: bool, force: bool) -> None:
    """Write dead letters to FILE, one line of JSON each.

    FILE is gzipped if its name ends in .gz; - is standard output. A line is what show --format json prints and contains
    the whole message. Messages stay on the subscription unless --ack is set. FILE appears once it is complete. If
    writing fails, there is no file and nothing is acknowledged. After Ctrl-C, FILE contains the messages pulled so far.
    """
    to_stdout = file == Path("-")
    if not to_stdout:
        _check(file, force=force)
    exported: list[Message] = []
    with request.open() as scan:
        try:
            with _stdout() if to_stdout else _complete_file(file) as lines:
                for letters in scan.pages("exporting", limit):
                    for letter in letters[: None if limit is None else limit - len(exported)]:
                        lines.write(json_line(letter_json(letter)).encode() + b"\n")
                        exported.append(letter.message._replace(data=b"", attributes={}))
                    if len(exported) == limit:
                        break
        except OSError as error:
            if to_stdout:
                raise  # pipeline/cli/entry.py explains it, for all commands
            raise click.ClickException(f"{file}: {error.strerror or error}; nothing was acknowledged") from error
        problem = _acknowledge(exported, scan) if ack else None
    click.echo(
        f"{counted(len(exported), 'dead letter')} written to {'standard output' if to_stdout else file}"
        f"{f', {scan.backlog.acknowledged:,} of them acknowledged' if ack else ''}",
        err=to_stdout,
    )
    scan.report()
    if problem:
        raise click.ClickException(str(problem)) from problem
    ctx.exit(130 if scan.stopped() else 0)


def _check(file: Path, *, force: bool) -> None:
    if file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is not a regular file")
    if file.exists() and not force:
        raise click.UsageError(f"{file} exists; set --force to replace it")
    if not file.parent.is_dir():
        raise click.UsageError(f"{file.parent} is not a directory")


def _acknowledge(exported: list[Message], scan: LetterScan) -> ServerError | None:
    try:
        scan.backlog.acknowledge(exported)
    except ServerError as problem:
        return problem
    return None


@contextmanager
def _stdout() -> Iterator[IO[bytes]]:
    yield sys.stdout.buffer
    sys.stdout.flush()


@contextmanager
def _complete_file(file: Path) -> Iterator[IO[bytes]]:
    """Opens a new file under a temporary name and renames it once it is complete and on disk."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with part.open("xb") as raw:
            if file.name.lower().endswith(".gz"):
                with gzip.GzipFile(filename="", fileobj=raw, mode="wb") as compressed:
                    yield cast(IO[bytes], compressed)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
