"""Random histories of a job on the modelled engine, and what must hold in the end: the table is exact."""

from contextlib import ExitStack, contextmanager
from fractions import Fraction
from random import Random
from types import SimpleNamespace

import pytest

from pipeline.cloud.tables.alert_store import RULES_KEY
from pipeline.core.alerts.alert_rows import FAMILY, alert_range, parse_alert_row
from pipeline.core.completion.work_list import BACKFILLED
from pipeline.core.events.event import LATEST_US, validate
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import Cell, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import SCHEMA_FAMILY
from tests.engine.bigtable import Bigtable
from tests.engine.job import FAULTS, KIND, job_of, refuses_some, spec_of
from tests.engine.service import LOST, RAISED, REFUSED
from tests.model.judge import Judge
from tests.model.reference import DAY, HOUR, MINUTE, SECOND, Published, Truth, end_of, start_of
from tests.model.world import START_US, World, message, proto_of
from tests.support.merged_rollups import differences, expected_rollups, found_rollups
from tests.support.results import newest_columns

ROLLUPS = ('site = { by = "metadata.location" }', 'fleet = { by = [], tiers = ["1h"] }', "shards = 2")
OF_HISTORIES = {
    "crashes": "a job is killed: what it has not acknowledged comes again, what it knew is lost",
    "tools": "backfills and repairs run beside the job",
    "old": "events are up to forty days old, not only thirty hours",
}
ALL_FAULTS = {**FAULTS, **OF_HISTORIES}
_OTHERS = (b"agg#", b"rollup", b"repair#", b"latest#", b"schema#", b"alert")
_LIMIT = 30
_RULES = b'[[rule]]\nname = "warm"\nmetric = "t"\nabove = %d\n' % _LIMIT
_AGES = [0, 0, 10 * SECOND, 5 * MINUTE, 40 * MINUTE, 2 * HOUR, 30 * HOUR, -20 * MINUTE]
_OLD = [5 * HOUR, 3 * DAY, 40 * DAY]
_BYS = [SECOND, MINUTE, 6 * MINUTE, 25 * MINUTE, HOUR, DAY]
_LAGS = [SECOND, 10 * MINUTE, HOUR, -10 * MINUTE]
_ACTS = ["publish"] * 4 + ["publish again"] + ["work"] * 4 + ["wait", "lag", "update", "drain", "cancel", "rest"]

_LANDS_LATER = {"failures", "torn", "zombies", "echoes"}
_ROUNDING = Fraction(1, 10**6)  # of an increase


class Tools(World):
    """The tables of a job, and backfills and repairs of the first one beside it."""

    def look(self, **_):
        """Leaves it to the history to check the table."""

    def backfill_beside(self, job, events):
        """Writes events as if from files. The job brings roll-ups of windows in line that it has open."""
        unrolled = set(self.unrolled)
        with self._beside(job):
            self.backfill(self.names[0], events, in_flight=True)
        self.unrolled = unrolled

    def repair_beside(self, job, *, listed):
        """Repairs the work list, or everything."""
        with self._beside(job):
            self.repair(self.names[0], listed=listed, in_flight=True)

    @contextmanager
    def _beside(self, job):
        self.now_us = job.now_us
        self.job = SimpleNamespace(
            settings=job.settings,
            watermark_us=job.source_us,
            catch_up=job.settle,
            stages=[self.names[0]],
            pending=lambda _: set(),
            kept=lambda _: set(),
        )
        with self.simulated():
            yield

    def rolled_up(self):
        """Returns the windows, by length and start, that repairs have written: roll-ups of the job may lack them."""
        return {(text, start_us) for _, text, start_us in self.unrolled}


