"""Looks for silent sensors while the watermark stands, on the modelled engine."""

import os
from random import Random
from unittest import mock

import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.core.alerts.group_alerts import BEGIN
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence import SilentSensors
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.timer_holds import OF_WORKERS
from pipeline.transforms.alert_table import WatchedTable
from pipeline.transforms.alerts import _HeardFn, _SweepFn
from tests.engine.fragment import Fragment, clock, set_clock
from tests.engine.service import END_US, LOST, REFUSED, Stage
from tests.engine.state_service import StateService
from tests.model.reference import HOUR, MINUTE, SECOND
from tests.model.world import START_US

_SILENT_US = 30 * MINUTE
_RULE = Rule("silent", silent_for_us=_SILENT_US)
_SCHEMA = TableSchema.for_new_table()
_TABLE = WatchedTable(
    TableName("test-project", "instance", "table"), _SCHEMA, 0, 0, HOUR, START_US, Retention.of(_SCHEMA)
)
_NEWEST_US = {}


class _Rules:
    """What the table would tell: the rules, and the silent sensors by the rows of newest readings."""

    def rules(self, least=0):
        return RuleSet([_RULE])

    def silent(self, watermark_us, told):
        silent = {each: at_us for each, at_us in _NEWEST_US.items() if at_us < watermark_us - _SILENT_US}
        yield 0, SilentSensors(_RULE.id, watermark_us, "", None, silent)


class Sweep(_Rules, _SweepFn):
    """The sweeps, with such a table."""


class Hears(_Rules, _HeardFn):
    """What the sweeps hear, with such a table."""


class Sweeps:
    """The step, with a source whose watermark goes as far as a test lets it, and a clock that always goes."""

    def __init__(self):
        self.now_us, self.watermark_us, self.random = START_US, START_US - HOUR, Random(0)
        set_clock(lambda: self.now_us / 1e6)
        _NEWEST_US.clear()
        self.silent = set()
        self._hears = Hears(_TABLE, 1, clock)
        self._hears.setup()
        self.stage = Stage(Fragment.of(Sweep(_TABLE, 1, clock), StateService()))
        self.stage.advance(self.watermark_us, self.now_us)
        self._send((0, BEGIN))

    def read(self, sensor, time_us):
        """Readings come."""
        _NEWEST_US[sensor] = max(time_us, _NEWEST_US.get(sensor, 0))
        (part,) = encoded_readings(0, [Readings(sensor, ("t",), [time_us], [1.0])])
        self._send(*self._hears.process((0, part)))

    def _send(self, *elements):
        at = Timestamp(micros=self.now_us)
        self.stage.add(WindowedValue(each, at, (GlobalWindow(),)) for each in elements)

    def pass_time(self, by_us, *sensors, with_watermark=False):
        """Passes time by minutes; in each of them, these sensors send."""
        for _ in range(by_us // MINUTE):
            self.now_us += MINUTE
            for sensor in sensors:
                self.read(sensor, self.now_us - SECOND)
            if with_watermark:
                self.watermark_us = self.now_us - 10 * SECOND
            self.settle()

    def settle(self):
        """Runs bundles until nothing is due; some are not committed."""
        self.stage.advance(self.watermark_us, self.now_us)
        for _ in range(2_000):
            if not self.stage.due():
                assert self.stage.output_us == self.stage.input_us  # no timer of the clock holds the watermark back
                return
            failure = self.random.choice([None, None, LOST, REFUSED])
            committed, outputs = self.stage.work(self.random, failure)
            if committed:
                for _, value in outputs:
                    self.silent |= set(SilentSensors.from_bytes(value.value[1][1:]).newest_us)
            self.stage.advance(self.watermark_us, self.now_us)
        raise AssertionError("there is no end of bundles")


@pytest.fixture
def sweeps():
    """Sweeps that have run for a while, with two sensors that send, while the watermark stood."""
    with mock.patch.dict(os.environ, {OF_WORKERS: ""}):
        found = Sweeps()
        found.pass_time(40 * MINUTE, "a", "b")
        assert not found.silent
        yield found


def test_nobody_sends(sweeps):
    """All sensors are silent after that time by the clock, though the watermark stands."""
    sweeps.pass_time(29 * MINUTE)
    assert not sweeps.silent
    sweeps.pass_time(5 * MINUTE)
    assert sweeps.silent == {"a", "b"}


def test_a_sensor_among_others(sweeps):
    """One that is silent is found while others send: a few messages a minute, by which the watermark does not move."""
    sweeps.pass_time(29 * MINUTE, "b")
    assert not sweeps.silent
    sweeps.pass_time(5 * MINUTE, "b")
    assert sweeps.silent == {"a"}


@pytest.mark.parametrize("is_away", [True, False])
def test_a_backlog(sweeps, is_away):
    """While a job works off what waited, because it or Pub/Sub was away, no sensor is silent whose messages wait."""
    behind_us = sweeps.now_us
    if is_away:
        sweeps.now_us += 6 * HOUR
    else:
        sweeps.pass_time(25 * MINUTE)
    while behind_us < sweeps.now_us:
        for _ in range(4):
            behind_us += MINUTE
            sweeps.read("a", behind_us)
        sweeps.pass_time(MINUTE)
    sweeps.pass_time(HOUR, "a")
    assert sweeps.silent == {"b"}


def test_a_job_that_begins():
    """A job that begins while sensors are silent finds them once it has run for that time."""
    with mock.patch.dict(os.environ, {OF_WORKERS: ""}):
        sweeps = Sweeps()
        _NEWEST_US["a"] = START_US - 5 * HOUR
        sweeps.pass_time(29 * MINUTE)
        assert not sweeps.silent
        sweeps.pass_time(4 * MINUTE)
        assert sweeps.silent == {"a"}


def test_the_watermark_alone(sweeps):
    """A watermark that follows the clock serves alone."""
    sweeps.pass_time(MINUTE, "a", "b", with_watermark=True)
    with mock.patch.object(Sweep, "silent") as by_clock:
        by_clock.return_value = []
        sweeps.pass_time(30 * MINUTE, "a", with_watermark=True)
    times_us = [call.args[0] for call in by_clock.call_args_list]
    assert 8 <= len(set(times_us)) <= 11
    assert sweeps.stage.output_us == sweeps.watermark_us


def test_an_update_of_a_job_without_a_clock(sweeps):
    """Sweeps that have only followed the watermark begin with the clock."""
    sweeps.pass_time(5 * MINUTE, "a", "b", with_watermark=True)
    del sweeps.stage.timers[0]["ts-tick"]
    for stored in (sweeps.stage.fragment.state._stored, sweeps.stage.fragment.state._current):
        for key in [each for each in stored if b"silence_clock" in each]:
            del stored[key]
    sweeps.stage.fragment.forget()
    sweeps.pass_time(5 * MINUTE, "a", "b", with_watermark=True)
    assert not sweeps.silent
    sweeps.pass_time(34 * MINUTE)
    assert sweeps.silent == {"a", "b"}


def test_a_drain_ends_the_looks(sweeps):
    """At a drain, neither a timer nor a look is left, and the clock stands still."""
    for _ in range(3):
        sweeps.pass_time(7 * MINUTE, "a")
    now_us = sweeps.now_us
    sweeps.watermark_us = END_US
    sweeps.settle()
    left = set(sweeps.stage.left())
    assert left == {("state", "swept"), ("state", "silent_groups")}
    assert sweeps.now_us == now_us
    assert sweeps.stage.output_us > END_US - HOUR
