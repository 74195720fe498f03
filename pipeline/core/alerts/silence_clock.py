"""Measures silence by the clock while the watermark stands.

At a few messages a minute Pub/Sub's watermark hardly advances, and with no message it may stand for ever. Then a look
goes by the clock, less the age that readings had when they came lately. So while a job works off a backlog, that time
is as far behind the clock as the backlog: a sensor whose messages wait is not silent. With no reading for a while, a
job can't tell silence from messages that nobody delivers: it takes it for silence.
"""

import json
from typing import NamedTuple

from pipeline.core.accumulation.reading_columns import time_of_key
from pipeline.core.panes.grouped_readings import read_group_readings

_MINUTE_US = 60_000_000
_SOON_US = 2 * _MINUTE_US  # with readings, whose age tells whether a backlog waits
_LEAST_US, _MOST_US = 10 * _MINUTE_US, 60 * _MINUTE_US
_MOST_HEARD = 60


class Heard(NamedTuple):
    """A reading that came.

    Attributes:
        at_us: the time at which the reading came.
        age_us: the age of the reading at that time.
    """

    at_us: int
    age_us: int

    @classmethod
    def of_part(cls, part: bytes, now_us: int) -> "Heard":
        """Returns the newest reading of any one sensor in encoded readings."""
        newest_us = max(map(time_of_key, next(iter(read_group_readings(part))).times))
        return cls(now_us, max(0, now_us - newest_us))

    def at(self, now_us: int) -> "Heard":
        """Returns the reading as it comes to the looks: it is older then, by the time in which rows were written."""
        return Heard(now_us, self.age_us + max(0, now_us - self.at_us))


class SilenceClock(NamedTuple):
    """What the looks of a job know of the time.

    Attributes:
        since_us: the time since which the job has run without a break.
        ticked_us: the time at which it ran last.
        watermark_us: the watermark, as far as it is known.
        looked_us: the time of the last look. None goes back behind it: it would not find what that one found.
        heard: some of the readings that came last.
    """

    since_us: int
    ticked_us: int
    watermark_us: int = 0
    looked_us: int = 0
    heard: tuple[Heard, ...] = ()

    @classmethod
    def from_bytes(cls, data: bytes) -> "SilenceClock":
        """Decodes :meth:`to_bytes`."""
        since_us, ticked_us, watermark_us, looked_us, heard = json.loads(data)
        return cls(since_us, ticked_us, watermark_us, looked_us, tuple(map(Heard._make, heard)))

    def to_bytes(self) -> bytes:
        """Encodes what is known."""
        return json.dumps(self, separators=(",", ":")).encode()

    def hear(self, heard: Heard) -> "SilenceClock":
        """Returns what is known once a reading has come."""
        return self._replace(heard=(*self.heard, heard)[-_MOST_HEARD:])

    def tick(self, now_us: int, every_us: int) -> "SilenceClock":
        """Returns what is known at a tick of the clock. After a break, messages may wait that nobody has delivered.

        Args:
            now_us: the current time.
            every_us: the time between two looks.
        """
        was_away = now_us - self.ticked_us > 3 * min(every_us, _MINUTE_US)
        return self._replace(since_us=now_us if was_away else self.since_us, ticked_us=now_us)

    def time_us(self, every_us: int, shortest_us: int) -> int | None:
        """Returns the time for a look at the last tick; None if the watermark tells it, or nothing does yet.

        Args:
            every_us: the time between two looks.
            shortest_us: the shortest silence of a rule.
        """
        period_us = min(max(shortest_us, _LEAST_US), _MOST_US)
        from_us = max(self.ticked_us - period_us, self.since_us)
        ages_us = sorted(each.age_us for each in self.heard if each.at_us > from_us)
        if self.ticked_us - self.since_us < (_SOON_US if ages_us else _LEAST_US):
            return None
        # Most of what comes from a backlog is old, while a few sensors are always late.
        time_us = self.ticked_us - (ages_us[len(ages_us) * 3 // 4] if ages_us else 0)
        stands = time_us > self.watermark_us + max(2 * every_us, _MINUTE_US)
        return time_us if stands and time_us >= self.looked_us + every_us else None
