"""Steps of alerts: rules that change, and storms."""

import json
import struct
import time
from dataclasses import replace

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.cloud.connection.errors import ServerError
from pipeline.cloud.tables.alert_store import add_families, write_rules_text
from pipeline.core.alerts.alert_messages import MOST_TOLD, alert_of
from pipeline.core.alerts.alert_rows import alert_row
from pipeline.core.alerts.group_alerts import WindowValue
from pipeline.core.alerts.machine import FIRING, Transition, Value
from pipeline.core.alerts.rules import AlertCondition, Rule
from pipeline.core.events.event import Event
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.key_template import KeyTemplate
from pipeline.core.schema.rate import group_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.proto.window_result_pb2 import MetricResult, WindowResult
from pipeline.transforms import alert_table
from pipeline.transforms.alert_table import AlertTableFn, WatchedTable
from pipeline.transforms.alerts import AlertMessages, PublishAlerts, _SweepFn
from tests.support.alerts import in_order
from tests.support.rows import decoded
from tests.support.tables import HOUR, T, created, raw_row, window_row, write

_RULES = '[[rule]]\nname = "warm"\nmetric = "t"\nabove = 10\n'


@pytest.fixture
def table(bigtable):
    """A table with a family of alerts."""
    name, schema = created(TableSchema.for_new_table()), TableSchema.for_new_table()
    add_families(name, schema)
    return WatchedTable(name, schema, 0, 3_600_000_000, T)


def _step(table: WatchedTable) -> AlertTableFn:
    step = AlertTableFn(table, 8)
    step.setup()
    return step


def test_rules_that_change_are_taken_within_half_a_minute(table, monkeypatch):
    """All steps of a process read the rules together, every 30 seconds; the same rules stay the same object."""
    now_s = time.monotonic()
    monkeypatch.setattr(alert_table.time, "monotonic", lambda: now_s)
    one, other = _step(table), _step(table)
    before = one.rules()
    write_rules_text(table.name, _RULES)
    assert other.rules() is one.rules() is before
    now_s += 31
    after = one.rules()
    assert [rule.name for rule in after.rules] == ["warm"]
    now_s += 31
    assert other.rules() is after
    write_rules_text(table.name, _RULES.replace("above", "abvoe"))
    now_s += 31
    assert one.rules() is after  # what another release stored, perhaps
    one.teardown()
    other.teardown()


def test_rules_that_another_process_has_read_are_read_at_once(table, monkeypatch):
    """Whoever has older rules than the group reads again; what is older still is refused, and never taken."""
    step, waited = _step(table), []
    monkeypatch.setattr(alert_table.time, "sleep", waited.append)
    write_rules_text(table.name, _RULES)
    before = step.rules()
    write_rules_text(table.name, "")
    assert step.rules() is before
    after = step.rules(before.number + 1)
    assert after.rules == ()
    assert not waited
    with pytest.raises(ServerError, match="older than those that the job has"):
        step.rules(after.number + 1)
    assert len(waited) == 5
    monkeypatch.setattr(alert_table, "read_rules", lambda *_: before)  # of a cluster that is behind
    with pytest.raises(ServerError):
        step.rules(after.number + 1)
    assert step.rules() is after
    step.teardown()


def test_rows_of_many_alerts_are_read_together(table):
    """A storm of alerts that begin costs few requests."""
    sensors = [f"s{number}" for number in range(1000)]
    firing = Transition(T, FIRING, 11.0, T)
    rule = Rule("warm", metric="t", condition=AlertCondition("above", 10, 10))
    write(table.name, [decoded(alert_row(rule, each, [firing])) for each in sensors[::2]])
    step = _step(table)
    found = step.records([("warm", each) for each in sensors])
    assert sorted(found) == sorted(("warm", each) for each in sensors[::2])
    assert all(record.transitions == (firing,) for record in found.values())
    assert step._open().requests < 20
    step.teardown()


def test_a_sensor_of_the_roster_alone_is_silent(table):
    """The server sends only the rows of sensors without a newer reading; an id has to match the glob."""
    of_freezers = '[[rule]]\nname = "silent"\nsensors = "fr*-?"\nsilent_for = "30m"\n'
    write_rules_text(table.name, of_freezers + '[[rule]]\nname = "all"\nsilent_for = "2h"\n')
    newest = NewestReadings()
    for sensor, minutes in {"freezer-1": 0, "freezer-22": 0, "freezer-3": 40, "other": 0}.items():
        newest.add(sensor, T + minutes * 60_000_000, [("t", 1.0), ("u", 2.0)])
    write(table.name, map(decoded, newest.rows("latest")))
    step = _step(table)

    def silent(minutes):
        parts = [part for _, part in step.silent(T + minutes * 60_000_000, ())]
        return sorted((sensor, part.rule_id.partition("@")[0]) for part in parts for sensor in part.newest_us)

    assert silent(30) == []
    assert silent(60) == [("freezer-1", "silent")]
    assert silent(121) == [
        ("freezer-1", "all"),
        ("freezer-1", "silent"),
        ("freezer-22", "all"),
        ("freezer-3", "silent"),
        ("other", "all"),
    ]
    step.teardown()


