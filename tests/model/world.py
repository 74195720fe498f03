"""Tables in memory, a clock, and everything that is done to tables: jobs, backfills, repairs, changes, collection.

All of it runs the project's own functions; only servers, Beam and the time are simulated.
"""

import json
import math
import random
from collections import defaultdict
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from unittest import mock

from apache_beam.io.gcp.pubsub import PubsubMessage
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import TaggedOutput

from pipeline.backfill import transforms as backfilling
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import retention_notes, tables
from pipeline.cloud.tables.schema_store import SCHEMA_KEY
from pipeline.core.completion.newest_audit import NewestAudit, within
from pipeline.core.completion.work_list import BACKFILLED, REPAIRED, listing, work_row
from pipeline.core.events.event import LATEST_US, validate
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.panes.grouped_readings import GroupedReadings, start_of_readings
from pipeline.core.rows.newest_row import NewestReadings, latest_key
from pipeline.core.schema.changes import changes
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.table_schema import SchemaError, Tier
from pipeline.core.windows import parse_window, sources, tier_problem
from pipeline.job import checks
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.repair import following, report, scope
from pipeline.repair import run as repair
from pipeline.repair import scan as scanning
from pipeline.repair import transforms as repairing
from pipeline.transforms import metrics
from pipeline.transforms import tables as reading
from tests.model.job import WARM, Job, Message
from tests.model.judge import Judge
from tests.model.reference import DAY, HOUR, MS, Truth, end_of, start_of, value_of
from tests.model.rollups import settle_groups, wrong_groups
from tests.model.specs import AGES, STATISTICS, family_of
from tests.model.table import Table
from tests.support.streams import flags, pubsub_message

START_US = round(datetime(2026, 3, 27, 12, tzinfo=UTC).timestamp()) * 1_000_000
_SETTINGS = settings_of(parse_flags(flags()))
_OPTIONS = PipelineOptions([])
_NO_JOB = timedelta(0)


