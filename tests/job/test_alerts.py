"""Alerts in the real graph, on a scripted stream and a table with rules."""

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.alert_store import add_families, write_rules_text
from pipeline.core.alerts.alert_rows import alert_range, parse_alert_row
from pipeline.core.schema.table_schema import TableSchema
from tests.job.running import PROJECT
from tests.support.lasting import lasting
from tests.support.streams import HOUR, MINUTE, Script, event_at

_SCHEMA = lasting(TableSchema.for_new_table())
_WARM = '[[rule]]\nname = "warm"\nsensors = "a*"\nmetric = "t"\nabove = 10\n'
_TOPIC = f"projects/{PROJECT}/topics/alerts"


@pytest.fixture
def table(bigtable, request):
    """A table with a family of alerts."""
    name = TableName(PROJECT, "instance", f"t{abs(hash(request.node.nodeid))}")
    tables.create(name, _SCHEMA)
    add_families(name, _SCHEMA)
    return name


def _run(table, script, *alerts, rules=_WARM, began=-HOUR, **changes):
    write_rules_text(table, rules)
    script.run(schemas={table.table: _SCHEMA}, alerts=alerts, alerts_topic=_TOPIC, written=True, began=began, **changes)


def _firing(table):
    with RowReader.open(table) as reader:
        records = [parse_alert_row(row) for row in reader.read(alert_range())]
    return sorted((record.rule, record.sensor_id) for record in records if record.is_firing)


def test_transitions_are_told_and_written(table):
    """A reading beyond the limit fires at once, and one within it resolves; other sensors do not matter."""
    script = Script().watermark(0).arrive(event_at(1, 11), event_at(1, 50, "b"), event_at(1, 12, "a2"))
    script.arrive(event_at(2, 12)).arrive(event_at(3, 9)).pass_time(3)
    _run(table, script, ("warm", "a", "firing"), ("warm", "a2", "firing"), ("warm", "a", "resolved"))
    assert _firing(table) == [("warm", "a2")]


def test_rules_by_metadata(table):
    """A rule on metadata looks at a sensor's newest metadata, in its raw rows."""
    rules = '[[rule]]\nname = "warm"\nmetric = "t"\nabove = 10\nmetadata = { place = "north" }\n'
    north, south = event_at(1, 5), event_at(1, 5, "a2")
    north.metadata["place"], south.metadata["place"] = "north", "south"
    _run(table, Script().watermark(0).arrive(north, south), rules="")
    _run(
        table,
        Script().watermark(0).arrive(event_at(2, 11), event_at(2, 11, "a2")),
        rules=rules,
        began=0,
    )
    north, south = event_at(3, 11), event_at(3, 11, "a2")
    north.metadata["place"], south.metadata["place"] = "north", "south"
    _run(table, Script().watermark(0).arrive(north, south), rules="", began=1)
    _run(
        table,
        Script().watermark(0).arrive(event_at(2.5, 11), event_at(2.5, 11, "a2")),
        ("warm", "a", "firing"),
        rules=rules,
        began=2,
    )


def test_silence(table):
    """A sensor that sends nothing fires by the clock, and resolves with its next reading; one that sends does not."""
    rules = '[[rule]]\nname = "silent"\nsilent_for = "30m"\n'
    _run(table, Script().watermark(0).arrive(event_at(1, 1), event_at(1, 1, "b")), rules=rules)
    script, now = Script(), 4 * HOUR
    for minutes in range(0, 39, 3):
        script.arrive(event_at(now + minutes * MINUTE, 1, "b")).pass_time(3 * MINUTE - 2)
    script.arrive(event_at(now + 39 * MINUTE, 1))
    _run(table, script, ("silent", "a", "firing"), ("silent", "a", "resolved"), rules=rules, began=0)


def test_a_statistic_of_windows(table):
    """A rule on windows looks at each window when it is over, and at its corrections."""
    rules = '[[rule]]\nname = "mean"\nmetric = "t"\nof = "avg"\ntier = "1h"\nabove = 10\n'
    script = Script().watermark(0).arrive(event_at(1, 9), event_at(1, 12, "a2")).watermark(HOUR)
    script.arrive(event_at(2, 2, "a2")).arrive(event_at(3, 90)).watermark(2 * HOUR)
    _run(
        table,
        script,
        ("mean", "a2", "firing"),
        ("mean", "a2", "resolved"),
        ("mean", "a", "firing"),
        rules=rules,
    )
    assert _firing(table) == [("mean", "a")]
