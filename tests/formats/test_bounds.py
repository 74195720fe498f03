"""Files of few bytes whose records would be far more in memory."""

import io
import tracemalloc

import fastavro
import pyarrow
import pyarrow.parquet
import pytest

from pipeline.core.decoding.message_types import MappedType
from pipeline.formats import parquet_records
from pipeline.formats.avro_records import avro_records
from pipeline.formats.files import records_of
from pipeline.formats.lines import MappedRecord, Refusal
from pipeline.formats.mapped import MappedMaker
from pipeline.formats.values import EventMaker, FileColumns, UnreadableFile

LIMIT = 1000
MAPPED = MappedType(
    "m.toml", 'message = "json"\nsensor = "sensor_id"\ntime = "event_time"\nreadings = { v = "v[0].a" }'
)
HEAD = {"sensor_id": "a", "event_time": "2026-02-17T10:30:00Z"}


def maker():
    return MappedMaker([MAPPED], LIMIT)


def avro(item, *values):
    fields = [{"name": name, "type": "string"} for name in HEAD]
    fields.append({"name": "v", "type": {"type": "array", "items": item}})
    content = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": fields})
    fastavro.writer(content, schema, [{**HEAD, "v": value} for value in values])
    content.seek(0)
    return avro_records(content, maker())


def parquet(*values):
    table = pyarrow.table({**{name: [text] * len(values) for name, text in HEAD.items()}, "v": values})
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content)
    return parquet_records.parquet_records(content, maker())


RECORD = {"type": "record", "name": "I", "fields": [{"name": "a", "type": "int"}]}
LONG_NAME = {"type": "record", "name": "I", "fields": [{"name": "a" * 600, "type": "int"}]}


@pytest.mark.parametrize(
    "file",
    [
        avro("null", [None] * 100_000, [None]),
        avro({"type": "array", "items": "null"}, [[None] * 100_000], [[None]]),
        avro(RECORD, [{"a": 1}] * 400, [{"a": 1}]),
        avro(LONG_NAME, [{"a" * 600: 1}] * 2, [{"a" * 600: 1}]),
        parquet([{"a": 1}] * 400, [{"a": 1}]),
        parquet([{"a": 1, "b" * 500: 2}] * 2, [{"a": 1, "b" * 500: 2}]),
        parquet([{"a": "x" * 400}] * 3, [{"a": "x" * 400}]),
    ],
)
def test_a_record_that_would_be_too_long_as_json_is_refused_before_it_is_decoded(file):
    """The next record is read."""
    refused, record = file
    assert isinstance(refused, Refusal)
    assert "longer than 1,000 bytes" in refused.reason
    assert isinstance(record, MappedRecord)


def test_nulls_without_end():
    """An array of nulls has no bytes: its length alone would fill the memory."""
    file = avro("null", [None] * 1_000_000)
    tracemalloc.start()
    (refused,) = file
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(refused, Refusal)
    assert peak < 1_000_000


def test_avro_records_without_bytes():
    """A block may claim any number of them."""
    content = io.BytesIO()
    schema = fastavro.parse_schema(
        {"type": "record", "name": "R", "fields": [{"name": n, "type": "null"} for n in HEAD]}
    )
    fastavro.writer(content, schema, [dict.fromkeys(HEAD)] * 1000)
    content.seek(0)
    with pytest.raises(UnreadableFile, match="a block has more records than bytes"):
        list(avro_records(content, maker()))


def test_rows_that_share_values_are_decoded_a_few_at_a_time(monkeypatch):
    """Each of a thousand rows may have the same long list."""
    file, convert, together = parquet(*[[{"a": 1}] * 20] * 50), parquet_records._values, []
    monkeypatch.setattr(
        parquet_records,
        "_values",
        lambda column, *limits, **how: together.append(len(column)) or convert(column, *limits, **how),
    )
    assert sum(isinstance(record, MappedRecord) for record in file) == 50
    assert max(together) < 100  # values of a column, of lists too


@pytest.mark.parametrize("make", [maker, lambda: EventMaker(FileColumns())])
@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (",".join([*HEAD, *map(str, range(10_000))]), "it has 10,002 columns, more than 10,000"),
        (
            ",".join([*HEAD, *[f"{index:0100000}" for index in range(11)]]),
            "the header has more than 1,048,576 characters",
        ),
    ],
)
def test_a_header_that_is_too_long(header, problem, make):
    """Each row would have as many values, or, for a mapping, names as long."""
    built = make()
    built.max_record_bytes = 10_000_000
    with pytest.raises(UnreadableFile, match=problem), records_of("x.csv", io.BytesIO(f"{header}\n".encode()), built):
        pass
