"""``tidetable dead-letters export``: dead letters into a file of JSON lines."""

import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import click

from pipeline.cloud.errors import ServerProblem
from pipeline.core.dead_letter_records import letter_json
from pipeline.core.messages import Message
from pipeline.core.text import json_line
from pipeline.dead_letters.options import LetterScan, Look, counted, look_options


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@look_options
@click.option("--limit", type=click.IntRange(1), help="Export no more than this many.")
@click.option("--ack", is_flag=True, help="Take them off the subscription, once the file is complete and closed.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.pass_context
def export(ctx: click.Context, file: Path, look: Look, limit: int | None, ack: bool, force: bool) -> None:
    """Write dead letters to FILE, a line of JSON each; gzipped where its name ends in .gz, - for standard output.

    A line is what show --json prints: nothing of the message is left out. They stay on the subscription, unless --ack
    is given. FILE appears when it is complete; where that fails there is none, and nothing is acknowledged. After
    Ctrl-C it holds what came until then.
    """
    to_stdout = file == Path("-")
    if not to_stdout:
        _check(file, force=force)
    exported: list[Message] = []
    with look.open() as looking:
        try:
            with _stdout() if to_stdout else _complete(file) as lines:
                for letters in looking.pages("exported", limit):
                    for letter in letters[: None if limit is None else limit - len(exported)]:
                        lines.write(json_line(letter_json(letter)).encode() + b"\n")
                        exported.append(letter.message._replace(data=b"", attributes={}))
                    if len(exported) == limit:
                        break
        except BrokenPipeError:
            raise  # whoever read standard output has enough; click ends quietly then
        except OSError as error:
            raise click.ClickException(f"{file}: {error.strerror or error}; nothing was acknowledged") from error
        problem = _acknowledge(exported, looking) if ack else None
    click.echo(
        f"{counted(len(exported))} written to {'standard output' if to_stdout else file}"
        f"{f', {looking.backlog.acknowledged:,} of them acknowledged' if ack else ''}",
        err=to_stdout,
    )
    looking.tell()
    if problem:
        raise click.ClickException(str(problem)) from problem
    ctx.exit(130 if looking.stopped() else 0)


def _check(file: Path, *, force: bool) -> None:
    if file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is no regular file")
    if file.exists() and not force:
        raise click.UsageError(f"{file} is there already; --force replaces it")
    if not file.parent.is_dir():
        raise click.UsageError(f"{file.parent} is no directory")


def _acknowledge(exported: list[Message], looking: LetterScan) -> ServerProblem | None:
    try:
        looking.backlog.acknowledge(exported)
    except ServerProblem as problem:
        return problem
    return None


@contextmanager
def _stdout() -> Iterator[IO[bytes]]:
    yield sys.stdout.buffer
    sys.stdout.flush()


@contextmanager
def _complete(file: Path) -> Iterator[IO[bytes]]:
    """A new file, which takes its name when it is complete and on the disk."""
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
