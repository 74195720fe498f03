"""What may happen to tables: the rules that Hypothesis chooses from. See :mod:`tests.model.world`."""

from datetime import timedelta

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.model.reference import DAY, HOUR, MINUTE, Published
from tests.model.specs import READING_POLICIES, TIER_POLICIES, specs
from tests.model.world import World, message

_OFFSETS = [0, 1, 700, 1000, 5 * MINUTE, 16 * MINUTE, 31 * MINUTE + 250, 59 * MINUTE + 59_999_999]
_AGES = [0, 0, 0, HOUR, 2 * HOUR, 5 * HOUR, 20 * HOUR, 26 * HOUR, 2 * DAY, 3 * DAY, 6 * DAY, -HOUR, -2 * HOUR]
_STEPS = [MINUTE, 7 * MINUTE, 20 * MINUTE, HOUR, 3 * HOUR, 13 * HOUR, DAY, 2 * DAY, 4 * DAY]
_MORE_TIERS = ["15m", "1h", "6h", "1d", "1d@Europe/Berlin", "1w", "1mo@Europe/Berlin"]
_FAULTS = ["UNPARSEABLE", "MISSING_SENSOR_ID", "NO_READINGS", "INVALID_READING"]
_LATENESSES = [timedelta(minutes=10), timedelta(minutes=10), timedelta(hours=2), timedelta(days=1)]
_EARLY_FIRINGS = [timedelta(0), timedelta(minutes=5), timedelta(minutes=5)]
_LATE_FIRINGS = [timedelta(0), timedelta(minutes=1), timedelta(hours=3)]

metrics = st.sampled_from([("t",), ("t", "h"), ("h", "u"), ("t", "h", "u"), ("u",)])
times = st.tuples(st.sampled_from(_AGES), st.sampled_from(_OFFSETS))
drawn = st.builds(
    lambda *parts: parts,
    st.sampled_from("aab"),
    times,
    metrics,
    st.sampled_from(["x", "x", "y", ""]),
    st.sampled_from(["e", "e", "f", ""]),
    st.sampled_from([""] * 20 + _FAULTS),
)
batches = st.lists(drawn, min_size=1, max_size=4)
firings = st.tuples(st.sampled_from(_EARLY_FIRINGS), st.sampled_from(_LATE_FIRINGS))
calm = st.sampled_from([False, True, True])
flows = st.sampled_from(["", "aggregate", "some", "settle"])


