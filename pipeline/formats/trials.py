"""Shows what mappings make of the records of a file, record by record."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.message_types import DecoderFunction, MappedType
from pipeline.core.events.message import MESSAGE_TYPE, Message
from pipeline.core.events.reasons import BadData
from pipeline.formats.files import records_of
from pipeline.formats.lines import MappedRecord, Refusal, Remark
from pipeline.formats.mapped import MappedMaker

RECORD_FILES = (".csv", ".ndjson", ".pb", ".binpb", ".avro", ".parquet")
"""The suffixes of files of records, plain or as .gz."""


def is_record_file(path: Path) -> bool:
    """Returns whether a file contains records, by its name; any other contains the payload of one message."""
    return path.name.lower().removesuffix(".gz").endswith(RECORD_FILES)


def trials_of_records(
    path: Path,
    mapped: Sequence[MappedType],
    decoder: DecoderFunction | None,
    attributes: Mapping[str, str],
    publish_time: datetime,
    limit: int,
    latest_us: int,
) -> Iterator[tuple[str, Message, Trial]]:
    """Yields the first records of a file: where each is, its message, and what a job would make of it.

    Raises:
        UnreadableFile: the file can't be read, or lacks columns.
    """
    trials = Trials(mapped, decoder)
    maker = MappedMaker(mapped, attributes=attributes, decoder=decoder)
    with path.open("rb", buffering=0) as file, records_of(str(path), cast(BinaryIO, file), maker) as records:
        for record in islice((each for each in records if not isinstance(each, Remark)), limit):
            if isinstance(record, MappedRecord):
                message = record.message._replace(publish_time=publish_time)
                trial = trials.of(message, latest_us)
                attributes = {name: text for name, text in message.attributes.items() if name != MESSAGE_TYPE}
                yield f"{path}:{record.line}", message._replace(attributes=attributes), trial
            elif isinstance(record, Refusal):
                problem = BadData(record.code, record.reason)
                yield f"{path}:{record.line}", Message(record.data or b"", {}), Trial("", False, None, [], [problem])