def test_a_look_tells_all_in_bounded_parts(table, monkeypatch):
    """Ranges of ids together contain each silent sensor of a group once. Groups to be told get one at least."""
    monkeypatch.setattr(alert_table, "_MOST_SILENT", 3)
    write_rules_text(table.name, '[[rule]]\nname = "silent"\nsilent_for = "30m"\n')
    newest, sensors = NewestReadings(), [f"s{number}" for number in range(40)]
    for sensor in sensors:
        newest.add(sensor, T, [("t", 1.0)])
    write(table.name, map(decoded, newest.rows("latest")))
    step = _step(table)
    parts = list(step.silent(T + HOUR, range(8)))
    assert all(len(part.newest_us) <= 3 for _, part in parts)
    for group in range(8):
        of_group = [part for each, part in parts if each == group]
        assert [part.after for part in of_group] == ["", *(part.until for part in of_group[:-1])]
        assert of_group[-1].until is None
        expected = sorted(each for each in sensors if group_of(each.encode(), 8) == group)
        assert [each for part in of_group for each in part.newest_us] == expected
        assert all(part.spans(each) for part in of_group for each in part.newest_us)
    assert step.stored(step.rules().rules[0], ["s1", "other"]) == ({"s1": T}, set())
    step.teardown()


def test_groups_whose_sensors_are_silent_no_more_are_told(table, monkeypatch):
    """A job that begins tells all groups, until the watermark is that of the job before; then those it told before."""
    rules = '[[rule]]\nname = "silent"\nsilent_for = "30m"\n'
    write_rules_text(table.name, rules)
    newest, group = NewestReadings(), group_of(b"a", 8)
    newest.add("a", T - HOUR, [("t", 1.0)])
    write(table.name, map(decoded, newest.rows("latest")))
    now_s = time.monotonic()
    monkeypatch.setattr(alert_table.time, "monotonic", lambda: now_s)
    step, state = _SweepFn(table, 8, lambda: T / 1e6), _State()
    step.setup()

    def told(watermark_us):
        found = [each for each, _ in step._look(watermark_us, state)]
        return sorted(found)

    assert told(T - 1) == told(T) == list(range(8))
    assert told(T + 1) == [group]
    write_rules_text(table.name, "")
    now_s += 31
    assert told(T + 2) == [group]
    assert told(T + 3) == []
    write_rules_text(table.name, rules)
    now_s += 31
    assert told(T - HOUR) == []
    assert told(T + 4) == [group]
    step.teardown()


class _State:
    value = None

    def read(self):
        return self.value

    def write(self, value):
        self.value = value


def test_a_long_history_is_not_read_to_tell_what_fires(table):
    """A step that begins reads the last transitions of an alert."""
    rule, times_us = Rule("warm", metric="t", condition=AlertCondition("above", 10, 10)), range(1, 302)
    found = in_order(rule, {T + each * 1_000_000: 11 if each % 2 else 9 for each in times_us})
    write(table.name, [decoded(alert_row(rule, "a", found))])
    step = _step(table)
    (record,) = [each for group in range(8) for each in step.restored(group).open]
    assert record.is_firing
    assert record.transitions == tuple(found[-2:])
    step.teardown()


@pytest.mark.parametrize(("number", "kinds"), [(MOST_TOLD, {"firing"}), (MOST_TOLD + 1, {"summary"})])
def test_a_storm_is_summed_up(number, kinds):
    """Alerts of a rule that come together become one message if they are many; those of another rule stay their own."""
    told = []
    for name, count in (("warm", number), ("cold", 1)):
        rule = Rule(name, metric="t")
        for sensor in range(count):
            alert = alert_of(rule, f"s{sensor}", Transition(T, FIRING, 1.0, T), "table")
            told.append((name, json.dumps(alert).encode()))
    _KEPT.clear()
    with beam.Pipeline(FnApiRunner()) as pipeline:
        alerts = pipeline | beam.Create(told, reshuffle=False).with_output_types(beam.typehints.KV[str, bytes])
        _ = alerts | AlertMessages(lambda: T / 1e6) | beam.Map(_keep)
    of_warm = [kind for name, kind in _KEPT if name == "warm"]
    assert set(of_warm) == kinds
    assert len(of_warm) == (number if kinds == {"firing"} else 1)
    assert [kind for name, kind in _KEPT if name == "cold"] == ["firing"]


_KEPT: list[tuple[str, str]] = []


def _keep(message: beam.io.gcp.pubsub.PubsubMessage) -> None:
    _KEPT.append((message.attributes["rule"], message.attributes["kind"]))


def test_only_committed_alerts_are_published():
    """A shuffle stands between the step that sums up and the one that publishes."""
    pipeline = beam.Pipeline(FnApiRunner())
    alerts = pipeline | beam.Create([("warm", b"")]).with_output_types(beam.typehints.KV[str, bytes])
    _ = alerts | PublishAlerts("projects/test-project/topics/alerts")
    steps = pipeline.to_runner_api().components.transforms.values()
    (shuffle,) = [
        each for each in steps if each.spec.urn == "beam:transform:reshuffle:v1" and "Alerts" in each.unique_name
    ]
    (summed,), (published,) = shuffle.inputs.values(), shuffle.outputs.values()
    assert any(summed in each.outputs.values() for each in steps if each.unique_name.endswith("Collect"))
    assert any(published in each.inputs.values() for each in steps if each.unique_name.endswith("WriteToPubSub"))