class Tables(RuleBasedStateMachine):
    """One or two tables, and everything that may happen to them."""

    sequences = steps = 0

    @initialize(table_specs=st.lists(specs(), min_size=1, max_size=2), seed=st.integers(0, 999))
    def begin(self, table_specs, seed):
        self.world = World(table_specs, seed)
        self._stack = self.world.simulated()
        self._stack.__enter__()
        self.published, self.healthy = [], True
        Tables.sequences += 1

    # Messages

    @precondition(lambda self: self.world.job)
    @rule(batch=batches, fails_first=st.booleans(), flow=flows)
    def publish(self, batch, fails_first, flow):
        """Publishes new events, in one message or several, which flow through the job so far."""
        events = self._events(batch)
        messages = [message(*events)] if fails_first else [message(event) for event in events]
        self._publish(messages, flow, fails_first=fails_first)

    @precondition(lambda self: self.world.job and self.published)
    @rule(which=st.integers(0, 1000), flow=flows)
    def redeliver(self, which, flow):
        """Redelivers a message unchanged."""
        self._publish([self.published[which % len(self.published)]], flow)

    @precondition(lambda self: self.world.job and self.published)
    @rule(which=st.integers(0, 1000), more=metrics, flow=flows)
    def publish_part(self, which, more, flow):
        """Publishes another part of an earlier event."""
        event = self.published[which % len(self.published)].events[0]
        if not event.fault:
            self._publish([message(_with(event, more))], flow)

    @precondition(lambda self: self.world.job)
    @rule(what=st.sampled_from(["aggregate", "roll up", "write", "some", "some", "settle"]))
    def advance_job(self, what):
        """Advances one step of the job."""
        self._flow(what)
        self._done()

    # Time

    @rule(by=st.sampled_from(_STEPS), lag=st.sampled_from([0, 0, MINUTE, HOUR, DAY, 4 * DAY, None]))
    def wait(self, by, lag):
        """Advances the clock, and the watermark behind it, unless that is stale."""
        self.world.pass_time(by)
        if self.world.job and lag is not None:
            self.world.job.advance(self.world.now_us + HOUR - lag)
        self._done()

    @rule(which=st.integers(0, 1))
    def collect(self, which):
        self.world.collect(self._name(which))
        self._done()

    # Jobs

    @precondition(lambda self: not self.world.job)
    @rule(
        which=st.sampled_from([(0, 1), (1, 0), (0,), (1,)]),
        checks_on=st.sampled_from([True, True, True, False]),
        lateness=st.sampled_from(_LATENESSES),
        firings=firings,
        attribute=st.booleans(),
    )
    def launch(self, which, checks_on, lateness, firings, attribute):
        names = list(dict.fromkeys(map(self._name, which)))
        self.world.launch(
            names,
            checks_on=checks_on,
            allowed_lateness=lateness,
            early_firing=firings[0],
            late_firing=firings[1],
            timestamp_attribute="event_time" if attribute else None,
        )
        self._done()

    @precondition(lambda self: self.world.job)
    @rule(lateness=st.sampled_from(_LATENESSES), firings=firings)
    def update(self, lateness, firings):
        self.world.update(allowed_lateness=lateness, early_firing=firings[0], late_firing=firings[1])
        self._done()

    @precondition(lambda self: self.world.job)
    @rule()
    def drain(self):
        self.world.drain()
        self._done()

    @precondition(lambda self: self.world.job)
    @rule(redelivered=st.booleans(), torn=st.booleans())
    def crash(self, redelivered, torn=False):
        self.world.crash(redelivered=redelivered, torn=torn)
        self._done()

    # Tools

    @rule(
        which=st.integers(0, 1),
        batch=batches,
        old=st.integers(0, 1000),
        how=st.sampled_from(["", "", "broken off", "two", "beside", "beside"]),
        flow=flows,
        in_flight=calm,
    )
    def backfill(self, which, batch, old, how, flow, in_flight=False):
        """Backfills new events and an earlier one; interrupted, two at once, or while a job gets events beside them."""
        name, events = self._name(which), [each for each in self._events(batch) if not each.fault]
        if self.published:
            events += [each for each in self.published[old % len(self.published)].events if not each.fault]
        before = meanwhile = None
        others = [_shifted(each, 1000) for each in events[:2]]
        if how == "two":
            others += [_with(each, ("t", "u")) for each in events[:2]]
            meanwhile = lambda: self.world.backfill(name, others)  # noqa: E731
        elif how == "beside" and self.world.job:
            before = lambda: self._publish([message(each) for each in others], flow)  # noqa: E731
            meanwhile = lambda: self._flow("some")  # noqa: E731
        if events:
            broken_off = how == "broken off"
            self.world.backfill(
                name, events, broken_off=broken_off, before=before, meanwhile=meanwhile, in_flight=in_flight
            )
        self.published += [message(each) for each in events]
        self._done()

    @rule(
        which=st.integers(0, 1),
        listed=st.booleans(),
        dry_run=st.booleans(),
        batch=batches,
        beside=st.sampled_from(["", "before", "meanwhile"]),
        flow=flows,
        in_flight=calm,
    )
    def repair(self, which, listed, dry_run, batch, beside, flow, in_flight=False):
        """Repairs by the work list or by time; messages may arrive in between."""
        hooks = {}
        if beside and self.world.job and not dry_run:
            messages = [message(event) for event in self._events(batch)]
            hooks[beside] = lambda: self._publish(messages, flow)
        self.world.repair(self._name(which), listed=listed, dry_run=dry_run, in_flight=in_flight, **hooks)
        self._done()

    @precondition(lambda self: not self.world.job)
    @rule(which=st.integers(0, 1), text=st.sampled_from(_MORE_TIERS), policy=st.sampled_from(TIER_POLICIES))
    def add_tier(self, which, text, policy):
        name = self._name(which)
        tiers = self.world.schemas[name].tiers
        if tiers and not any(tier.window.text in (text, "90m") for tier in tiers):
            self.world.add_tier(name, text, policy)
        self._done()

    @precondition(lambda self: not self.world.job)
    @rule(which=st.integers(0, 1), metric=st.sampled_from("th"))
    def declare_increase(self, which, metric):
        name = self._name(which)
        if self.world.schemas[name].tiers:
            self.world.declare_increase(name, metric)
        self._done()

    @precondition(lambda self: not self.world.job)
    @rule(
        which=st.integers(0, 1),
        family=st.integers(0, 9),
        of_readings=st.sampled_from(READING_POLICIES),
        of_tier=st.sampled_from(TIER_POLICIES),
        outside=st.booleans(),
    )
    def change_policy(self, which, family, of_readings, of_tier, outside):
        """Changes a policy with the project's command, which notes losses, or without it."""
        name = self._name(which)
        families = sorted(self.world.ages[name])
        family = families[family % len(families)]
        policy = of_tier if family.startswith("tier_") else of_readings
        if outside:
            self.world.change_policy(name, family, policy)
        else:
            self.world.set_policy(name, family, policy)
        self._done()

    def teardown(self):
        if hasattr(self, "world"):
            try:
                if self.healthy:
                    self.world.finish()
            finally:
                self._stack.__exit__(None, None, None)

    # Helpers

    def _name(self, which):
        return self.world.names[which % len(self.world.names)]

    def _events(self, batch):
        hour_us = self.world.now_us - self.world.now_us % HOUR
        return [Published(sensor_id, hour_us - age + offset, *others) for sensor_id, (age, offset), *others in batch]

    def _publish(self, messages, flow, *, fails_first=False):
        self.published += messages
        self.world.publish(messages, fails_first=fails_first)
        self._flow(flow)
        self._done()

    def _flow(self, what):
        job = self.world.job
        match what:
            case "aggregate":
                for stage in job.stages.values():
                    stage.aggregate_all()
            case "roll up":
                for stage in job.stages.values():
                    stage.roll_up_all()
            case "write":
                job.write_sink()
            case "some":
                job.flow()
            case "settle":
                job.settle()

    def _done(self):
        Tables.steps += 1
        self.healthy = False  # on a failure, teardown must not hide it
        self.world.look()
        self.world.check()
        if self.world.job and not self.world.job.busy():
            self.world.job.history.clear()
        self.healthy = True


def _with(event, more):
    """Returns another part of the same event."""
    return Published(event.sensor_id, event.time_us, more, event.location, event.event_id)


def _shifted(event, by_us):
    return Published(event.sensor_id, event.time_us + by_us, event.metrics, event.location, event.event_id)
