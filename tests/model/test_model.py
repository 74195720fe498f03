"""Random sequences of events leave tables as a plain model predicts: see :mod:`tests.model.world`."""

import os
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Tables
from tests.model.reference import DAY, HOUR, MINUTE
from tests.model.specs import Kind, Spec, family_of
from tests.support.exhaustive import examples

_EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", 0))


def test_any_sequence():
    """No reading is lost or counted twice, and every wrong aggregate is listed or allowed.

    The sequences are the same in each run, so that a change is judged by what it changes. ``MODEL_EXAMPLES=1000`` and
    ``python -m tests.model`` try new ones.
    """
    run_state_machine_as_test(
        Tables,
        settings=settings(
            max_examples=_EXAMPLES or examples(75),
            derandomize=not _EXAMPLES,
            database=None,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )


def test_an_event_at_the_limit_of_the_future():
    """Its window begins just before the next job stops restoring, so that job still restores it."""
    kind = Kind(grain_us=1, location=False, event_id=False, logs=False)
    policies = (("raw", "never"), ("meta", "never"), ("tier_1h", "never"))
    state = Tables()
    state.begin(table_specs=[Spec("wide", "{sensor_id}#{reverse_us}", kind, "text", ("1h",), policies)], seed=0)
    job = {"which": (0,), "checks_on": True, "attribute": False}
    state.launch(lateness=timedelta(hours=2), firings=(timedelta(0), timedelta(0)), **job)
    state.publish(batch=[("a", (-HOUR, 0), ("t",), "", "", "")], fails_first=False, flow="")
    state.drain()
    state.add_tier(policy="never", text="15m", which=0)  # none of its rows has the first reading
    state.launch(lateness=timedelta(hours=2), firings=(timedelta(0), timedelta(0)), **job)
    state.publish_part(which=0, more=("h", "u"), flow="settle")
    state.teardown()


def test_a_backfill_beside_late_events():
    """Whichever row is written last, the one that counts more stays."""
    state = _long_running()
    state.backfill(batch=_at(2 * DAY, 700), how="beside", flow="aggregate", old=0, which=0)
    state.advance_job("settle")
    for _ in range(2):
        state.wait(by=20 * MINUTE, lag=0)
        state.advance_job("settle")
    assert not any(state.world.job.kept(name) for name in state.world.names)
    state.teardown()


def test_a_backfill_before_an_hour_whose_row_is_on_its_way():
    """That row continues from an older reading: the hour is listed."""
    state = _long_running(tiers=("1h",), increases=("t",))
    state.publish(batch=_at(0, 5 * MINUTE), fails_first=False, flow="aggregate")
    state.wait(by=7 * MINUTE, lag=0)
    state.advance_job("aggregate")
    _backfill(state, _at(3 * HOUR, 700))
    state.advance_job("settle")
    state.teardown()


def test_a_backfill_after_an_update_while_a_row_is_on_its_way():
    """The row was computed while the allowed lateness was longer, so its window is listed."""
    state = _long_running(tiers=("1h",), lateness=timedelta(hours=2))
    state.publish(batch=_at(2 * HOUR, 5 * MINUTE), fails_first=False, flow="aggregate")
    state.update(lateness=timedelta(minutes=10), firings=(timedelta(minutes=5), timedelta(0)))
    _backfill(state, _at(2 * HOUR, 700))
    state.advance_job("settle")
    state.teardown()


def _backfill(state, batch):
    """Writes events while rows of the job are on their way."""
    state.world.backfill(state.world.names[0], state._events(batch), in_flight=True)
    state._done()


def _long_running(tiers=("1h", "1d"), increases=(), lateness=timedelta(minutes=10)):
    """Returns a job that began four days ago."""
    kind = Kind(grain_us=1, location=False, event_id=False, logs=False)
    policies = tuple((family, "never") for family in ("raw", "meta", *map(family_of, tiers)))
    state = Tables()
    spec = Spec("wide", "{sensor_id}#{reverse_us}", kind, "text", tiers, policies, increases=increases)
    state.begin(table_specs=[spec], seed=0)
    firings = timedelta(minutes=5), timedelta(0)
    state.launch(lateness=lateness, firings=firings, which=(0,), checks_on=True, attribute=False)
    state.wait(by=4 * DAY, lag=0)
    state.wait(by=4 * DAY, lag=0)
    return state


def _at(age, offset):
    return [("a", (age, offset), ("t",), "", "", "")]