class World(Judge):
    """Everything that exists.

    Attributes:
        now_us: the clock.
        specs: the tables' specs, by name.
        tables: the tables.
        truths: what they must contain.
        job: the running job, if any.
        backlog: messages to redeliver.
        unseen: tables whose policies were changed outside the project and not noticed yet.
        doubtful: days of sensors with a window that a job listed with a reason: a row may count a reading twice.
        sites: the metadata that roll-ups group by, of events, by table, sensor and time.
        moved: days of sensors with an event that came with two groups: the windows of such an event are listed.
        unrolled: windows that others have written beside a job, or collected: roll-ups may differ.
        groups: the number of groups of sensors.
        watched: the time of the newest reading that jobs got, and its class by a rule of alerts, by table and sensor.
    """

    def __init__(self, specs, seed=0):
        super().__init__()
        self.now_us = START_US
        self.random = random.Random(seed)
        self.specs, self.tables, self.truths, self.schemas = {}, {}, {}, {}
        self.names = []
        for number, spec in enumerate(specs):
            name = TableName("test-project", "instance", f"t{number}")
            self.names.append(name)
            self.specs[name], self.schemas[name] = spec, spec.schema
            self.tables[name] = Table(spec.schema.policies)
            self.tables[name].note(SCHEMA_KEY, {b"schema.toml": b""})
            self.truths[name] = Truth(spec.kind)
        self.ages = {name: spec.ages_us for name, spec in self.specs.items()}
        self.stored_ages = {name: spec.ages_us for name, spec in self.specs.items()}
        self._retentions = {}  # what they follow from, and the retention, by table
        self.job, self.backlog, self.unseen = None, [], set()
        self.doubtful, self.watched, self.unrolled = set(), {}, set()
        self.sites, self.moved = {}, set()
        self.groups = self.random.choice([1, 256])
        self.look()

    def clock(self):
        return self.now_us / 1e6

    # Simulated servers

    @contextmanager
    def simulated(self):
        """Replaces everything outside of the process by this world."""
        rows = SimpleNamespace(open=lambda name, *_: self.tables[name].opened())
        clock = SimpleNamespace(
            time=lambda: self.now_us / 1e6, time_ns=lambda: self.now_us * 1000, strftime=lambda *_: "now", gmtime=int
        )
        of_tables = SimpleNamespace(
            find=lambda name: {**self.tables[name].policies, "tidetable": None},
            describe=lambda name: {**self.tables[name].policies, "tidetable": None},
        )
        patches = [
            *((module, "RowReader", rows) for module in (reading, scope, repair, scanning)),
            *((module, "Rewriter", rows) for module in (backfilling, repair, reading)),
            *((module, "now_us", lambda: self.now_us) for module in (backfilling, repairing, following)),
            *((module, "time", clock) for module in (retention_notes, checks, repair, scope, scanning)),
            *((module, "tables", of_tables) for module in (checks, scope)),
            *((module, "schema_of", lambda name, *_: self.schemas[name]) for module in (checks, scope)),
            (checks, "read_schema", self.schemas.get),
            (checks, "_warn", lambda _: None),
            (retention_notes, "_noted", lambda name: self.tables[name].noted),
            (retention_notes, "_note", lambda name, *noted, **how: self.tables[name].note(*noted, **how)),
            (scope, "sampled_keys", lambda _: []),
            *((module, "runs_here", lambda _: True) for module in (scope, repair)),
            (repair, "tempfile", SimpleNamespace(TemporaryDirectory=lambda **_: nullcontext("here"))),
            (repair, "_inspect", self._inspect),
            (repair, "read_findings", lambda prefix, **_: iter(self._found[prefix])),
            (repair, "read_foreign", lambda _: (set(), {})),
            (repair, "read_left", lambda *_: set()),
        ]
        with ExitStack() as stack:
            for module, name, value in patches:
                stack.enter_context(mock.patch.object(module, name, value))
            yield self

    def retention(self, name):
        """Returns the table's retention, from its policies and notes."""
        table = self.tables[name]
        facts = self.schemas[name], dict(table.policies), dict(table.noted)
        known, found = self._retentions.get(name, (None, None))
        if known != facts:
            found = retention_notes.retention_of(name, self.schemas[name], {**table.policies, "tidetable": None})
            self._retentions[name] = facts, found
        return found

    # Roll-ups

    @contextmanager
    def beside_rollups(self, name, *, settles=True):
        """Settles the windows whose aggregate rows others than a job write; notes those beside a job, or collected."""
        before, listed = self._cells(name), self._windows_listed(name)
        yield
        after = self._cells(name)
        changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
        changed |= listed - self._windows_listed(name)
        if settles and self.schemas[name].rollups:
            settle_groups(self.schemas[name], self.tables[name], changed)
        if not settles or (self.job is not None and name in self.job.stages):
            self.unrolled |= {(name, text, start_us) for text, _, start_us in changed}

    def _cells(self, name):
        """Returns the values of a table's aggregate rows by column, also what they tell about sensors, by window."""
        table = self.tables[name]
        newest = {key: table.newest(key) for key in table.keys(b"agg#")}
        return {
            self.window_of(key): {column: cell.value for column, cell in cells.items()} for key, cells in newest.items()
        }

    def _windows_listed(self, name):
        """Returns the windows on the work list, and those of all lengths around them, by length, sensor and start."""
        texts = [tier.window.text for tier in self.schemas[name].tiers]
        return {(text, sensor, start_of(listed_us, text)) for sensor, listed_us in self.listed(name) for text in texts}

    def wrong_rollups(self, name):
        """Returns the windows, by table, length and start, in which a group is not the merge of its sensors' rows."""
        schema = self.schemas[name]
        if not schema.rollups:
            return set()
        wrong = wrong_groups(schema, self.tables[name], self.rows(name))
        return {(name, text, start_us) for (text, _, _, start_us), *_ in wrong}

    def check_rollups(self, names):
        """Asserts that groups are the merges of their sensors' rows, besides windows that are on the work list."""
        for name in names:
            listed = {(name, text, start_us) for text, _, start_us in self._windows_listed(name)}
            wrong = self.wrong_rollups(name) - self.unrolled - listed
            assert not wrong, f"{wrong}: {wrong_groups(self.schemas[name], self.tables[name], self.rows(name))}"

    # Time

    def pass_time(self, by_us):
        if self.job is None:
            self.now_us += by_us
        else:
            self.job.pass_time(by_us)
        self.look()

    def collect(self, name):
        """Collects what the policies allow."""
        if self.job is not None:
            self.job.write_sink()
        with self.beside_rollups(name, settles=False):
            self.tables[name].collect(self.now_us)
        self.truths[name].collect(self.ages[name], self.now_us)
        self.look(collected=True)

    # Jobs

    def launch(self, names, *, checks_on, **changes):
        self.watched = {key: found for key, found in self.watched.items() if self.schemas[key[0]].finds_sensors}
        settings = replace(_SETTINGS, tables=tuple(names), launch_checks=checks_on, **changes)
        if checks_on:
            targets = checks.read_targets(settings)
            checks.record_launch(settings, targets)
            self.unseen.difference_update(names)
        else:
            targets = [Target(name, self.schemas[name], Retention.unknown(self.schemas[name])) for name in names]
        self.job = Job(self, targets, settings, self.random)
        again, self.backlog = self.backlog, []
        if again:
            self.publish(again)

    def update(self, **changes):
        """Updates the job in place: it keeps its state."""
        job = self.job
        settings = replace(job.settings, **changes)
        if settings.launch_checks:
            checks.record_launch(settings, job.targets)
        job.update(settings)
        self.look()

    def listing(self, name, rows):
        """Asserts that a job lists only windows whose raw rows can't serve, or could not once, or that others write."""
        schema, retention = self.schemas[name], self.retention_of_job(name)
        can_read = schema.finds_sensors and retention.known
        from_us = retention.readings_from_us(self.now_us)
        for row in rows:
            _, sensor_id, start_us = self.window_of(row.key)
            day = name, sensor_id, start_of(start_us, "1d")
            if not can_read or day[2] < from_us:
                self.doubtful.add(day)
            others = any(
                mark[:3:2] == (name, sensor_id) and mark[3] <= start_us < end_of(mark[3], mark[1])
                for mark in self.beside
            )
            assert others or day in self.doubtful | self.moved, (
                f"{name.table}: {sensor_id} at {start_us} is listed, but has its raw rows"
            )

    def retention_of_job(self, name):
        return next(target.effective_retention for target in self.job.targets if target.name == name)

    def publish(self, messages, *, fails_first=False):
        """Delivers messages to the job in one bundle, and checks the dead letters."""
        job = self.job
        names = [target.name for target in job.targets]
        kinds = [self.specs[name].kind for name in names]
        expected = []
        for message in messages:
            for event in message.events:
                refused = event.refused(self.now_us, kinds)
                for name in self.names:
                    if (refused or name not in names) and self.has(name, event):
                        self.abandon(name, [event])  # redelivered, but not to this table
                        self.unrolled |= self.wrong_rollups(name)
                        self._unwatch(name, event)
                if refused:
                    expected.append(refused)
                    continue
                for name in names:
                    self._accept(name, event)
                    if WARM.metric in event.metrics:
                        self._watch(name, event)
                    for metric in event.metrics if self.schemas[name].latest else ():
                        of = name, event.sensor_id, metric
                        job.newest[of] = max(job.newest.get(of, 0), event.time_us)
        letters = job.deliver(messages, fails_first=fails_first)
        reasons = [letter.attributes["dead_letter_reason"] for letter in letters]
        reasons = [reason for reason in reasons if reason != "READING_DROPPED"]
        assert sorted(reasons) == sorted(expected), f"dead letters {reasons}, expected {expected}"
        self.look()

    def _accept(self, name, event):
        """Adds an event to the truth; returns whether it repeats one."""
        time_us = event.time_us - event.time_us % self.specs[name].kind.grain_us
        if self.sites.setdefault((name, event.sensor_id, time_us), event.location) != event.location:
            self.moved.add((name, event.sensor_id, start_of(time_us, "1d")))
        return self.truths[name].accept(event)

    def _watch(self, name, event):
        """Notes the newest reading that jobs got of a sensor, and what the rule of alerts says of it."""
        time_us = event.time_us - event.time_us % self.specs[name].kind.grain_us
        at_us, classes = self.watched.get((name, event.sensor_id), (0, set()))
        if time_us >= at_us:
            found = WARM.condition.classify(value_of(event.time_us, WARM.metric))
            self.watched[name, event.sensor_id] = time_us, {found} | (classes if time_us == at_us else set())

    def _unwatch(self, name, event):
        """Forgets a sensor's newest reading, which a job may have lost before it evaluated the reading."""
        time_us = event.time_us - event.time_us % self.specs[name].kind.grain_us
        if time_us == self.watched.get((name, event.sensor_id), (0,))[0]:
            del self.watched[name, event.sensor_id]

    def crash(self, *, redelivered, torn=False):
        """Ends the job and loses everything in flight, also some rows of alerts if their messages come again."""
        job, self.job = self.job, None
        if redelivered:
            self.backlog = job.history
            unknown = {each.name for each in job.targets if not each.effective_retention.known}
            for written in job.sink:  # work list rows are written again with their raw rows
                rows = [row for row in written.rows if not row.key.startswith(b"repair#")]
                if written.name in unknown:  # unless the next job knows that raw rows serve
                    self._abandon_listed(written.name, [row.key for row in written.rows if row not in rows])
                written.rows = [row for row in rows if not torn or job.random.random() < 0.5]
        job.write_sink()
        if redelivered:  # such a job may have counted something twice, and the next one does not
            self.unrolled |= {each for name in unknown for each in self.wrong_rollups(name)}
        for name, text, *window in self.beside:
            numbers = {tier.window.text: number for number, tier in enumerate(self.schemas[name].tiers)}
            if (numbers[text], *window) in job.kept(name):
                self.abandoned.add((name, text, *window))
        if not redelivered:
            self.watched.clear()  # some may not have been evaluated
            for name in job.stages:
                for number, sensor_id, start_us in job.pending(name):
                    self.abandoned.add((name, self.schemas[name].tiers[number].window.text, sensor_id, start_us))
                self.unrolled |= self.wrong_rollups(name)
        self.look()
        self.beside.clear()

    def _abandon_listed(self, name, keys):
        """Excuses windows, and the longer ones around them, that were about to be listed."""
        texts = [tier.window.text for tier in self.schemas[name].tiers]
        listed = [self.window_of(key)[1:] for key in keys]
        self.abandoned |= {(name, text, sensor, start_of(at_us, text)) for sensor, at_us in listed for text in texts}

    def drain(self):
        self.job.drain()
        self.check_newest_of_job()
        self.check_rollups(self.job.stages)
        self.job = None
        self.look()
        self.beside.clear()

    # Backfill

    def _prepare(self, *, in_flight):
        """Completes what is in flight, or keeps it and lets the watermark be late by a few hours at most."""
        if not in_flight or self.now_us - self.job.watermark_us > 3 * HOUR:
            self.job.catch_up()

    def _lateness(self):
        """Returns the options of a backfill or repair: how late the job and its watermark are."""
        if self.job is None:
            return _NO_JOB, _NO_JOB
        settings, behind_us = self.job.settings, max(self.now_us - self.job.watermark_us, 0)
        return settings.allowed_lateness + timedelta(microseconds=behind_us), settings.late_firing

    def backfill(self, name, events, *, broken_off=False, before=None, meanwhile=None, in_flight=False):
        """Writes events as if from files, without those that the table refuses. It may be interrupted half-way.

        Args:
            name: of the table.
            events: published ones.
            broken_off: whether it is interrupted.
            before: called before the raw rows are written.
            meanwhile: called before aggregate rows are written.
            in_flight: whether rows of the running job are on their way.
        """
        table, schema = self.tables[name], self.schemas[name]
        if self.job is not None:
            self._prepare(in_flight=in_flight)
            if before is not None:
                before()
        taken = [event for event in events if not event.refused(self.now_us, [self.specs[name].kind])]
        if not taken:
            return
        valid = [validate(proto_of(event), LATEST_US) for event in taken]
        for event in taken:
            self._accept(name, event)
        table.write_rows(row for event in valid for row in schema.rows(event))
        if broken_off:
            self.abandon(name, taken)
            self.look()
            return
        if meanwhile is not None:
            table.before_write = meanwhile
        if schema.latest:
            newest = NewestReadings()
            for event in valid:
                newest.add(event.sensor_id, event.event_time_us, event.readings.items())
            table.write_rows(
                newest.rows(schema.latest, Retention.of(schema).cells_stay_from_us(schema.latest, self.now_us))
            )
        if schema.tiers:
            lateness = self._lateness()
            if self.job is not None and name in self.job.stages:
                for tier in schema.tiers:
                    for event in taken:
                        self.beside.add(
                            (name, tier.window.text, event.sensor_id, start_of(event.time_us, tier.window.text))
                        )
            with self.beside_rollups(name):
                self._complete(name, schema, valid, lateness)
        table.before_write = None
        self.look()

    def _complete(self, name, schema, events, lateness):
        gathered = GroupedReadings(schema.tiers[0].window, schema.identity, self.groups, schema.member_fields)
        gathered.add(events)
        held = [((group, start_of_readings(data)), [data]) for group, _, data in gathered.take_groups()]
        retention = self.retention(name)
        retention_notes.record_losses(name, schema, retention, {**self.tables[name].policies, "tidetable": None})
        self.unseen.discard(name)
        table = name, schema, retention
        found = []  # by tier
        for tier, source in zip(schema.tiers, sources(tuple(tier.window for tier in schema.tiers)), strict=True):
            if source < 0:
                fn = backfilling.CompleteFn(*table, tier, *lateness)
                elements = [(each,) for each in held]
            else:
                fn = backfilling.CompleteLongerFn(*table, tier, *lateness)
                groups = defaultdict(list)
                for sensor, (start, stats) in found[source]:
                    groups[sensor, start_of(start, tier.window.text)].append((start, stats))
                elements = [(each,) for each in groups.items()]
            fn.setup()
            for _ in range(self.random.choice([1, 1, 1, 2])):  # the outputs of a first attempt may be lost
                fn.start_bundle()
                outputs = [output for element in elements for output in fn.process(*element)]
                outputs += fn._finish()
            fn.teardown()
            listed = [out.value for out in outputs if isinstance(out, TaggedOutput) and out.tag == "listed"]
            self.tables[name].write_rows(
                work_row(schema.tiers[0], *each, listing(BACKFILLED, self.now_us)) for each in listed
            )
            found.append([out for out in outputs if not isinstance(out, TaggedOutput)])
            if self.job is not None and name in self.job.stages:  # the backfill's own windows, and following ones
                self.beside.update((name, tier.window.text, sensor, start) for sensor, (start, _) in found[-1])

    # Repair

    def repair(self, name, *, listed, dry_run=False, before=None, meanwhile=None, in_flight=False):
        """Repairs the work list, or everything; returns how many windows were wrong.

        Args:
            name: of the table.
            listed: whether to repair the work list.
            dry_run: whether to change nothing.
            before: called first.
            meanwhile: called after the table has been read.
            in_flight: whether rows of the running job are on their way.
        """
        if not self.schemas[name].tiers:
            return 0
        job = self.job
        if job is not None:
            self._prepare(in_flight=in_flight)
            if before is not None:
                before()
            self._beside_job(name)
        self.look()
        unchanged = self.tables[name].snapshot()
        lateness, late_firing = self._lateness()
        request = repair.Request(
            name, listed=listed, dry_run=dry_run, allowed_lateness=lateness, late_firing=late_firing,
            end_us=_up(self.now_us + DAY, DAY), start_us=start_of(self.now_us - 400 * DAY, "1d"),
        )  # fmt: skip
        self._found, self._meanwhile = {}, meanwhile
        whole = scope.scope_of(request, _OPTIONS, self.now_us)
        if not dry_run:
            self.unseen.discard(name)
        with self.beside_rollups(name):
            wrong = sum(outcome.wrong for outcome in repair.carry_out(request, whole, _OPTIONS))
        if dry_run:
            assert self.tables[name].snapshot() == unchanged, "a dry run has changed the table"
        self.look(repaired=name)
        return wrong

    def _beside_job(self, name):
        """Notes the windows that the job is about to write, or to compute again."""
        for number, *window in self.job.pending(name) | self.job.kept(name):
            self.beside.add((name, self.schemas[name].tiers[number].window.text, *window))

    def _inspect(self, request, scope, longer, part, options, prefix):
        tasks = list(repair._tasks(scope, part, []))
        extents, spans = tuple(part.extents), tuple(part.spans)
        joined_by = repairing.Joining.of(scope.schema, extents[-1])
        raw = repairing._ReadRawFn(request.table, spans, scope.schema, joined_by)
        stored = repairing._ReadAggregatesFn(request.table, spans, joined_by, extents)
        compare = repairing._CompareFn(request.table, scope.schema, scope.retention, extents)
        listed = following._ReadListedFn(request.table, scope.schema)
        for fn in (raw, stored, compare, listed):
            fn.setup()
        newest = []
        readings = defaultdict(list)
        joined = defaultdict(lambda: {repairing._RECOMPUTED: [], repairing._STORED: [], repairing._HELD_UP: []})
        for task in tasks:
            for output in (raw if task.extent is None else stored).process(task):  # none of them is foreign
                if isinstance(output, TaggedOutput):
                    newest += output.value[1]
                    continue
                key, element = output
                (readings[key] if task.extent is None else joined[key][repairing._STORED]).append(element)
        for pieces in readings.items():
            for key, recomputed in repairing.recompute(pieces, joined_by):
                joined[key][repairing._RECOMPUTED].append(recomputed)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
            if self.job is not None:
                self._beside_job(request.table)
        findings = [finding for element in joined.items() for finding in compare.process(element)]
        self._found[prefix] = [finding.record() for finding in findings]
        counters = {metrics.REPAIR_WINDOWS_CHECKED: len(joined), metrics.REPAIR_WINDOWS_WRONG: len(findings)}
        if request.dry_run:
            changed = [following.changed_of_finding(finding, scope.schema.tiers) for finding in findings]
        else:
            # Roll-ups of rewritten windows are not modelled: none of the tiers has any.
            rewrite = following._RewriteFn(request.table, frozenset(), longer, listing(REPAIRED, self.now_us))
            rewrite.setup()
            rewrite.start_bundle()
            for finding in findings:
                rewrite.process(finding)
            changed = [each.value for each in rewrite.finish_bundle()]
            written = tuple(changed)
            counters[metrics.REPAIR_WINDOWS_REWRITTEN] = len(findings)
        for window in (each for span in spans for each in listed.process(span)):
            changed += following.changed_of_listed(window, scope.schema.tiers, extents)
        self._found[prefix] += self._recomputed(request, scope, longer, changed)
        if not request.dry_run:
            unlist = following._UnlistFn(request.table, scope.schema.tiers[0], listing(REPAIRED, self.now_us))
            unlist.setup()
            unlist.start_bundle()
            for each in written:
                unlist.process(each, 0.0)
            unlist.finish_bundle()
            self._put_newest_right(request.table, scope, part, newest, beside=meanwhile is not None)
        return counters

    def _recomputed(self, request, scope, longer, changed):
        """Brings longer windows in line, and returns the records of what was found."""
        schema, by_sensor = scope.schema, defaultdict(list)
        for each in changed:
            by_sensor[each.sensor_id].append(tuple(each))
        recompute = following._RecomputeFn(request.table, schema, scope.retention, longer, dry_run=request.dry_run)
        recompute.setup()
        recompute.start_bundle()
        for element in by_sensor.items():
            assert not list(recompute.process(element))
        outputs = [each for each in recompute.finish_bundle() if not isinstance(each, TaggedOutput)]
        return [json.loads(report.line_of_longer(each.value)) for each in outputs]

    def _put_newest_right(self, name, scope, part, newest, *, beside):
        table, spans = self.tables[name], within(part.spans, part.extents[0])
        if scope.schema.latest is None or not spans:
            return
        audit = NewestAudit(scope.schema, scope.retention, table, spans, self.now_us)
        found = defaultdict(list)
        for sensor_id, cells in newest:
            found[sensor_id] += cells
        for sensor_id, cells in found.items():
            wrong = audit.wrong_cells(sensor_id, table.newest(latest_key(sensor_id)).values(), cells)
            assert beside or all(each.stale_us is None for each in wrong), "raw rows do not vanish"
            if (row := audit.row(sensor_id, wrong)) is not None:
                table.write_encoded(row)

    # Changes

    def change_policy(self, name, family, policy):
        """Changes a family's policy outside the project; to a longer one only if the shorter one was noticed."""
        before_us, after_us = self.ages[name][family], AGES[policy]
        if after_us is None or (before_us is not None and before_us < after_us):
            if name in self.unseen:
                return
        else:
            self.unseen.add(name)
        self.tables[name].policies[family] = parse_policy(policy)
        self.ages[name][family] = AGES[policy]

    def set_policy(self, name, family, policy):
        """Changes a family's policy as table apply does."""
        schema = self.schemas[name]
        try:
            changed = replace(schema, policies={**schema.policies, family: parse_policy(policy)})
        except SchemaError:  # a statistic needs raw rows for longer
            return
        self._apply(name, changed)
        self.stored_ages[name][family] = AGES[policy]
        self.ages[name] = dict(self.stored_ages[name])

    def add_tier(self, name, text, policy):
        """Adds a tier as table apply does."""
        schema, family = self.schemas[name], family_of(text)
        added = Tier(parse_window(text), family)
        tiers = tuple(sorted((*schema.tiers, added), key=lambda tier: tier.window.length_us))
        if tier_problem([tier.window for tier in tiers]) is not None:
            return
        try:
            changed = replace(schema, tiers=tiers, policies={**schema.policies, family: parse_policy(policy)})
        except SchemaError:
            return
        self.stored_ages[name][family] = AGES[policy]
        self.ages[name] = dict(self.stored_ages[name])
        self._apply(name, changed)
        if self.tables[name].keys():
            retention_notes.record_added_tiers(name, [family])
        self.abandoned |= {
            (name, text, sensor_id, start_of(start_us, text))
            for each, _, sensor_id, start_us in self.abandoned
            if each == name
        }
        self.grown |= {(name, text, *window) for window in self.truths[name].windows(text)}

    def declare_increase(self, name, metric):
        """Declares a metric's increase as table apply does."""
        schema = self.schemas[name]
        if not schema.finds_sensors or metric in dict(schema.statistics.globs):
            return
        statistics = replace(schema.statistics, globs=((metric, tuple(STATISTICS)), *schema.statistics.globs))
        try:
            changed = replace(schema, statistics=statistics)
        except SchemaError:  # raw rows are not kept for long enough
            return
        self.ages[name] = dict(self.stored_ages[name])
        self._apply(name, changed)
        self.undeclared |= {
            (name, metric, tier.window.text, *window)
            for tier in schema.tiers
            for window in self.truths[name].windows(tier.window.text)
        }

    def _apply(self, name, changed):
        """Applies a schema as :mod:`pipeline.table.command` does."""
        schema = self.schemas[name]
        assert all(change.safe for change in changes(schema, changed))
        retention_notes.record_losses(name, changed, self.retention(name), tables.policies_of(changed))
        self.schemas[name] = changed
        self.tables[name].policies = dict(changed.policies)
        self.unseen.discard(name)

    # The end

    def finish(self):
        """Drains the job, repairs, and checks everything against the truth."""
        if self.backlog and self.job is None:
            self.launch(self.names, checks_on=True)
        if self.job is not None:
            self.drain()
        self.check()
        for name in self.names:
            self.repair(name, listed=True)
        self.check()
        self.check_rollups(self.names)
        for name in self.names:
            self.check_left(name)
            self.check_repaired(name, whole=False)
            wrong = self.repair(name, listed=False, dry_run=True)
            # Windows that continue from others may follow, or be right once those are.
            assert self.repair(name, listed=False) == wrong or self.schemas[name].statistics.carries
            assert not self.repair(name, listed=False, dry_run=True)
            self.check_repaired(name, whole=True)
        self.check()
        self.check_rollups(self.names)


def message(*events):
    """Returns the events in one message. Every third has a reading that is not finite, which a job leaves out."""
    for event in events:
        if event.fault == "UNPARSEABLE":
            return Message((event,), PubsubMessage(b"\xff", {}))
    protos = [proto_of(event) for event in events]
    for event, proto in zip(events, protos, strict=True):
        if proto.readings and event.time_us // MS % 3 == 0:
            proto.readings["broken"] = math.nan
    return Message(events, pubsub_message(message_of(protos)))


def proto_of(event):
    readings = {} if event.fault == "NO_READINGS" else event.readings
    if event.fault == "INVALID_READING":
        readings = dict.fromkeys(readings, math.inf)
    sensor_id = "" if event.fault == "MISSING_SENSOR_ID" else event.sensor_id
    metadata = {"location": event.location} if event.location else {}
    return sensor_event(sensor_id, event.time_us, readings, metadata, event.event_id)


def _up(time_us, length_us):
    return -(-time_us // length_us) * length_us
