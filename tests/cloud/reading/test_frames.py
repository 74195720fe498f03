import io
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

import pandas
import pyarrow
import pyarrow.parquet
import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.reading.frames import AggregateRecords, RawRecords
from pipeline.core.notation.times import parse_time
from pipeline.core.rows.records import AggregateRecord, MetricSummary, RawRecord
from pipeline.core.windows import DAILY, HOURLY, parse_window
from pipeline.formats.tabular import write_csv, write_parquet

T = parse_time("2026-02-17T10:30:00.123456Z")
INSTANT = pyarrow.timestamp("us", tz="UTC")

EVENTS = [
    RawRecord("s", T, {"temperature": 23.5, "wind": 3.0}, {"location": "north"}),
    RawRecord("s", T + 1, {"temperature": -0.5}, {"model": "x1"}),
]
SUMMARY = MetricSummary(3, 6.0, 1.0, 3.0, 2.0, 0.5)
OVERFLOWED = MetricSummary(2, math.inf, 1e308, 1.7e308, math.inf, 1.0)
WINDOWS = [
    AggregateRecord("s", T, HOURLY, 3, {"t": SUMMARY}),
    AggregateRecord("s", T + 1, DAILY, 2, {"p": OVERFLOWED}),
]


def types(table: pyarrow.Table) -> dict[str, pyarrow.DataType]:
    return {field.name: field.type for field in table.schema}


def test_events_as_a_table() -> None:
    """A column for each metric and metadata field, sorted by name; null if an event has none."""
    table = RawRecords(EVENTS).to_arrow()
    assert types(table) == {
        "sensor_id": pyarrow.string(),
        "event_time": INSTANT,
        "temperature": pyarrow.float64(),
        "wind": pyarrow.float64(),
        "metadata.location": pyarrow.string(),
        "metadata.model": pyarrow.string(),
    }
    assert table.to_pydict() == {
        "sensor_id": ["s", "s"],
        "event_time": [datetime(2026, 2, 17, 10, 30, 0, 123456, UTC), datetime(2026, 2, 17, 10, 30, 0, 123457, UTC)],
        "temperature": [23.5, -0.5],
        "wind": [3.0, None],
        "metadata.location": ["north", None],
        "metadata.model": [None, "x1"],
    }


def test_events_as_a_frame() -> None:
    """Times are UTC in microseconds, readings doubles with NaN for none, and metadata text."""
    frame = RawRecords(EVENTS).to_pandas()
    assert str(frame.event_time.dtype) == "datetime64[us, UTC]"
    assert frame.event_time[1] == pandas.Timestamp("2026-02-17T10:30:00.123457Z")
    assert frame.wind.dtype == "float64"
    assert math.isnan(frame.wind[1])
    assert frame.sensor_id.tolist() == ["s", "s"]
    assert frame["metadata.location"].isna().tolist() == [False, True]


def test_event_ids() -> None:
    """They have a column if any event has one; null for the others."""
    table = RawRecords([EVENTS[0], RawRecord("s", T, {"t": 1.0}, event_id="e-1")]).to_arrow()
    assert types(table)["event_id"] == pyarrow.string()
    assert table["event_id"].to_pylist() == [None, "e-1"]
    assert "event_id" not in types(RawRecords(EVENTS).to_arrow())


def test_colliding_names() -> None:
    """A metric named like another column gets another name, whatever else is in the table."""
    names = ["sensor_id", "event_time", "event_id", "metadata.location", "reading.event_id", "reading", "metadata"]
    readings = {name: float(i) for i, name in enumerate(names)}
    with_id = RawRecord("s", T, readings, {"location": "north"}, "e-1")
    without = RawRecord("s", T, readings)
    expected = [f"reading.{name}" for name in names[:5]] + names[5:]
    for record in (with_id, without):
        table = RawRecords([record]).to_arrow()
        assert {name: table[name].to_pylist() for name in expected} == {
            name: [float(i)] for i, name in enumerate(expected)
        }
        assert table["sensor_id"].to_pylist() == ["s"]
    table = RawRecords([with_id]).to_arrow()
    assert table["event_id"].to_pylist() == ["e-1"]
    assert table["metadata.location"].to_pylist() == ["north"]
    assert table.num_columns == 4 + len(names)


def test_windows_as_a_table() -> None:
    """Six columns for each metric, named as in the table. Counts are whole numbers, an overflow is infinite."""
    table = AggregateRecords(WINDOWS).to_arrow()
    statistics = ("count", "sum", "min", "max", "avg", "stddev")
    assert types(table) == {
        "sensor_id": pyarrow.string(),
        "window_start": INSTANT,
        "window": pyarrow.string(),
        "reading_count": pyarrow.int64(),
    } | {
        f"{statistic}_{metric}": pyarrow.int64() if statistic == "count" else pyarrow.float64()
        for metric in ("p", "t")
        for statistic in statistics
    }
    first, second = table.to_pylist()
    assert (first["window"], first["reading_count"]) == ("1h", 3)
    assert [first[f"{statistic}_t"] for statistic in statistics] == [3, 6.0, 1.0, 3.0, 2.0, 0.5]
    assert [first[f"{statistic}_p"] for statistic in statistics] == [None] * 6
    assert [second[f"{statistic}_p"] for statistic in statistics] == [2, math.inf, 1e308, 1.7e308, math.inf, 1.0]


