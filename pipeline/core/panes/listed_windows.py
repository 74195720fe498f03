"""Looks through the work list for the windows that backfills list beside a job.

The table has all that a backfill read, and the state of the job lacks it. So the job looks through the list again and
again, and wakes the windows that backfills have listed since its last look: their next panes have what the table has.

The column of a listing tells when it was made; it reaches the table later. So each look also covers the minute before
the last one. Every 20 minutes, a look covers the 20 minutes before the last such look: by then every listing has
arrived. To wake a window twice changes nothing.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from pipeline.core.completion.work_list import BACKFILLED, listing, parse_work_key, work_range
from pipeline.core.panes.firing import IN_FLIGHT_US
from pipeline.core.panes.noted_windows import Windows
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import KeyRange, Row
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.schema.table_schema import Tier

_AGAIN_US = 60_000_000
_PAST_BACKFILLED = BACKFILLED + b"."  # the byte after the hyphen


class Look(NamedTuple):
    """A look through the list, or the part of it up to a row.

    Attributes:
        began_us: the time at which it began.
        from_us: the time of the first listings that it covers.
        whole_us: the time at which the last look began that covered 20 minutes.
        after: the key after which the rest of the list is left to read; "" if nothing is left.
    """

    began_us: int
    from_us: int
    whole_us: int
    after: str = ""

    @classmethod
    def before_first(cls, now_us: int) -> "Look":
        """Returns what the first look of a job follows that begins now."""
        return cls(now_us, now_us, now_us - IN_FLIGHT_US)

    def next(self, now_us: int) -> "Look":
        """Returns the rest of this look, or the look after it."""
        if self.after:
            return self
        if now_us >= self.whole_us + IN_FLIGHT_US:
            return Look(now_us, self.whole_us - IN_FLIGHT_US, now_us)
        return Look(now_us, min(self.began_us, now_us) - _AGAIN_US, self.whole_us)

    def selection(self, tier: Tier) -> RowSelection:
        """Returns the rows of the list that are left to read.

        Args:
            tier: the table's shortest tier.
        """
        start, end = work_range(tier.window)
        columns = listing(BACKFILLED, max(0, self.from_us)), _PAST_BACKFILLED
        keys = KeyRange(self.after.encode() + b"\x00" if self.after else start, end)
        return RowSelection(keys, CellSelection((tier.family,), qualifier_range=columns))

    def to_bytes(self) -> bytes:
        """Serializes the look."""
        return json.dumps(self, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Look":
        """Parses what :meth:`to_bytes` wrote."""
        return cls(*json.loads(data))


def listed_windows(rows: Iterable[Row], tier: Tier, certain_us: int) -> Windows:
    """Returns the windows of rows of the list.

    Args:
        rows: the rows.
        tier: the table's shortest tier.
        certain_us: the start of the first window of which the table certainly has all raw rows: earlier ones wait for a
            repair.
    """
    found: dict[int, list[str]] = defaultdict(list)
    for row in rows:
        with suppress(ValueError):  # another program's row
            sensor_id, start_us = parse_work_key(tier.window, row.key)
            if start_us >= certain_us:
                found[start_us].append(sensor_id)
    return found
