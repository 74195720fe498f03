"""Reads the first records of a file whose notation is not known yet, to draft a mapping of them."""

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.mapping.authoring.draft import draft_of_json
from pipeline.core.decoding.mapping.authoring.guesses import toml_text
from pipeline.core.decoding.mapping.authoring.points import draft_of_points
from pipeline.core.decoding.mapping.authoring.rows import Sampled, draft_of_rows
from pipeline.core.decoding.mapping.compiling.mapper import documents_of_text
from pipeline.core.decoding.mapping.language.model import FORM, INFLUX, JSON, PLAIN_TYPES, CsvFormat
from pipeline.core.decoding.mapping.values.nodes import parse_documents
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.compression import unpacked
from pipeline.core.events.event import MAX_FUTURE_US
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData
from pipeline.core.notation.documents import read_bytes
from pipeline.formats.csv_guesses import guess_csv
from pipeline.formats.files import is_csv, is_record_file, records_of
from pipeline.formats.lines import MappedRecord, Remark
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import UnreadableFile

SAMPLE_RECORDS = 1000
_MOST_BYTES = 10_000_000  # of a message of Pub/Sub
_FORM = re.compile(rb"[!-~]+\s*")  # others have no spaces


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

    def of_line(self, line: str) -> MappedRecord:
        return self.of_json(line.strip().encode(errors="surrogateescape"))

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
        return _sampled([_read_payload(path)], "it", f"the message in {path.name}", stem)
    if not is_record_file(path):
        try:
            return _sampled([_read_payload(path)], "it", f"the message in {path.name}", stem)
        except UnreadableFile:
            pass  # opening it as a file of records names the formats
    csv_format, units = guess_csv(path) if is_csv(name) else (None, {})
    maker = _SampleMaker(csv_format or CsvFormat())
    with path.open("rb", buffering=0) as file, records_of(path.name, cast(BinaryIO, file), maker) as records:
        mapped = [record for record in islice(records, limit) if isinstance(record, MappedRecord)]
    if not mapped:
        raise UnreadableFile("it has no records that can be read")
    source = f"the first {len(mapped):,} records of {path.name}"
    kinds = (INFLUX,) if name.removesuffix(".gz").endswith(".lp") else (JSON,)
    sampled = _sampled([record.message.data for record in mapped], "a line", source, stem, kinds)
    return sampled._replace(csv=csv_format, units=units)


def _read_payload(path: Path) -> bytes:
    try:
        return read_bytes(path, _MOST_BYTES)
    except ValueError as error:
        raise UnreadableFile(str(error)) from None


def _sampled(
    stored: Sequence[bytes], where: str, source: str, stem: str, kinds: Sequence[str] = PLAIN_TYPES
) -> Sampled:
    """Returns the documents of payloads, all of which are of the first of the kinds that fits."""
    try:
        if any(len(data) > _MOST_BYTES for data in stored):
            raise UnreadableFile(f"{where} is larger than {_MOST_BYTES:,} bytes")
        payloads = [unpacked(data, {}, "auto") for data in stored]
        message, documents = _documents(payloads, where, kinds)
    except BadData as problem:
        raise UnreadableFile(problem.detail) from None
    return Sampled(documents, source, stem, message=message, payloads=payloads, is_compressed=payloads != list(stored))


def _documents(payloads: Sequence[bytes], where: str, kinds: Sequence[str]) -> tuple[str, list[Any]]:
    problems = []
    for kind in kinds:
        try:
            if kind == FORM and not all(map(_FORM.fullmatch, payloads)):
                continue
            documents = [document for data in payloads for document in _documents_of(data, where, kind)]
        except BadData as problem:
            problems.append(problem)
            continue
        if points := [document for document in documents if not isinstance(document, BadData)]:
            return kind, points[:SAMPLE_RECORDS]
        problems += documents
    raise problems[0]


def _documents_of(data: bytes, where: str, kind: str) -> list[Any]:
    return parse_documents(data, where, SAMPLE_RECORDS) if kind == JSON else documents_of_text(data, kind)


def sample_of_messages(messages: Sequence[Message], source: str) -> Sampled:
    """Returns the contents of messages as a sample. Raises UnreadableFile if they are none that a draft can be of."""
    try:
        return _sampled(
            [unpacked(message.data, message.attributes) for message in messages], "a message", source, "sensor"
        )
    except BadData as problem:
        raise UnreadableFile(problem.detail) from None
    except UnreadableFile as problem:
        raise UnreadableFile(f"{problem}; name its type with --message and --message-descriptors") from None


def draft_of(sampled: Sampled, time_zone: str = "") -> str:
    """Returns a mapping in TOML for a sample, with comments on what is in doubt."""
    text = _draft_of(sampled, time_zone)
    line = f"message = {toml_text(sampled.message)}\n"
    packed = 'compression = "auto" # some messages are compressed\n' if sampled.is_compressed else ""
    return text.replace(line, line + packed, 1)


def _draft_of(sampled: Sampled, time_zone: str) -> str:
    if sampled.message == INFLUX:
        return draft_of_points(sampled.records, sampled.source)
    is_flat = all(
        isinstance(record, dict) and not any(isinstance(value, (dict, list)) for value in record.values())
        for record in sampled.records
    )
    if is_flat:
        return draft_of_rows(sampled, time_zone)
    return draft_of_json(sampled.records, sampled.source, time_zone)


def trials_of_sample(
    sampled: Sampled, mapped: MappedType, publish_time: datetime | None = None
) -> list[tuple[str, Message, Trial]]:
    """Returns what a mapping makes of each record of a sample. Raises MappingError if it does not compile."""
    mapped.compile()
    trials = Trials([mapped])
    latest_us = time.time_ns() // 1000 + MAX_FUTURE_US
    tried = []
    payloads = sampled.payloads or [json.dumps(record).encode() for record in sampled.records]
    for number, payload in enumerate(payloads, 1):
        message = Message(payload, {}, "", publish_time)
        tried.append((f"record {number}", message, trials.of(message, latest_us)))
    return tried
