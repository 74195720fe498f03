"""A backfill of messages of other types makes the rows and dead letters that a job makes of the same payloads."""

import json
from datetime import timedelta
from pathlib import Path

import apache_beam as beam
from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that

from pipeline.backfill.files import ReadFiles
from pipeline.core.decoding.message_types import MappedType, MessageTypes
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.toml import parse_schema
from pipeline.formats.mapped import MappedMaker
from pipeline.transforms.process import DecodeMessages, Decoder
from tests.core.decoding.mapping.protos import descriptor_set

NOW_US = parse_time("2026-02-17T12:00:00Z")
T_US = parse_time("2026-02-17T10:00:00Z")
HOUR = timedelta(hours=1)
REPORT = """
message = "plant.v1.Report"
each = "samples[]"
skip_if = { path = ".test", is = true }
sensor = "p/{.serial:04x}"
time = { path = ".at", unit = "us" }
readings = { "*" = ".values.*" }
metadata = { line = "line" }
"""
TYPES = descriptor_set("""
package plant.v1;
message Report {
  message Sample { fixed32 serial = 1; int64 at = 2; map<string, double> values = 3; bool test = 4; }
  string line = 1;
  repeated Sample samples = 2;
}
""")
GATEWAY = """
message = "json"
match = { path = "@source", is = "gateway" }
sensor = "id"
time = "at"
readings = { "*" = "data.*" }
metadata = { line = "line" }
"""
SOURCE = {"source": "gateway"}
SCHEMA = parse_schema("key = '{metadata.line}#{sensor_id}#{reverse_us}'\nlayout = 'wide'\n")


def test_rows_and_dead_letters_are_those_of_the_job(tmp_path: Path) -> None:
    """Two types, protobuf and JSON; in each, an event that the table has no key for refuses the whole message."""
    report, gateway = MappedType("report.toml", REPORT, TYPES), MappedType("gateway.toml", GATEWAY)
    payloads = [_report(report, line, n) for n, line in enumerate(("hall", "", "yard"))]
    lines = [json.dumps({"id": f"g-{n}", "at": "2026-02-17T10:00:00Z", "data": {"v": n}, **more}).encode()
             for n, more in enumerate(({"line": "x"}, {}, {"line": "y#"}))]  # fmt: skip
    lines.append(b"{")
    (tmp_path / "a.pb").write_bytes(b"".join(bytes([len(payload)]) + payload for payload in payloads))
    (tmp_path / "b.ndjson").write_bytes(b"\n".join(lines))
    messages = [PubsubMessage(payload, {"message_type": report.name}) for payload in payloads]
    messages += [PubsubMessage(line, SOURCE | {"message_type": "json"}) for line in lines]
    decoder = Decoder("DecodeMessages", HOUR, [SCHEMA], MessageTypes([report, gateway]))
    decoder.start()
    events, letters = [], []
    for message in messages:
        found, refused = decoder.decode([message], NOW_US)
        events += found
        letters += refused
    assert len(events) == 5
    expected = sorted(row for event in events for row in SCHEMA.rows(event))
    expected_letters = sorted((one.data, one.attributes["dead_letter_reason"]) for one in letters)
    assert [reason for _, reason in expected_letters] == [
        "MISSING_KEY_FIELD", "UNPARSEABLE", "MISSING_KEY_FIELD", "INVALID_KEY_FIELD"]  # fmt: skip

    makers = {"a.pb": MappedMaker([report]), "b.ndjson": MappedMaker([gateway], attributes=SOURCE)}  # Beam pickles them
    with TestPipeline() as pipeline:
        read = [pipeline | name >> ReadFiles({str(tmp_path / name): 0}, maker) for name, maker in makers.items()]
        decode = DecodeMessages(HOUR, [SCHEMA], lambda: NOW_US / 1e6, MessageTypes([report, gateway]))
        decoded = [one.messages for one in read] | beam.Flatten() | "DecodeMessages" >> decode

        def same_rows(found: list) -> None:
            assert sorted(row for event in found for row in SCHEMA.rows(event)) == expected

        def same_letters(found: list) -> None:
            assert sorted((one.data, one.attributes["dead_letter_reason"]) for one in found) == expected_letters
            places = {(Path(one.attributes["file"]).name, one.attributes["line"]) for one in found}
            assert places == {("a.pb", "2"), ("b.ndjson", "2"), ("b.ndjson", "3"), ("b.ndjson", "4")}

        assert_that(decoded.events, same_rows)
        assert_that(decoded.dead_letters, same_letters, "Letters")


def _report(mapped: MappedType, line: str, number: int) -> bytes:
    report = mapped.compile().message_class(line=line)
    for serial in range(2):
        sample = report.samples.add(serial=serial, at=T_US + number)
        sample.values["t"] = 20.5 + serial
    report.samples.add(test=True)
    return report.SerializeToString()
