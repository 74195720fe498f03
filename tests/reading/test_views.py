"""How records look: foreign text, which neither controls a terminal nor is read as rich's markup, and units."""

import json

import pyarrow.parquet
import pytest
from rich.console import Console

from pipeline.cli import tables
from pipeline.cli.output import Output
from pipeline.core.rows.records import AggregateRecord, MetricSummary, RawRecord
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from pipeline.core.windows import HOURLY
from pipeline.reading.printing import Printing
from pipeline.reading.views import AGGREGATES, RAW, print_records

SCHEMA = TableSchema.default()
NAME = "a[red]\x9b\x7f\u202e"
EVENT = RawRecord(NAME, 1_771_322_400_000_000, {NAME: 1.0}, {NAME: NAME}, NAME)
WINDOW = AggregateRecord(NAME, 1_771_322_400_000_000, HOURLY, 1, {NAME: MetricSummary(1, 1.0, 1.0, 1.0, 1.0, 0.0)})


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("width", [30, 400])
@pytest.mark.parametrize(("view", "record"), [(RAW, EVENT), (AGGREGATES, WINDOW)])
def test_foreign_names(capsys, monkeypatch, view, record, width, several):
    """Foreign names are escaped in tables, blocks and JSON."""
    terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False, emoji=False)
    monkeypatch.setattr(tables, "out", terminal)
    print_records([record], view, SCHEMA, Printing(Output.TABLE), several=several)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert r"a[red]\x9b" in "".join(line.strip() for line in lines)
    print_records([record], view, SCHEMA, Printing(Output.JSON), several=several)
    line = capsys.readouterr().out
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line)["sensor_id"] == NAME


PM10 = AggregateRecord("s", 1_771_322_400_000_000, HOURLY, 1, {"pm10": MetricSummary(1, 2.0, 2.0, 2.0, 2.0, 0.0)})
AIR = RawRecord("s", PM10.start_us, {"pm10": 2.0, "n": 1.0})
DECLARED = parse_schema("[metrics.pm10]\nunit = 'µg/m³'\nlabel = 'Fine dust'\n[metrics.sensor_id]\nunit = 'V'\n")


@pytest.mark.parametrize("width", [30, 400])
def test_units_and_labels_in_tables(capsys, monkeypatch, width):
    """People see the label of a metric and its unit."""
    monkeypatch.setattr(tables, "out", Console(width=width, color_system=None, highlight=False, emoji=False))
    for view, record in ((RAW, AIR), (AGGREGATES, PM10)):
        print_records([record], view, DECLARED, Printing(Output.TABLE))
        assert "Fine dust (µg/m³)" in " ".join(capsys.readouterr().out.split())


def test_units_and_labels_in_files(tmp_path):
    """The columns of Parquet have them as metadata. Long rows have columns of them, in a file as on standard output."""
    path = tmp_path / "found.parquet"
    dust = {b"metric": b"pm10", b"label": b"Fine dust"}
    for view, record, column in ((RAW, AIR, "pm10"), (AGGREGATES, PM10, "avg_pm10")):
        print_records([record], view, DECLARED, Printing(Output.PARQUET, out=str(path)))
        columns = pyarrow.parquet.read_schema(path)
        assert columns.field(column).metadata == dust | {b"unit": "µg/m³".encode()}
        assert columns.field("sensor_id").metadata is None
    assert columns.field("count_pm10").metadata == dust
    path = tmp_path / "found.csv"
    print_records([AIR], RAW, DECLARED, Printing(Output.CSV, long=True, out=str(path)))
    assert path.read_text().splitlines() == [
        "sensor_id,event_time,metric,value,unit,label",
        "s,2026-02-17T10:00:00Z,pm10,2,µg/m³,Fine dust",
        "s,2026-02-17T10:00:00Z,n,1,,",
    ]
    print_records([PM10], AGGREGATES, DECLARED, Printing(Output.CSV, long=True, out=str(path)))
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows[0] == [
        "sensor_id",
        "window_start",
        "window",
        "reading_count",
        "metric",
        "statistic",
        "value",
        "unit",
        "label",
    ]
    assert {row[5]: row[7] for row in rows[1:]}.items() >= {"count": "", "avg": "µg/m³"}.items()
