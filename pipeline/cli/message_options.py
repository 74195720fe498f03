"""``--message-mapping`` and ``--message-descriptors``: how commands read messages of other types."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.options import Command, Parsed
from pipeline.core.notation.text import parse_pair, plain

if TYPE_CHECKING:
    from pipeline.core.decoding.mapped_type import MappedType

_FILE = "a file, local or in a bucket (gs://…)"

descriptors_option = click.option(
    "--message-descriptors",
    "descriptors",
    multiple=True,
    metavar="FILE",
    help=f"Message types: {_FILE} that protoc --include_imports --descriptor_set_out or buf build wrote, or the schema "
    "of a topic, projects/PROJECT/schemas/SCHEMA. Repeatable.",
)


def message_options(command: Command) -> Command:
    """Adds ``--message-mapping`` and ``--message-descriptors``; passes ``mapped``, a list of MappedType."""

    @click.option(
        "--message-mapping",
        "mappings",
        multiple=True,
        metavar="FILE",
        help=f"How messages of another type become events: {_FILE} in TOML. Repeatable.",
    )
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
    help="An attribute of every message that a mapping reads from a file. Repeatable.",
)


def check_attributes(attributes: dict[str, str], mapped: Sequence["MappedType"]) -> None:
    """Raises UsageError for attributes without a mapping."""
    if attributes and not mapped:
        raise click.UsageError("--attribute is for messages that a mapping reads: pass --message-mapping too")


@contextmanager
def mapping_problems() -> Iterator[None]:
    """Turns a MappingError in the block into the one line that the command ends with."""
    from pipeline.core.decoding.mapping.language.model import MappingError

    try:
        yield
    except MappingError as error:
        raise click.ClickException(plain(str(error))) from error
