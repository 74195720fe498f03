"""Alerts in the real graph, on a scripted stream and a table with rules."""

from unittest import mock

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.alert_store import add_families, write_rules_text
from pipeline.core.alerts.alert_rows import alert_range, parse_alert_row
from pipeline.core.results.window_results import batches_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import aggregate
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
    script.arrive(event_at(2, 12)).arrive(event_at(3, 9))
    _run(table, script, ("warm", "a", "firing"), ("warm", "a2", "firing"), ("warm", "a", "resolved"))
    assert _firing(table) == [("warm", "a2")]


def test_a_condition_that_holds_by_the_watermark(table):
    """With nothing further from the sensor, the watermark shows that the condition has held."""
    script = Script().watermark(0).arrive(event_at(1, 11), event_at(1, 11, "a2")).arrive(event_at(30, 9, "a2"))
    _run(table, script.watermark(3 * MINUTE), ("warm", "a", "firing"), rules=f'{_WARM}for = "2m"')
    assert _firing(table) == [("warm", "a")]


def test_a_drain_shows_nothing(table):
    """At the end of a job nobody knows whether the condition goes on."""
    _run(table, Script().watermark(0).arrive(event_at(1, 11)), rules=f'{_WARM}for = "5h"')
    assert _firing(table) == []


def test_a_restart(table):
    """A new job knows what fires, and tells it no more; it also knows a condition that was about to fire."""
    rules = f'{_WARM}for = "2m"'
    now = 4 * HOUR
    script = Script().watermark(now).arrive(event_at(1, 11), event_at(200, 11), event_at(now, 11, "a2"))
    _run(table, script, ("warm", "a", "firing"), rules=rules)
    script = Script().watermark(now).arrive(event_at(1, 11), event_at(201, 12))
    script.pass_time(3 * MINUTE).watermark(now + 3 * MINUTE)
    _run(table, script, ("warm", "a2", "firing"), rules=rules, began=0)
    script = Script().watermark(0).arrive(event_at(300, 9))
    _run(table, script, ("warm", "a", "resolved"), rules=rules, began=1)
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


def test_results_are_made_for_rules_on_windows_alone(table):
    """A process that knows the rules makes no results of windows while none looks at them."""
    made, rules = [], '[[rule]]\nname = "warm"\nmetric = "t"\nabove = 10\n'
    script = Script().watermark(0).arrive(event_at(1, 12)).watermark(HOUR)
    with mock.patch.object(aggregate, "batches_of", lambda *arguments: made.append(1) or batches_of(*arguments)):
        _run(table, script, ("warm", "a", "firing"), rules=rules)
    assert not made
