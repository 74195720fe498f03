"""Foreign text in a table neither controls a terminal nor is read as rich's markup."""

import json

import pytest
from rich.console import Console

from pipeline.cli import tables
from pipeline.cli.output import Output
from pipeline.core.rows.records import AggregateRecord, MetricSummary, RawRecord
from pipeline.core.windows import HOURLY
from pipeline.reading.printing import Printing
from pipeline.reading.views import AGGREGATES, RAW, print_records

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
    print_records([record], view, Printing(Output.TABLE), several=several)
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert r"a[red]\x9b" in "".join(line.strip() for line in lines)
    print_records([record], view, Printing(Output.JSON), several=several)
    line = capsys.readouterr().out
    assert line.removesuffix("\n").isprintable()
    assert json.loads(line)["sensor_id"] == NAME
