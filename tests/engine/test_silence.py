"""Looks for silent sensors while the watermark stands, on the modelled engine."""

import json
import os
from collections import deque
from random import Random
from unittest import mock

import pytest
from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.transforms.userstate import RuntimeTimer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from pipeline.cloud.connection.names import TableName
from pipeline.core.alerts.group_alerts import BEGIN, SilentSensors
from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import Rule
from pipeline.core.alerts.silence_clock import SilenceClock
from pipeline.core.panes.grouped_readings import Readings, encoded_readings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.private_apis.worker_state import OF_WORKERS
from pipeline.transforms.alert_table import WatchedTable
from pipeline.transforms.alerts import _HeardFn, _SweepFn
from tests.engine.fragment import Fragment, clock, set_clock
from tests.engine.service import END_US, LOST, REFUSED, Stage
from tests.engine.state_service import StateService
from tests.model.reference import DAY, HOUR, MINUTE, SECOND
from tests.model.world import START_US

_SILENT_US = 30 * MINUTE
_RULE = Rule("silent", silent_for_us=_SILENT_US)
_SCHEMA = TableSchema.for_new_table()
_TABLE = WatchedTable(TableName("test-project", "instance", "table"), _SCHEMA, 0, HOUR, START_US)
_NEWEST_US, _RULES = {}, []


class _Rules:
    """What the table would tell: the rules, and the silent sensors by the rows of newest readings."""

    def rules(self, least=0):
        return RuleSet(_RULES)

    def silent(self, watermark_us, told):
        for rule in _RULES:
            until_us = watermark_us - rule.silent_for_us
            silent = {each: at_us for each, at_us in _NEWEST_US.items() if at_us < until_us}
            yield 0, SilentSensors(rule.id, watermark_us, "", None, silent)


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
        _RULES[:] = [_RULE]
        self.silent, self.failures = set(), [None, None, LOST, REFUSED]
        self._hears = Hears(_TABLE, 1, clock)
        self._hears.setup()
        self.stage = Stage(Fragment.of(Sweep(_TABLE, 1, clock), StateService()))
        self.stage.advance(self.watermark_us, self.now_us)
        self._send((0, BEGIN))

    def read(self, sensor, time_us):
        """A reading comes, and its row is written."""
        self.write(*self.heard(sensor, time_us))

    def heard(self, sensor, time_us):
        """A reading comes. Returns what to write when its bundle is committed."""
        (part,) = encoded_readings(0, [Readings(sensor, ("t",), [time_us], [1.0])])
        return sensor, time_us, list(self._hears.process((0, part)))

    def write(self, sensor, time_us, elements):
        """A reading's row is written, and the sweeps get what they hear of it."""
        _NEWEST_US[sensor] = max(time_us, _NEWEST_US.get(sensor, 0))
        self._send(*elements)

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
            failure = self.random.choice(self.failures)
            committed, outputs = self.stage.work(self.random, failure)
            if committed:
                for _, value, _ in outputs:
                    if value.value[1] == BEGIN:
                        self.silent.clear()
                    else:
                        self.silent |= set(json.loads(value.value[1][1:])[-1])
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
    """A job that begins while sensors are silent finds them after ten minutes in which nothing came."""
    with mock.patch.dict(os.environ, {OF_WORKERS: ""}):
        sweeps = Sweeps()
        _NEWEST_US["a"] = START_US - 5 * HOUR
        sweeps.pass_time(9 * MINUTE)
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


@pytest.mark.parametrize("with_watermark", [True, False])
def test_a_rule_that_comes_beside_a_long_one(sweeps, with_watermark):
    """A rule counts at once, though the looks for those before it are a month apart."""
    _RULES[:] = [Rule("gone", silent_for_us=365 * DAY)]
    sweeps.pass_time(HOUR, "a", "b", with_watermark=with_watermark)
    _RULES.append(_RULE)
    sweeps.pass_time(29 * MINUTE, "b", with_watermark=with_watermark)
    assert not sweeps.silent
    sweeps.pass_time(7 * MINUTE, "b", with_watermark=with_watermark)
    assert sweeps.silent == {"a"}


