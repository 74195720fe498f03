"""What ``tidetable read`` prints is a file of records: read back, it gives the same events."""

import io
import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.cloud.reading.frames import RawRecords
from pipeline.core.events.event import EARLIEST_US, Event
from pipeline.core.notation.text import json_line
from pipeline.core.rows.records import RawRecord
from pipeline.formats.files import records_of
from pipeline.formats.tabular import write_csv, write_parquet
from pipeline.reading.views import RAW
from tests.formats.reading import LATEST_US, events, maker
from tests.support import strategies

# Names that collide with columns, or look like their prefixes, and texts that look like numbers or missing values.
names = strategies.names | st.sampled_from(
    ["sensor_id", "event_time", "event_id", "metadata.t", "reading.t", "metadata."]
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8) | st.sampled_from(
    ["1", "NA", "null", " ", '"', "a,b", "a\nb", "\r", "\r\n"]
)


@st.composite
def stored(draw):
    """Draws events as a table returns them."""
    return RawRecord(
        draw(strategies.sensor_ids),
        draw(st.integers(EARLIEST_US, LATEST_US)),
        draw(st.dictionaries(names, strategies.values, min_size=1, max_size=4)),
        draw(st.dictionaries(names, texts, max_size=3)),
        draw(st.just("") | st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=8)),
    )


def as_event(record: RawRecord) -> Event:
    return Event(record.sensor_id, record.event_time_us, record.readings, record.metadata, record.event_id)


def read(name: str, data: bytes) -> list[Event]:
    with records_of(name, io.BytesIO(data), maker()) as records:
        return events(records)


def written(name: str, printed: list[RawRecord]) -> bytes:
    if name.endswith("ndjson"):
        return "".join(json_line(RAW.json(record)) + "\n" for record in printed).encode()
    table, text, sink = RawRecords(printed).to_arrow().to_reader(), io.StringIO(), io.BytesIO()
    if name.endswith("csv"):
        write_csv(table, text)
        return text.getvalue().encode()
    write_parquet(table, sink)
    return sink.getvalue()


@pytest.mark.parametrize("name", ["readings.ndjson", "readings.parquet", "readings.csv"])
@settings(deadline=None)  # the first example imports
@given(st.lists(stored(), min_size=1, max_size=4))
def test_what_is_printed_is_read_back(name, printed):
    """Whatever names and texts are: a serial number stays metadata, and an id an id, but in CSV, NA and the like."""
    missing = {"na", "n/a", "nan", "null", "none"} if name.endswith("csv") else set()
    assume(not any({record.sensor_id.lower(), record.event_id.lower()} & missing for record in printed))
    assert read(name, written(name, printed)) == [as_event(record) for record in printed]


def test_the_text_of_csv():
    """Times are RFC 3339, numbers as short as in the table, and nulls empty."""
    printed = [
        RawRecord("a", EARLIEST_US + 250_000, {"t": 23.5, "p": 94558.0}, {"serial": "0012"}),
        RawRecord("b", EARLIEST_US, {"t": -0.0}, {}),
    ]
    text = io.StringIO()
    write_csv(RawRecords(printed).to_arrow().to_reader(), text)
    assert text.getvalue().splitlines() == [
        "sensor_id,event_time,p,t,metadata.serial",
        "a,2000-01-01T00:00:00.250Z,94558,23.5,0012",
        "b,2000-01-01T00:00:00Z,,-0,",
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"temperature": 1, "readings": {"t": 1.0}}, "not a SensorEvent in JSON: there is no field 'temperature'"),
        ({"readings": {"t": True}}, "not a SensorEvent in JSON: 't' is a boolean, not a number"),
        ({"readings": {}}, "NO_READINGS: the event has no readings"),
        ({"readings": {"t": 1}, "event_time": "17 May"}, "not a SensorEvent in JSON: event_time '17 May' is not RFC"),
    ],
)
def test_invalid_events_in_json(line, reason):
    """A line with an object of readings must be an event, and a valid one."""
    whole = {"sensor_id": "a", "event_time": "2026-02-17T08:00:00Z"} | line
    with records_of("readings.ndjson", io.BytesIO(json.dumps(whole).encode()), maker()) as records:
        [refusal] = records
    assert refusal.reason.startswith(reason)


@pytest.mark.parametrize("header", ["t,reading.t", "reading.t,reading.t", "room,metadata.room"])
def test_two_columns_for_one_name(header):
    """A column and one with its prefix are two columns of the same name."""
    data = f"sensor_id,event_time,{header}\na,2026-02-17T08:00:00Z,{'x,y' if 'room' in header else '1,2'}\n".encode()
    with (
        pytest.raises(Exception, match="two columns have the same name"),
        records_of("readings.csv", io.BytesIO(data), maker()) as records,
    ):
        list(records)