class History:
    """What happens to a job, what was published, and what the jobs publish.

    Args:
        spec: the table's spec.
        random: decides what happens.
        faults: names of :data:`ALL_FAULTS`.
        also: the spec of another table.
        alerts: whether the job watches the sensors.
        how: arguments of :func:`tests.engine.job.job_of`.
    """

    def __init__(self, spec, random, faults=(), also=None, *, alerts=False, **how):
        self.schema, self.random, self.faults = spec.schema, random, set(faults)
        self._tools = Tools([spec, also] if also else [spec])
        self.published, self.loaded, self.results = [], [], []
        self.excused, self.excused_groups = set(), set()
        self.how = {"faults": self.faults & FAULTS.keys(), "seed": random.randrange(1000), "groups": 16, **how}
        self.has_results = not self.faults & {"crashes", "refusals", "tools"}  # else a window's last one may be missing
        if self.has_results:
            self.how |= {"results_topic": "projects/test-project/topics/results"}
        if also:
            self.how["also"] = also.schema
        self.has_alerts = alerts and not self.faults & {"crashes", "refusals", "tools"}  # else readings may be missed
        if self.has_alerts:
            self.how["alerts_topic"] = "projects/test-project/topics/alerts"
            rules = Cell(SCHEMA_FAMILY, b"rules.toml", 1000, _RULES)
            self._tools.tables[self._tools.names[0]].write(Row(RULES_KEY, [rules]))
        self.job, self._running = None, None
        self.bigtable = Bigtable(self._tools.tables)
        self.begin(START_US)

    @classmethod
    def of(cls, seed, faults=()):
        """Returns the history of a seed, with the table, the writer and the engine that it draws."""
        random = Random(seed)
        tiers, rollups = random.choice([("1h",), ("1h", "1d")]), random.choice([(), ROLLUPS])
        increases = random.choice([(), (), ("t",)])
        if _LANDS_LATER & set(faults):  # of two rows that count the same, the last to arrive stays
            increases = ()
        spec = spec_of(*tiers, rollups=rollups, increases=increases)
        how = {
            "cache_mb": random.choice([0, 100]),
            "page_bytes": random.choice([1, 1 << 20]),
            "bigtable_writer": random.choice(["connector", "bulk"]),
            "also": random.choice([None, None, spec_of("1h")]),
            "alerts": random.random() < 0.25,
        }
        return cls(spec, random, faults, **how)

    def run(self, steps=None):
        """Lets so many things happen, by default some, and checks the table in the end."""
        steps = self.random.randint(1, 30) if steps is None else steps
        try:
            for _ in range(steps):
                self.act()
            self.drain()
            for _ in range(2):
                self.check()
                self.job.bigtable.land(self.random)  # the last rows that are on their way
            self.check_results()
            self.check_alerts()
        finally:
            self._running.close()

    def begin(self, now_us):
        if self.job is not None:
            self.results += self.job.results
            self._running.close()
        self.job, self._running = job_of(self.schema, now_us, bigtable=self.bigtable, **self.how), ExitStack()
        self._running.enter_context(self.job.running())

    def act(self):
        """Lets anything happen."""
        random, job = self.random, self.job
        more = ["crash"] * 3 * ("crashes" in self.faults) + ["backfill", "repair"] * 2 * ("tools" in self.faults)
        what = random.choice(_ACTS + more)
        match what:
            case "publish":
                self.publish(*self._events())
            case "backfill":
                events = [each for each in self._events() if not any(map(refuses_some, "t", _keys(self.schema, each)))]
                self.loaded += [each for each in events if each not in self.published]
                self._tools.backfill_beside(job, events)
            case "repair":
                self._tools.repair_beside(job, listed=random.random() < 0.5)
            case "publish again" if self.published:
                job.publish(message(random.choice(self.published)))
            case "work":
                failure = random.choice([None, None, None, LOST, REFUSED, RAISED])
                for _ in range(random.randint(1, 6)):
                    job.work(failure)
            case "wait":
                job.pass_time(random.choice(_BYS), random.choice(_LAGS))
            case "lag":  # bundles that are due have to wait
                job.advance(now_us=job.now_us + random.choice(_BYS))
                job.advance(job.now_us - random.choice(_LAGS))
            case "update":
                job.update()
            case "drain":
                self.drain()
                self.begin(job.now_us + SECOND)
            case "cancel":  # and everything is published again
                self.begin(job.now_us + SECOND)
                self.excused, self.excused_groups = set(), set()
                self.publish(*self.published)
            case "crash":
                self.crash()
            case "rest":
                job.pass_time(3 * HOUR)
                job.pass_time(2 * MINUTE)
                self.check()

    def _events(self):
        """Returns some events of any sensors and ages."""
        random, now_us = self.random, self.job.now_us // 1000 * 1000
        ages = _AGES + _OLD * ("old" in self.faults)
        times = [now_us - random.choice(ages) + random.randint(0, 3) * 1000 for _ in range(random.randint(1, 3))]
        return [published(random.choice("aab"), each) for each in times]

    def publish(self, *events):
        self.published += [each for each in events if each not in self.published]
        kept = self._kept()
        for each in (event for event in events if event in kept):  # a refused row makes nothing of its window
            text = self.schema.tiers[0].window.text
            self.excused.discard((text, each.sensor_id, start_of(each.time_us, text)))
        self.job.publish(*(message(each) for each in events))

    def crash(self):
        """Kills the job amid a bundle. What it has not acknowledged comes again."""
        job = self.job
        job.work(LOST)
        left = [value.value for elements in job.source.waiting.values() for value, _ in elements]
        self.begin(job.now_us + SECOND)
        self.excused |= self._wrong()
        self.excused_groups |= {(text, start_us) for text, _, start_us in self.excused} | self._wrong_groups()
        self.job.receive(*left)

    def drain(self):
        now_us = self.job.now_us
        self.job.drain()
        assert self.job.now_us == now_us, "a drain waits for the clock"
        assert self.job.left() == [], "something is left of a drained job"

    def check(self):
        """Asserts that raw rows are those of all events, and that all windows are exact, but for those in the contract.

        The contract excuses windows that got nothing more after a crash, and with refused rows those that are listed.
        """
        for name, table in self._tools.tables.items():
            raw = {key for each in self._kept(name) for key in _keys(self.schema, each)}
            assert {key for key in table.keys(b"") if not key.startswith(_OTHERS)} == raw, "raw rows differ"
        texts = [tier.window.text for tier in self.schema.tiers]
        listed = {window for each in self._tools.tables.values() for window in _listed(each)}
        assert not listed or self.faults & {"refusals", "tools"}, f"listed: {listed}"
        wrong = {
            (text, sensor_id, start_us)
            for text, sensor_id, start_us in self._wrong() - self.excused
            if not any(of == sensor_id and start_us <= at_us < end_of(start_us, text) for of, at_us in listed)
        }
        assert not wrong, f"aggregates: {[(each, self.job.rows().get(each)) for each in wrong]}"
        excused = self.excused_groups | self._tools.rolled_up()
        excused |= {(text, start_of(at_us, text)) for text in texts for _, at_us in listed}
        assert not self._wrong_groups() - excused, f"roll-ups: {self._wrong_groups() - excused}"

    def check_results(self):
        """Asserts that the greatest result of each window is its row, but for rounding.

        Two panes that count the same readings may differ in the last digits.
        """
        if self.has_results:
            results = [*self.results, *self.job.results]
            assert len({result.event_id for result in results}) == len(results), "two results share an id"
            newest, rows = newest_columns(results), self.job.rows()
            assert newest.keys() == rows.keys(), "windows with results differ"
            differing = [key for key, row in rows.items() if newest[key] != pytest.approx(row, rel=1e-9, abs=1e-9)]
            assert not differing, f"results differ: {differing}"

    def check_alerts(self):
        """Asserts that an alert fires for the sensors whose newest reading is beyond the limit."""
        if self.has_alerts:
            rows = self.job.table(RowSelection(alert_range(), CellSelection((FAMILY,))))
            firing = {record.sensor_id for record in map(parse_alert_row, rows) if record.is_firing}
            newest = {each.sensor_id: each for each in sorted(self.published, key=lambda each: each.time_us)}
            warm = {sensor_id for sensor_id, each in newest.items() if each.readings["t"] > _LIMIT}
            assert firing == warm, f"alerts: {firing} instead of {warm}"

    def _kept(self, name=None):
        """Returns the events whose raw rows a table takes, by default the first, which backfills load."""
        events = [*self.published, *(self.loaded if name in (None, self._tools.names[0]) else ())]
        if self.job.bigtable.patience is not None or "refusals" not in self.faults:
            return events
        return [each for each in events if not any(refuses_some("", key) for key in _keys(self.schema, each))]

    def _wrong(self):
        """Returns the windows, by length, sensor and start, whose rows are not those of the raw rows."""
        truths, wrong = {name: Truth(KIND) for name in self._tools.tables}, set()
        for name, truth in truths.items():
            for each in self._kept(name):
                truth.accept(each)
        for name, tier in [(name, tier) for name, schema in self._tools.schemas.items() for tier in schema.tiers]:
            rows, text = self.job.rows(self._tools.tables[name]), tier.window.text
            expected = truths[name].windows(text)
            found = {(sensor, start_us): row for (of, sensor, start_us), row in rows.items() if of == text}
            for window in found.keys() | expected.keys():
                row = dict(found.get(window, {}))
                increase = Fraction(row.pop("increase_t", truths[name].increase(window[0], "t", window[1], text)))
                right = window in expected and expected[window].agrees(row)
                if not right or abs(increase - truths[name].increase(window[0], "t", window[1], text)) > _ROUNDING:
                    wrong.add((text, *window))
        return wrong

    def _wrong_groups(self):
        """Returns the windows, by length and start, in which a group is not the merge of its sensors' rows."""
        expected = expected_rollups(self.schema, self.job.rows(), self._member)
        wrong = differences(found_rollups(self.schema, self.job.table), expected)
        return {(text, start_us) for (text, _, _, start_us), *_ in wrong}

    def _member(self, text, sensor_id, start_us):
        """Returns the metadata of the newest event of a sensor's window."""
        times = [each.time_us for each in self._kept() if each.sensor_id == sensor_id]
        newest_us = max((time_us for time_us in times if start_of(time_us, text) == start_us), default=None)
        return {} if newest_us is None else {"location": location_of(sensor_id, newest_us)}


def _listed(table):
    """Yields sensor and start of the windows that a job or a repair has listed, and not only a backfill."""
    for key in table.keys(b"repair#"):
        if any(not qualifier.startswith(BACKFILLED) for _, qualifier in table.newest(key)):
            yield Judge.window_of(key)[1:]


def _keys(schema, event):
    return [row.key for row in schema.rows(validate(proto_of(event), LATEST_US))]


def published(sensor_id, time_us):
    """Returns an event, with the place where its sensor is."""
    return Published(sensor_id, time_us, ("t",), location_of(sensor_id, time_us))


def location_of(sensor_id, time_us):
    """Returns where a sensor is at a time: it moves each ten minutes."""
    return "north" if time_us // (10 * MINUTE) * len(sensor_id) % 2 else "south"
