"""Publishes a test's events, and checks the table and the dead letters against them."""

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pipeline.core.events.message import message_of, sensor_event
from pipeline.local.fleet import Fleet, Simulated, simulate
from pipeline.proto.sensor_event_pb2 import SensorEvent
from tests.faults import judge
from tests.job.running import PROJECT, Resources
from tests.support.preloaded import TIDETABLE
from tests.support.records import delimited_messages
from tests.support.waiting import eventually

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
HOUR_US = 60 * MINUTE_US
DAY_US = 24 * HOUR_US


class Feed:
    """Publishes messages, and records what the table must contain."""

    def __init__(self, resources: Resources) -> None:
        self.events: list[SensorEvent] = []
        """Valid events, each as often as it was published."""
        self.broken: Counter[str] = Counter()
        """Expected number of dead letters, by the message's ``event_id``."""
        self.messages = 0
        self._resources = resources
        self._letters: Counter[str] = Counter()

    def publish(self, messages: Iterable[Simulated]) -> None:
        """Publishes all messages, and waits until each is confirmed."""
        messages = list(messages)
        self._resources.publish(one.message for one in messages)
        self.messages += len(messages)
        for one in messages:
            if one.reasons:
                self.broken[one.message.attributes["event_id"]] += len(one.reasons)
        self.events += [event for one in messages for event in one.events]

    def write(self, path: Path) -> str:
        """Writes the valid events to a file, in length-delimited protobuf; returns its path."""
        path.write_bytes(delimited_messages(*(event.SerializeToString() for event in self.events)))
        return str(path)

    def wait_counted(self, seconds: float = 45.0, but: Iterable[SensorEvent] = ()) -> None:
        """Waits until every event but these counts once in its aggregate."""
        expected = Counter(map(judge.window_key, judge.distinct(self.events)))
        expected -= Counter(map(judge.window_key, judge.distinct(but)))

        def missing() -> Counter:
            return expected - Counter(judge.counts(self._resources.table))

        eventually(lambda: not missing(), seconds)

    def wait_read(self, seconds: float = 45.0) -> None:
        """Waits until the job has read everything: Pub/Sub's emulator delivers in publishing order."""
        last = sensor_event("last", now_us(), {"t": 1.0}, {})
        self.publish(batches([last], 1))
        eventually(lambda: judge.is_written(self._resources.table, last), seconds)

    def assert_exact(self, *, letters_once: bool = True) -> None:
        """Asserts that the table matches what was published, and that everything broken is a dead letter.

        Args:
            letters_once: each is one dead letter; else it may have come several times.
        """
        assert judge.differences(self._resources.table, self.events)[:20] == []
        self.wait_letters()
        if letters_once:
            assert self._letters == self.broken
        else:
            assert self._letters.keys() == self.broken.keys()

    def wait_letters(self, seconds: float = 45.0) -> None:
        """Waits until everything broken is a dead letter."""

        def complete() -> bool:
            came = self._resources.dead_letters(0)
            self._letters.update(_message_id(each.attributes["event_id"]) for each in came)
            return self._letters >= self.broken

        eventually(complete, seconds)


def _message_id(event_id: str) -> str:
    """Returns the id of the dead letter's original message; ids of its events are ``<original>/<index>``."""
    return event_id.partition("/")[0]


def now_us() -> int:
    return int(time.time() * SECOND_US)


def fleet(hours: int = 4, *, sensors: int = 4, batch: int = 15, seed: int = 1, malformed: float = 0.02) -> Fleet:
    """Returns a fleet that measured once a minute until a minute ago."""
    end_us = now_us() - MINUTE_US
    return Fleet(sensors, end_us - hours * HOUR_US, end_us, MINUTE_US, seed, batch, malformed)


def fleet_messages(**parameters: float) -> list[Simulated]:
    """Returns the fleet's messages, with one broken event or message in fifty."""
    return list(simulate(fleet(**parameters)))


def series(sensor_id: str, start_us: int, count: int, interval_us: int = MINUTE_US) -> list[SensorEvent]:
    """Returns a sensor's events at regular intervals, with random values."""
    rng = random.Random(f"{sensor_id} {count}")
    return [
        sensor_event(sensor_id, start_us + i * interval_us, {"t": rng.gauss(20, 5), "u": rng.random()}, {"room": "7"})
        for i in range(count)
    ]


def batches(events: Sequence[SensorEvent], size: int) -> Iterator[Simulated]:
    """Yields the events in messages of ``size``."""
    for start in range(0, len(events), size):
        part = list(events[start : start + size])
        yield Simulated(message_of(part), part, [])


def tidetable(
    command: str, resources: Resources, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Runs a ``tidetable`` command on the table."""
    table = ["--project", PROJECT, "--instance", "instance", "--table", resources.table.table]
    return subprocess.run(
        [*TIDETABLE, command, *table, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | (environment or {}),
    )


def repair(
    resources: Resources, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess:
    """Repairs the last days, today as well: with ``--include-unsettled``, the windows in progress."""
    today = now_us() // DAY_US * DAY_US
    start, end = (
        datetime.fromtimestamp(time_us // SECOND_US, UTC).strftime("%Y-%m-%dT%H:00:00Z")
        for time_us in (today - 4 * DAY_US, today + DAY_US)
    )
    return tidetable("repair", resources, "--from", start, "--to", end, *arguments, environment=environment)
