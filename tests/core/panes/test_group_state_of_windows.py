"""The state of a group's windows."""

import pytest

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.panes import group_state
from pipeline.core.panes.group_state import GroupWindows, SensorWindow, StartWindows, sensors_of, window_of
from pipeline.core.schema.toml import parse_schema

TIERS = parse_schema("tiers = { 1h = 'hours', 1d = 'days' }").tiers
HOUR = TIERS[0].window.length_us
LATENESS = HOUR // 6


def readings(*times_us):
    found = WindowReadings()
    for time_us in times_us:
        found.add(time_us, {"t": 1.0})
    return found


def filled():
    windows = GroupWindows(TIERS, LATENESS)
    hours = windows.of_tier[0]
    a = SensorWindow(value=readings(1, 2), written=4)
    hours[0] = StartWindows(False, {"a": a, "b": SensorWindow(value=readings(3), dirty=True, ahead=True)})
    held = SensorWindow(value=readings(-5), moved=True, held=True)
    hours[-HOUR] = StartWindows(False, {"a": held, "b": SensorWindow(value=readings(-4))})
    windows.note_longer(1, 0, ["a"], ahead=False)
    return windows


def contents(windows):
    return [
        {
            start_us: {
                sensor: (bool(entry.data), entry.dirty, entry.written, entry.moved, entry.held, entry.ahead)
                for sensor, entry in window.entries.items()
            }
            for start_us, window in of_tier.items()
        }
        for of_tier in windows.of_tier
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 4 << 20], ids=["an entry a chunk", "a window a chunk"])
def test_round_trip(monkeypatch, chunk_bytes):
    """Windows and entries come back, however the state is cut."""
    monkeypatch.setattr(group_state, "_CHUNK_BYTES", chunk_bytes)
    windows = filled()
    chunks = list(windows.chunks())
    assert len(chunks) == (5 if chunk_bytes == 1 else 3)
    again = GroupWindows(TIERS, LATENESS, chunks)
    assert contents(again) == contents(windows)
    assert again.of_tier[0][0].entries["a"].accumulator.pane().stats.events == 2


def test_large_accumulators():
    """Accumulators are large by their serialized size."""
    windows = filled()
    assert not list(windows.large(1))  # nothing is serialized yet
    list(windows.chunks())
    sizes = [size for _, _, size in windows.large(1)]
    assert len(sizes) == 4
    assert list(windows.large(max(sizes))) == []


def test_written_bytes():
    """The bytes of chunks are counted as they are written."""
    windows = filled()
    assert windows.written_bytes == 0
    written = sum(map(len, list(windows.chunks())))
    assert windows.written_bytes == written > 0


def test_what_any_release_can_read():
    """Tier, start and sensors of a chunk, whatever follows."""
    for chunk in filled().chunks():
        tier, start_us = window_of(chunk)
        entries = GroupWindows(TIERS, LATENESS, [chunk]).of_tier[tier][start_us].entries
        assert sensors_of(chunk) == list(entries)
        assert sensors_of(chunk[:-1]) == list(entries)
