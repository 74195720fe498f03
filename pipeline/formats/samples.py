"""Reads the first records of a file whose notation is not known yet, to draft a mapping of them."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.mapping.authoring.draft import draft_of_json
from pipeline.core.decoding.mapping.authoring.rows import Sampled, draft_of_rows
from pipeline.core.decoding.mapping.language.model import CsvFormat
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.events.message import Message
from pipeline.core.notation.documents import parse_loose_json
from pipeline.formats.csv_guesses import guess_csv
from pipeline.formats.files import is_csv, records_of
from pipeline.formats.lines import MappedRecord, Remark
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import UnreadableFile

SAMPLE_RECORDS = 1000
_MOST_BYTES = 10_000_000  # of a message of Pub/Sub


class _SampleMaker(MappedMaker):
    """Makes JSON of the records of any file."""

    def __init__(self, csv_format: CsvFormat) -> None:
        super().__init__(())
        self._csv = csv_format

    @property
    def csv(self) -> CsvFormat:
        return self._csv

    def check_json(self) -> None:
        pass

    def check_columns(self, names: Sequence[str]) -> list[Remark]:
        named = [name for name in names if name]
        if len(set(named)) < len(named):
            raise UnreadableFile(f"two columns have the same name, so rename one; the columns are {', '.join(names)}")
        return []

    def protobuf_attributes(self) -> dict[str, str]:
        raise UnreadableFile("it contains protobuf messages: name their type with --message and --message-descriptors")


def read_sample(path: Path, limit: int = SAMPLE_RECORDS) -> Sampled:
    """Returns the first records of a file: rows of CSV, Avro and Parquet, lines of NDJSON, or one value of .json.

    Raises:
        UnreadableFile: it can't be read, or has no records.
        OSError: it can't be opened.
    """
    name = path.name.lower()
    stem = path.name.partition(".")[0]
    if name.endswith(".json"):
        return Sampled([_value(path.read_bytes(), "it")], f"the value in {path.name}", stem)
    csv_format, units = guess_csv(path) if is_csv(name) else (None, {})
    maker = _SampleMaker(csv_format or CsvFormat())
    with path.open("rb", buffering=0) as file, records_of(path.name, cast(BinaryIO, file), maker) as records:
        mapped = [record for record in islice(records, limit) if isinstance(record, MappedRecord)]
    values = [_value(record.message.data, f"line {record.line}") for record in mapped]
    if not values:
        raise UnreadableFile("it has no records that can be read")
    return Sampled(values, f"the first {len(values):,} records of {path.name}", stem, csv_format, units)


def _value(data: bytes, where: str) -> Any:
    try:
        if len(data) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES:,} bytes")
        return parse_loose_json(data)  # the trial of the draft shows that NaN is refused
    except ValueError as error:
        raise UnreadableFile(f"{where} is not JSON: {error}") from None


def sample_of_messages(messages: Sequence[Message], source: str) -> Sampled:
    """Returns the contents of messages in JSON as a sample. Raises UnreadableFile if one contains something else."""
    try:
        return Sampled([_value(message.data, "a message") for message in messages], source, "sensor")
    except UnreadableFile as problem:
        raise UnreadableFile(f"{problem}; name its type with --message and --message-descriptors") from None


def draft_of(sampled: Sampled, time_zone: str = "") -> str:
    """Returns a mapping in TOML for a sample, with comments on what is in doubt."""
    is_flat = all(
        isinstance(record, dict) and not any(isinstance(value, (dict, list)) for value in record.values())
        for record in sampled.records
    )
    if is_flat:
        return draft_of_rows(sampled, time_zone)
    return draft_of_json(sampled.records, sampled.source)


def trials_of_sample(
    sampled: Sampled, mapped: MappedType, publish_time: datetime | None = None
) -> list[tuple[str, Message, Trial]]:
    """Returns what a mapping makes of each record of a sample. Raises MappingError if it does not compile."""
    mapped.compile()
    trials = Trials([mapped])
    latest_us = time.time_ns() // 1000 + MAX_FUTURE_US
    tried = []
    for number, record in enumerate(sampled.records, 1):
        message = Message(json.dumps(record).encode(), {}, "", publish_time)
        tried.append((f"record {number}", message, trials.of(message, latest_us)))
    return tried
