"""What one sensor contributes to the roll-ups of a window: its metadata, and its statistics in a form that merges.

A contribution is encoded as the :mod:`~pipeline.core.rollups.sums` of one sensor, with its metadata as the text. An
empty one tells that the sensor has nothing in the window any more.

A batch has the contributions of a shard's sensors to several windows, little-endian:

    batch   version; the time at which the job began in µs; the number; windows until the end
    window  index of the tier; start in µs; number of sensors, size of their ids; the ids, separated by line feeds; for
            each sensor the size of its contribution in 4 bytes; the contributions
"""

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, groupby, islice, pairwise
from typing import Any, NamedTuple

from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.sums import is_sums, parts_of_metrics_bytes, prefix_of, text_in
from pipeline.core.statistics.courses import Risen, increase, rate
from pipeline.core.statistics.member import member_fields
from pipeline.core.statistics.window_stats import WindowStats

VERSION = 1

NOTHING = b""
"""The contribution of a sensor that has nothing in the window any more."""

_BATCH = struct.Struct("<BQQ")
_WINDOW = struct.Struct("<BqII")
_MOST_SENSORS = 2000  # of a window, in a batch
_MOST_BYTES = 2 << 20  # of contributions, in a batch
_NO_FIELDS = "{}"
_MOST_SHAPES = 1 << 16  # of sensors' metadata and metrics, which a worker keeps for as long as it lives


class Order(NamedTuple):
    """The place of changes among those of the same sensors by the same job: those with a greater number are newer.

    Attributes:
        began_us: the time at which the job began in µs.
        number: the number of batches of rows that the group of sensors had written before.
    """

    began_us: int
    number: int


class SensorChanges(NamedTuple):
    """What sensors of a shard contribute to a window from now on.

    Attributes:
        tier: the index of the tier.
        start_us: the window's start.
        contributions: the contributions by sensor; :data:`NOTHING` for one that is gone.
        order: the place among other changes; None if they are in order.
    """

    tier: int
    start_us: int
    contributions: Mapping[bytes, bytes]
    order: Order | None = None


def batches_of(windows: Iterable[tuple[int, int, Mapping[bytes, bytes]]], order: Order) -> Iterator[bytes]:
    """Yields batches of limited size.

    Args:
        windows: the index of the tier, the start in µs, and the contributions by sensor.
        order: their place among other changes.
    """
    head = _BATCH.pack(VERSION, *order)
    parts, sensors, size = [head], 0, 0
    for tier, start_us, contributions in windows:
        for some in _some_at_a_time(contributions):
            ids = b"\n".join(some)
            sizes = array("I", map(len, some.values()))
            parts += (_WINDOW.pack(tier, start_us, len(some), len(ids)), ids, sizes.tobytes(), *some.values())
            sensors += len(some)
            size += sum(sizes)
            if sensors >= _MOST_SENSORS or size >= _MOST_BYTES:
                yield b"".join(parts)
                parts, sensors, size = [head], 0, 0
    if sensors:
        yield b"".join(parts)


def _some_at_a_time(contributions: Mapping[bytes, bytes]) -> Iterator[dict[bytes, bytes]]:
    """Yields contributions, as many as a batch may have, or a large one."""
    items = iter(contributions.items())
    while some := dict(islice(items, _MOST_SENSORS)):
        ends = list(accumulate(map(len, some.values())))
        if ends[-1] <= _MOST_BYTES:
            yield some
            continue
        of_parts = groupby(zip(ends, some.items(), strict=True), lambda each: each[0] // _MOST_BYTES)
        yield from (dict(item for _, item in part) for _, part in of_parts)


def read_batch(batch: bytes) -> list[SensorChanges]:
    """Parses what :func:`batches_of` yields. Raises ValueError for other bytes."""
    version, *order = _BATCH.unpack_from(batch)
    if version != VERSION:
        raise ValueError("another release wrote these contributions; drain the job that wrote them and start a new one")
    found: list[SensorChanges] = []
    end = _BATCH.size
    while end < len(batch):
        tier, start_us, count, ids_size = _WINDOW.unpack_from(batch, end)
        ids = end + _WINDOW.size
        sizes = ids + ids_size
        begin = sizes + 4 * count
        ends = list(accumulate(array("I", batch[sizes:begin]), initial=begin))
        datas = [batch[one:other] for one, other in pairwise(ends)]
        contributions = dict(zip(batch[ids:sizes].split(b"\n"), datas, strict=True))
        found.append(SensorChanges(tier, start_us, contributions, Order(*order)))
        end = ends[-1]
    return found


class Contributions:
    """Encodes what sensors contribute to the roll-ups of a tier.

    Args:
        rules: the table's roll-ups.
        tier: the index of the tier.
    """

    def __init__(self, rules: GroupRules, tier: int) -> None:
        self._of = rules, tier
        self._window = rules.tiers[tier].window
        self._rollups = rules.rollups_of(tier)
        self._shapes: dict[tuple[str, ...], tuple[Any, ...]] = {}

    def __reduce__(self) -> Any:
        return Contributions, self._of

    def of(self, start_us: int, stats: WindowStats) -> bytes:
        """Encodes what a sensor contributes to the window that starts then."""
        metrics = stats.metrics
        key = (stats.member.text if stats.member is not None else _NO_FIELDS, *metrics)
        prefix, pack, kept = self._shapes.get(key) or self._shape(key)
        moments: list[float] = []
        has_parts = False
        for of in metrics.values() if kept is None else [metrics[name] for name in kept]:
            moments += (of.count, of.total, of.minimum, of.maximum, of.average, of.deviation)
            if of.parts:
                has_parts = True
        data: bytes = prefix + pack(1, stats.events, *moments)
        return data + self._parts(start_us, stats, key[1:] if kept is None else kept) if has_parts else data

    def _shape(self, key: tuple[str, ...]) -> tuple[Any, ...]:
        text, *names = key
        kept = tuple(name for name in names if any(rollup.merges(name) for rollup in self._rollups))
        prefix, layout = prefix_of(text, kept)
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[key] = found = prefix, layout.pack, None if len(kept) == len(names) else kept
        return found

    def _parts(self, start_us: int, stats: WindowStats, names: tuple[str, ...]) -> bytes:
        """Encodes the parts that merge with those of other sensors."""
        end_us = self._window.end_of(start_us)
        found = {}
        for name in names:
            parts = stats.metrics[name].parts or {}
            found[name] = {"sketch": parts["sketch"]} if "sketch" in parts else {}
            if course := parts.get("rises"):
                found[name]["risen"] = Risen(increase(course), rate(course, start_us, end_us))
        return parts_of_metrics_bytes(names, found) if any(found.values()) else b""


def is_contribution(data: bytes) -> bool:
    """Returns whether bytes are a contribution or :data:`NOTHING`: another program may have written a cell."""
    if not data:
        return True
    try:
        member_fields(member_of(data))
    except (ValueError, struct.error):
        return False
    return is_sums(data)


def member_of(contribution: bytes) -> str:
    """Returns the metadata that a contribution tells; it must not be empty."""
    return text_in(contribution).decode()