@pytest.mark.parametrize("windows", [WINDOWS, WINDOWS[:1]], ids=["some without the metric", "all with it"])
def test_windows_as_a_frame(windows: list[AggregateRecord]) -> None:
    """Counts are Int64 even if a window lacks the metric; infinity stays infinite."""
    frame = AggregateRecords(windows).to_pandas()
    assert str(frame.window_start.dtype) == "datetime64[us, UTC]"
    assert str(frame.count_t.dtype) == str(frame.reading_count.dtype) == "Int64"
    assert frame.avg_t.dtype == "float64"
    if len(windows) > 1:
        assert frame.count_t.isna().tolist() == [False, True]
        assert frame.sum_p[1] == math.inf


def test_windows_of_a_time_zone(tmp_path: Path) -> None:
    """Starts are times of the zone, in Arrow, in pandas, in CSV and in Parquet; the instants are exact."""
    window = parse_window("1d@Europe/Berlin")
    starts = [window.parse_start(day) for day in ("2026-03-29", "2026-03-30")]
    windows = [AggregateRecord("s", start_us, window, 3, {"t": SUMMARY}) for start_us in starts]
    table = AggregateRecords(windows).to_arrow()
    assert types(table)["window_start"] == pyarrow.timestamp("us", tz="Europe/Berlin")
    assert table["window_start"].cast(pyarrow.int64()).to_pylist() == starts
    frame = AggregateRecords(windows).to_pandas()
    texts = ["2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00"]
    assert [start.isoformat() for start in frame.window_start] == texts
    text = io.StringIO()
    write_csv(table.to_reader(), text)
    assert [line.split(",")[1:3] for line in text.getvalue().splitlines()[1:]] == [
        [each, "1d@Europe/Berlin"] for each in texts
    ]
    with (tmp_path / "windows.parquet").open("wb") as file:
        write_parquet(table.to_reader(), file)
    assert pyarrow.parquet.read_table(tmp_path / "windows.parquet").schema == table.schema


def test_nothing() -> None:
    """An empty result has the fixed columns and those of the requested metrics, with their types."""
    assert types(RawRecords([]).to_arrow()) == {"sensor_id": pyarrow.string(), "event_time": INSTANT}
    asked = RawRecords([], ["wind", "sensor_id"]).to_pandas()
    assert len(asked) == 0
    assert asked.wind.dtype == asked["reading.sensor_id"].dtype == "float64"
    assert str(asked.event_time.dtype) == "datetime64[us, UTC]"
    frame = AggregateRecords([]).to_pandas()
    assert list(frame) == ["sensor_id", "window_start", "window", "reading_count"]
    assert str(frame.reading_count.dtype) == "Int64"


def test_a_requested_metric_has_a_column() -> None:
    """Even if no event has it."""
    table = RawRecords(EVENTS, ["temperature", "rain"]).to_arrow()
    assert table["rain"].to_pylist() == [None, None]


@pytest.mark.parametrize("made", [lambda: RawRecords(EVENTS), lambda: AggregateRecords(WINDOWS)])
def test_each_record_is_taken_once(made: Callable[[], RawRecords | AggregateRecords]) -> None:
    """A frame takes the records that are left; a loop continues where the last one ended."""
    records = made()
    first = next(records)
    assert len(records.to_pandas()) == 1
    assert list(records) == []
    records = made()
    for record in records:
        assert record == first
        break
    assert len(list(records)) == 1
    assert records.to_arrow().num_rows == 0


@pytest.mark.parametrize("made", [lambda: RawRecords(EVENTS), lambda: AggregateRecords(WINDOWS)])
def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch, made: Callable[[], Iterable]) -> None:
    """The error says what to install, and no record is lost by it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    records = made()
    instructions = "install the extra \"frames\" from the checkout: pip install '.[frames]'"
    with pytest.raises(ImportError, match=rf"^pandas is not installed; {re.escape(instructions)}$"):
        records.to_pandas()
    assert len(list(records)) == 2


def test_arrow_needs_no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow tables need no pandas."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert RawRecords(EVENTS).to_arrow().num_rows == 2


def test_errors_while_reading_are_raised() -> None:
    """An error of the server in the middle is raised as in a loop."""

    def failing() -> Iterable[RawRecord]:
        yield EVENTS[0]
        raise ServerError("away")

    with pytest.raises(ServerError, match="away"):
        RawRecords(failing()).to_pandas()


def test_reading_loads_neither() -> None:
    """Readers work, and start fast, without the extra."""
    script = "import sys, pipeline.cloud.reading.reader; print({'pandas', 'pyarrow'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed == "set()\n"
