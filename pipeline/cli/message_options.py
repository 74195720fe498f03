"""``--message-mapping`` and ``--message-descriptors``: how commands read messages of other types."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from pipeline.cli.options import Command, Parsed
from pipeline.core.notation.text import parse_pair, plain

_FILE = "a file, local or in a bucket (gs://…)"

descriptors_option = click.option(
    "--message-descriptors",
    "descriptors",
    multiple=True,
    metavar="FILE",
    help=f"Message types: {_FILE} that protoc --include_imports --descriptor_set_out or buf build wrote, or the schema "
    "of a topic, projects/PROJECT/schemas/SCHEMA. Repeatable.",
)


mapping_option = click.option(
    "--message-mapping",
    "mappings",
    multiple=True,
    metavar="FILE",
    help=f"How messages of another type become events: {_FILE} in TOML. Repeatable.",
)


def message_options(command: Command) -> Command:
    """Adds ``--message-mapping`` and ``--message-descriptors``; passes ``mapped``, a list of MappedType."""

    @mapping_option
    @descriptors_option
    @functools.wraps(command)
    def with_mapped(*args: Any, mappings: tuple[str, ...], descriptors: tuple[str, ...], **kwargs: Any) -> Any:
        from pipeline.cloud.pubsub.message_files import load_descriptors, load_message_types

        with mapping_problems():
            mapped = load_message_types(mappings, load_descriptors(descriptors)) if mappings else []
        return command(*args, mapped=mapped, **kwargs)

    return with_mapped


attribute_option = click.option(
    "--attribute",
    "attributes",
    multiple=True,
    type=Parsed("name=value", lambda text: parse_pair(text, example="device=N-1")),
    callback=lambda ctx, param, pairs: dict(pairs),  # noqa: ARG005 (what click passes)
    help="An attribute of every message that a mapping or a decoder reads from a file. Repeatable.",
)


def _decoder(ctx: click.Context, param: click.Parameter, path: str | None) -> Any:  # noqa: ARG001 (what click passes)
    if path is None:
        return None
    from pipeline.core.decoding.message_types import DecoderFunction

    with mapping_problems("--message-decoder: "):
        return DecoderFunction(path)


decoder_option = click.option(
    "--message-decoder",
    "decoder",
    metavar="MODULE:FUNCTION",
    callback=_decoder,
    help="A function of this environment that reads the messages that no mapping takes.",
)


def _file_decoder(ctx: click.Context, param: click.Parameter, path: str | None) -> Any:  # noqa: ARG001 (as above)
    if path is None:
        return None
    from pipeline.formats.decoded_files import FileDecoder

    with mapping_problems("--file-decoder: "):
        return FileDecoder(path)


file_decoder_option = click.option(
    "--file-decoder",
    "file_decoder",
    metavar="MODULE:FUNCTION",
    callback=_file_decoder,
    help="A function of this environment that reads whole files, of any format.",
)


def check_readers(attributes: dict[str, str], mapped: Sequence[object], decoder: object, file_decoder: object) -> None:
    """Raises UsageError for attributes without a mapping or a decoder, or for a decoder of files beside one."""
    if file_decoder and (mapped or decoder):
        raise click.UsageError("--file-decoder reads whole files: pass no --message-mapping or --message-decoder")
    if attributes and not mapped and not decoder:
        raise click.UsageError(
            "--attribute is for messages that a mapping or a decoder reads: pass --message-mapping or --message-decoder"
        )


@contextmanager
def mapping_problems(prefix: str = "") -> Iterator[None]:
    """Turns a MappingError in the block into the one line that the command ends with."""
    from pipeline.core.decoding.mapping.language.model import MappingError

    try:
        yield
    except MappingError as error:
        raise click.ClickException(plain(f"{prefix}{error}")) from error