def test_rules_that_are_removed(sweeps):
    """Groups with silent sensors are told, though nothing comes that would end their alerts, and once."""
    sweeps.pass_time(35 * MINUTE)
    assert sweeps.silent == {"a", "b"}
    _RULES.clear()
    sweeps.pass_time(2 * MINUTE)
    assert not sweeps.silent
    sweeps.silent.add("told again")
    sweeps.pass_time(2 * MINUTE)
    assert sweeps.silent


def test_rows_that_are_written_ever_later(sweeps):
    """Readings get older until their rows are written, and the looks are as far behind."""
    waiting = deque()
    for minute in range(2 * 60):
        waiting.append(sweeps.heard("a", sweeps.now_us))
        if minute % 2:
            sweeps.write(*waiting.popleft())
        sweeps.pass_time(MINUTE)
    assert sweeps.silent == {"b"}


def test_looks_that_take_long(sweeps):
    """A look at many sensors is no break, after which the job would wait."""
    silent, sweeps.failures = Sweep.silent, [None]

    def slow(*arguments):
        sweeps.now_us += 8 * MINUTE
        return silent(*arguments)

    with mock.patch.object(Sweep, "silent", slow):
        sweeps.pass_time(20 * MINUTE, "b")
    assert sweeps.silent == {"a"}


def test_a_clock_that_is_set_back(sweeps):
    """Looks go on with the next reading after the clock was ahead."""
    now_us = sweeps.now_us
    sweeps.now_us += 6 * HOUR
    sweeps.read("a", now_us)
    sweeps.pass_time(2 * MINUTE)
    sweeps.now_us = now_us
    sweeps.pass_time(29 * MINUTE, "b")
    assert not sweeps.silent
    sweeps.pass_time(9 * MINUTE, "b")
    assert sweeps.silent == {"a"}


def test_the_watermark_of_one_machine(sweeps):
    """The DirectRunner's watermark is the clock, which passes by what waits in Pub/Sub: no look goes by it."""
    sweeps.now_us += HOUR
    silence_clock = mock.Mock(read=SilenceClock(START_US, START_US).to_bytes)
    swept, groups = mock.Mock(read=lambda: START_US), mock.Mock(read=lambda: None)

    def looks(timer):
        at = Timestamp(micros=sweeps.now_us)
        return [*Sweep(_TABLE, 1, clock).sweep(at, swept, groups, silence_clock, timer, timer)]

    assert looks(mock.Mock(spec=OutputTimer))
    assert not looks(RuntimeTimer())


def test_a_watermark_that_leaps(sweeps):
    """After months of silence, a reading moves the watermark to the present: sweeps pass that time in few bundles."""
    sweeps.pass_time(4 * MINUTE, "a", "b", with_watermark=True)
    sweeps.now_us += 100 * DAY
    sweeps.pass_time(MINUTE, "a", "b", with_watermark=True)
    sweeps.pass_time(29 * MINUTE, "a", with_watermark=True)
    assert not sweeps.silent
    sweeps.pass_time(5 * MINUTE, "a", with_watermark=True)
    assert sweeps.silent == {"b"}


@pytest.mark.parametrize("with_watermark", [True, False])
def test_an_update_of_a_job_without_a_clock(sweeps, with_watermark):
    """Sweeps that have only followed the watermark begin with the clock, at the next reading at the latest."""
    sweeps.pass_time(5 * MINUTE, "a", "b", with_watermark=True)
    del sweeps.stage.timers[0]["ts-tick"]
    for stored in (sweeps.stage.fragment.state._stored, sweeps.stage.fragment.state._current):
        for key in [each for each in stored if b"silence_clock" in each]:
            del stored[key]
    sweeps.stage.forget()
    sweeps.pass_time(5 * MINUTE, "a", "b", with_watermark=with_watermark)
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
    assert left == {("state", "swept"), ("state", "silent_groups"), ("state", "silence_clock")}
    assert sweeps.now_us == now_us
    assert sweeps.stage.output_us > END_US - HOUR
    sweeps.pass_time(2 * MINUTE, "a")  # what comes late begins nothing again
    assert set(sweeps.stage.left()) == left