def test_sensors_that_a_rule_names(table):
    """Those without a row never sent; of the others, those are silent without a newer reading."""
    write_rules_text(table.name, '[[rule]]\nname = "named"\nsensors = ["c", "a", "b"]\nsilent_for = "30m"\n')
    newest = NewestReadings()
    for sensor, minutes in {"a": 0, "b": 50, "d": 0}.items():
        newest.add(sensor, T + minutes * 60_000_000, [("t", 1.0)])
    write(table.name, map(decoded, newest.rows("latest")))
    step = _step(table)
    found = [silent.newest_us for _, silent in step.silent(T + HOUR, ())]
    assert {sensor: at_us for each in found for sensor, at_us in each.items()} == {"a": T, "c": None}
    step.teardown()


@pytest.mark.parametrize("locates", [True, False])
@pytest.mark.parametrize("at_s", [0, 3600])
def test_the_newest_readings(bigtable, locates, at_s):
    """They are those of raw rows that did not come; or the newest of all, where keys do not locate a sensor."""
    schema = TableSchema.for_new_table()
    if not locates:
        schema = replace(schema, key=KeyTemplate.parse("{time:%Y-%m-%dT%H:%M:%S}#{sensor_id}"))
    name, newest = created(schema), NewestReadings()
    for sensor in "abcd":
        for second, value in enumerate((5.0, 6.0, 7.0)):
            write(name, [raw_row(Event(sensor, T + second * 1_000_000, {"t": value}, {}), schema)])
            newest.add(sensor, T + second * 1_000_000, [("t", value)])
    write(name, map(decoded, newest.rows("latest")))
    step = AlertTableFn(WatchedTable(name, schema, 0, 0, T), 8, lambda: T / 1e6 + at_s)
    step.setup()
    first, second, third = (Value(T + second * 1_000_000, 5.0 + second) for second in range(3))
    came = {("a", "t"): [third], ("b", "t"): [second], ("c", "t"): [first, second, third], ("e", "t"): [first]}
    if locates:
        assert step.newest(came) == {("b", "t"): third}  # those of a are older, those of c all came
        rule = Rule("still", metric="t", unchanged_for_us=HOUR, tolerance=1)
        assert step.unchanged_since(rule, "a", 7.0, T + 2_000_000) == T + 1_000_000
        assert step.unchanged_since(replace(rule, tolerance=2), "a", 7.0, T + 2_000_000) == T
    else:
        assert step.newest(came) == {(sensor, "t"): third for sensor in "abc"}
    step.teardown()


def test_windows_that_are_late(table):
    """A window is late if the table has a newer one that is over, or a newer version of it."""
    start_us, window = T - T % HOUR, table.schema.tiers[0].window
    rule = Rule("mean", metric="t", of="avg", tier="1h", condition=AlertCondition("above", 10, 10))
    for sensor, hours in {"a": [0, 1], "b": [0], "c": [0, 2]}.items():  # that of c is not over
        write(table.name, [window_row(window, sensor, start_us + hour * HOUR, {"t": 5.0}) for hour in hours])
    step = AlertTableFn(table, 8, lambda: (start_us + 2.5 * HOUR) / 1e6)
    step.setup()
    newest = {sensor: Value(start_us + HOUR, 11.0, 2) for sensor in "abcd"}
    assert step.newer_windows(rule, newest) == {"a"}
    assert step.newer_windows(rule, {"b": Value(start_us + HOUR, 11.0, 1)}) == {"b"}
    step.teardown()


def test_windows_that_lack_data(table):
    """A rule looks at windows with enough readings, and gets their number, share and version."""
    rules = '[[rule]]\nname = "mean"\nmetric = "t"\nof = "avg"\ntier = "1h"\nabove = 10\n'
    write_rules_text(table.name, rules + "min_count = 3\n" + rules.replace("mean", "max").replace("avg", "max"))
    step, found = _step(table), list[WindowValue]()
    for count in (2, 3):
        metric = MetricResult(metric="t", count=count, coverage=0.5)
        for name in ("avg", "max"):
            metric.statistics.add(name=name, value=7.0)
        times = {"window_start": "2026-02-17T10:00:00Z", "window_end": "2026-02-17T11:00:00Z"}
        result = WindowResult(sensor_id="a", tier="1h", kind="late", metrics=[metric], version=count * 2, **times)
        batch = b"\x01" + struct.pack("<I", result.ByteSize()) + result.SerializeToString()
        for _, part in step.window_values(batch):
            found += [WindowValue(*each) for each in json.loads(part[1:])]
    seen = [(each.rule_id.partition("@")[0], each.value[1:]) for each in found]
    assert seen == [("max", [7.0, 4, 2, 0.5]), ("mean", [7.0, 6, 3, 0.5]), ("max", [7.0, 6, 3, 0.5])]
    step.teardown()
