"""Reads roll-ups: the windows of groups of sensors, which groups there are, and which sensors belong to them."""

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from pipeline.cloud.reading.frames import GroupRecords
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.core.answers.gaps import Fill, check_fill, filled
from pipeline.core.answers.group_answers import groups_of_sensor, rank_by, ranked, sensors_of_group, together
from pipeline.core.answers.read_arguments import MAX_ROWS, named_metrics, within_keys, zone_for
from pipeline.core.answers.window_answers import group_incomplete_before
from pipeline.core.events.event import LATEST_US, checked_sensor_id
from pipeline.core.notation.times import Time, to_us
from pipeline.core.queries.reads import BoundedReads, ForeignRow
from pipeline.core.queries.windows import (
    group_named,
    groups_with_rows,
    newest_windows,
    rollup_of,
    tier_of_rollup,
    windows_of_groups,
)
from pipeline.core.rows.records import GroupRecord, SensorGroup
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.rollup import Rollup
from pipeline.core.schema.table_schema import TableSchema, Tier
from pipeline.core.windows import Window, parse_window

Values = str | Iterable[str] | SensorGroup
"""The values of a group's fields, in the order of the roll-up; a text for one field; or the group of a record."""

_END_US = LATEST_US + 1


class RollupReads:
    """The part of :class:`pipeline.SensorTable` that reads roll-ups.

    Attributes:
        schema: the table's schema.
        rows: the reader of the rows.
    """

    schema: TableSchema
    rows: RowReader
    _retention: Callable[[], Retention]

    def rollups(
        self,
        name: str,
        values: Values,
        start: Time,
        end: Time,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        fill: Fill | str = Fill.NONE,
        time_zone: str | None = None,
    ) -> GroupRecords:
        """Returns a group's windows that start from ``start``, inclusive, to ``end``, exclusive, oldest first.

        Costs what a sensor's aggregates cost. Leaves out windows in which the group has no sensor.

        Args:
            name: the roll-up.
            values: the values of the group's fields, such as ``"north"``; ``()`` for a roll-up of all sensors.
            start: the earliest start of a window.
            end: the end of the range of starts.
            tier: the length of the windows; the roll-up's shortest by default.
            metrics: the metrics to return, without windows that have none of them; by default all.
            fill: the answer for windows without a row, as for aggregates.
            time_zone: the zone of texts without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        group = _group(rollup, values)
        start_us, end_us = within_keys(start, end, time_zone, of_tier.window)
        wanted = named_metrics(metrics)
        read = self.rows.read_selection
        found = windows_of_groups(of_tier, read, [group], start_us, end_us, wanted, self._leave_out)
        if Fill(fill) != Fill.NONE:
            check_fill(of_tier.window, start_us, end_us)
            empty = GroupRecord(group, 0, of_tier.window, 0, None, 0, {}, filled=True)
            found = filled(found, empty, start_us, end_us, Fill(fill))
        return GroupRecords(found, lambda: group_incomplete_before(of_tier, self._retention(), start_us, end_us))

    def groups(
        self,
        name: str,
        start: Time | None = None,
        end: Time | None = None,
        *,
        tier: Window | str | None = None,
        metrics: Iterable[str] | None = None,
        by: str | None = None,
        top: int | None = None,
        max_rows: int = MAX_ROWS,
        time_zone: str | None = None,
    ) -> GroupRecords:
        """Returns the groups of a roll-up that have sensors: a record for each, in the order of row keys, or ranked.

        Without ``start``, a record is the newest window that any group has, and groups that have none then are left
        out. With it, a record is what all windows of a group in the range amount to: merged, so an average is that of
        all readings, and ``sensors`` the most in a window. Costs a seek for each group, and reads the windows of many
        groups in a request.

        Args:
            name: the roll-up.
            start: the earliest start of a window.
            end: the end of the range of starts; by default, all that follow.
            tier: the length of the windows; the roll-up's shortest by default.
            metrics: the metrics to return, without groups that have none of them; by default all, or that of ``by``.
            by: the column by which groups are ranked, the greatest first, such as ``"avg_temperature"``,
                ``"p95_temperature"`` or ``"sensors"``; groups without a value are left out.
            top: the most groups to return.
            max_rows: the most rows of windows to read; if the answer needs more, raises TooManyRows, a ValueError.
            time_zone: the zone of texts without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        rank, ranking = rank_by(by) if by is not None else (None, None)
        wanted = named_metrics(metrics)
        if ranking is not None and ranking not in (wanted or ()):
            wanted = (*(wanted or ()), ranking)
        read = BoundedReads(self.rows.read_selection, max_rows)
        zone = zone_for(time_zone, of_tier.window)
        end_us = _END_US if end is None else to_us(end, zone)
        groups = groups_with_rows(rollup, of_tier, self.rows.read_selection, self._leave_out)
        found: Iterable[GroupRecord]
        if start is None:
            now_us = time.time_ns() // 1000
            found = newest_windows(of_tier, read, list(groups), end_us, now_us, wanted, self._leave_out)
        else:
            span = within_keys(start, end_us, zone)
            found = together(windows_of_groups(of_tier, read, groups, *span, wanted, self._leave_out))
        return GroupRecords((ranked(found, rank) if rank else list(found))[:top])

    def sensors_of_group(
        self,
        name: str,
        values: Values,
        before: Time | None = None,
        *,
        tier: Window | str | None = None,
        time_zone: str | None = None,
    ) -> Iterator[str]:
        """Returns the sensors that belong to a group in its newest window, or in the last that starts before a time.

        Reads what all sensors of the same shards contribute; for a group of many sensors, some hundred bytes for each
        metric of each sensor.

        Args:
            name: the roll-up.
            values: the values of the group's fields.
            before: the time before which the window starts.
            tier: the length of the windows; the roll-up's shortest by default.
            time_zone: the zone of a text without an offset; by default that of the tier.
        """
        rollup, of_tier = self._rollup(name, tier)
        group = _group(rollup, values)
        end_us = _END_US if before is None else to_us(before, zone_for(time_zone, of_tier.window))
        read = self.rows.read_selection
        newest = newest_windows(of_tier, read, [group], end_us, time.time_ns() // 1000, None, self._leave_out)
        window = of_tier.window
        each = (sensors_of_group(rollup, window, read, group, it.start_us, self._leave_out) for it in newest)
        return chain.from_iterable(each)

    def groups_of_sensor(self, sensor: str) -> list[SensorGroup]:
        """Returns the groups that a sensor belongs to in its newest window, by the order of the schema's roll-ups."""
        read = self.rows.read_selection
        return groups_of_sensor(self.schema, read, checked_sensor_id(sensor), self._leave_out)

    def _rollup(self, name: str, tier: Window | str | None) -> tuple[Rollup, Tier]:
        rollup = rollup_of(self.schema, name)
        return rollup, tier_of_rollup(self.schema, rollup, parse_window(tier) if isinstance(tier, str) else tier)

    def _leave_out(self, problem: ForeignRow) -> None:
        raise NotImplementedError


def _group(rollup: Rollup, values: Values) -> SensorGroup:
    if isinstance(values, SensorGroup):
        return values
    return group_named(rollup, [values] if isinstance(values, str) else list(values))
