"""What ``tidetable read`` prints is a file of records: read back, it gives the same events."""

import io
import json

import pyarrow
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.cloud.reading.frames import RawRecords
from pipeline.core.events.event import EARLIEST_US, Event
from pipeline.core.notation.text import json_line
from pipeline.core.rows.records import RawRecord
from pipeline.formats.files import records_of
from pipeline.formats.parquet_records import parquet_records
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


@given(st.lists(stored(), min_size=1, max_size=4))
def test_json(printed):
    """A line of JSON is a SensorEvent in protobuf's mapping, whatever its names and texts are."""
    data = "".join(json_line(RAW.json(record)) + "\n" for record in printed).encode()
    assert read("readings.ndjson", data) == [as_event(record) for record in printed]


@settings(deadline=None)  # the first example imports
@given(st.lists(stored(), min_size=1, max_size=4))
def test_parquet(printed):
    """The columns' names say what they are: a serial number stays metadata, and an id stays an id."""
    sink = io.BytesIO()
    write_parquet(RawRecords(printed).to_arrow().to_reader(), sink)
    assert events(parquet_records(sink, maker())) == [as_event(record) for record in printed]


@given(st.lists(stored(), min_size=1, max_size=4))
def test_csv(printed):
    """The same holds for CSV, except that NA and the like are no sensor_id and no event_id."""
    missing = {"na", "n/a", "nan", "null", "none"}
    assume(not any(record.sensor_id.lower() in missing for record in printed))
    printed = [
        RawRecord(*_fields(record), "" if record.event_id.lower() in missing else record.event_id) for record in printed
    ]
    text = io.StringIO()
    write_csv(RawRecords(printed).to_arrow().to_reader(), text)
    assert read("readings.csv", text.getvalue().encode()) == [as_event(record) for record in printed]


def _fields(record: RawRecord) -> tuple:
    return record.sensor_id, record.event_time_us, record.readings, record.metadata


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


def test_an_overflow():
    """A sum that overflowed is inf in CSV."""
    text = io.StringIO()
    write_csv(pyarrow.table({"sum_t": [float("inf"), float("-inf")], "count_t": [2, 1]}).to_reader(), text)
    assert text.getvalue() == "sum_t,count_t\ninf,2\n-inf,1\n"


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
