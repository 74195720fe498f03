import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.events.event import EARLIEST_US, LATEST_US, Event
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.key_template import KeyBindings, KeyTemplate
from pipeline.core.schema.key_tokens import (
    DAY_US,
    HOUR_US,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TimeToken,
)
from tests.core.schema.key_templates import DEFAULT, EVENT, TEMPLATES, at, holds, scan_contains
from tests.support.exhaustive import examples
from tests.support.strategies import events, spans, times


@st.composite
def neighbourhoods(draw):
    """Draws a span of up to some weeks, and events in and around it of sensors with similar ids."""
    start_us = draw(st.integers(EARLIEST_US, LATEST_US - 400 * DAY_US))
    length_us = draw(st.sampled_from([1, 1000, 60_000_000, HOUR_US, DAY_US, 40 * DAY_US])) * draw(st.integers(1, 3))
    around = st.integers(start_us - 2 * length_us, start_us + 3 * length_us) | st.sampled_from(
        [start_us - 1, start_us, start_us + length_us - 1, start_us + length_us]
    )
    sensors = st.sampled_from(["a", "a!", "a$", "a-1", "a/1", "~", "a.", ".", "aa", "2", "0"])
    feed = draw(
        st.lists(events(sensors, around.map(lambda us: max(us, EARLIEST_US)), ("location", "model")), max_size=12)
    )
    return (start_us, start_us + length_us), feed


# Scans


@pytest.mark.parametrize("text", TEMPLATES)
@settings(max_examples=examples(30))
@given(neighbourhoods(), st.data())
def test_scan_returns_exactly_the_requested_rows(text, neighbourhood, data):
    """A scan returns exactly the rows of the requested sensor, metric and grains."""
    template = KeyTemplate.parse(text)
    (start_us, end_us), feed = neighbourhood
    target = data.draw(st.sampled_from(feed)) if feed else EVENT
    metric = next(iter(target.readings)) if template.has(MetricToken) else None
    known = KeyBindings(
        target.sensor_id, metric, {name: target.metadata.get(name, "x") for name in ("location", "model")}
    )
    before_time = [part for part in template.parts[: template.index(TimeToken)] if isinstance(part, MetadataToken)]
    scan = template.scan(known, start_us, end_us)
    times = [part for part in template.parts if isinstance(part, TimeToken)]
    for event in feed:
        for name in event.readings:
            expected = (
                event.sensor_id == known.sensor_id
                and (metric is None or name == metric)
                and all(event.metadata[part.name] == known.metadata[part.name] for part in before_time)
                and all(t.floor(start_us) <= t.floor(event.event_time_us) <= t.floor(end_us - 1) for t in times)
            )
            assert scan_contains(scan, template.render(event, name)) == expected


@pytest.mark.parametrize("text", TEMPLATES)
@settings(max_examples=examples(30))
@given(spans, times)
def test_scan_order(text, span, time_us):
    """Ranges are disjoint, the newest first. Each is read in reverse if its keys ascend by time."""
    template = KeyTemplate.parse(text)
    span = [span[0], min(span[1], span[0] + 3 * DAY_US)]
    known = KeyBindings("a", "t", {"location": "x", "model": "y"})
    ranges, reverse, _ = template.scan(known, *span)
    ranges = list(ranges)
    assert all(not key_range.end or key_range.start < key_range.end for key_range in ranges)
    assert len({key_range.start for key_range in ranges}) == len(ranges)

    def place(time_us):
        key = template.render(Event("a", time_us, {"t": 1.0}, known.metadata, "e"), "t")
        (index,) = (index for index, key_range in enumerate(ranges) if holds(key_range, key))
        return index, key

    older, newer = sorted(min(max(span[0], t), span[1] - 1) for t in (time_us, (span[0] + span[1]) // 2))
    (newer_index, newer_key), (older_index, older_key) = place(newer), place(older)
    assert newer_index <= older_index
    if newer_index == older_index:
        assert newer_key >= older_key if reverse else newer_key <= older_key


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        (DEFAULT, None),
        ("{metadata.location}#{sensor_id}#{iso_us}", None),
        ("{sensor_id}#{metric}#{reverse_us}", None),
        ("{sensor_id}#{reverse_us}#{metadata.location}", None),
        ("{bucket:1h}#{sensor_id}#{reverse_us}", None),
        ("{sensor_id}#{reverse_us}#{metric}", r'[!"$-~]{1,256}\#[0-9]{16}\#t\.1'),
        ("{iso_s}#{sensor_id}", r"[0-9]{4}\-[0-9]{2}\-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\#a\.\+"),
        ("{bucket:1d}#{salt:2}#{sensor_id}#x", r"[0-9]{4}\-[0-9]{2}\-[0-9]{2}\#[0-9a-f]{2}\#a\.\+\#x"),
    ],
)
def test_pattern_only_where_it_is_needed(template, pattern):
    """Keys are matched against a pattern only if a bound sensor or metric follows the last time."""
    assert KeyTemplate.parse(template).scan(KeyBindings("a.+", "t.1", {"location": "x"}), 0, 1).pattern == pattern


def test_one_range_per_day():
    """Two times in a key give one range per day, the newest first; the first and last are cut to the times."""
    template = KeyTemplate.parse("{sensor_id}#{bucket:1d}#{iso_s}")
    ranges, reverse, pattern = template.scan(KeyBindings("a"), at(2026, 2, 16, 22), at(2026, 2, 18, 2))
    assert list(ranges) == [
        KeyRange(b"a#2026-02-18#2026-02-18T00:00:00", b"a#2026-02-18#2026-02-18T01:59:5:"),
        KeyRange(b"a#2026-02-17#2026-02-17T00:00:00", b"a#2026-02-17#2026-02-17T23:59:5:"),
        KeyRange(b"a#2026-02-16#2026-02-16T22:00:00", b"a#2026-02-16#2026-02-16T23:59:5:"),
    ]
    assert reverse
    assert pattern is None


@given(st.sampled_from([text for text in TEMPLATES if KeyTemplate.parse(text).coarse_time]), neighbourhoods())
def test_coarse_range(text, neighbourhood):
    """One range contains exactly the rows whose coarsest time is within the span."""
    template = KeyTemplate.parse(text)
    (start_us, end_us), feed = neighbourhood
    key_range = template.coarse_range(KeyBindings("a"), start_us, end_us)
    coarse = template.coarse_time
    for event in feed:
        within = coarse.floor(start_us) <= coarse.floor(event.event_time_us) <= coarse.floor(end_us - 1)
        sensors = template.time_first or event.sensor_id == "a"
        assert holds(key_range, template.render(event, "t")) == (within and sensors)


# Bindings


@pytest.mark.parametrize(
    ("template", "known", "prefix", "unknown"),
    [
        (DEFAULT, KeyBindings(), b"ball", SensorToken),
        (DEFAULT, KeyBindings("a"), b"a#", None),
        ("v1/{sensor_id}#{reverse_us}", KeyBindings(), b"v1/ball", SensorToken),
        ("{salt:2}#{sensor_id}#{reverse_ms}", KeyBindings(), b"", SaltToken),
        ("{salt:2}#{sensor_id}#{reverse_ms}", KeyBindings("a"), b"0c#a#", None),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", KeyBindings(), b"shard-", ShardToken),
        ("{metadata.location}#{sensor_id}#{iso_s}", KeyBindings("a"), b"", MetadataToken),
        ("{metadata.location}#{sensor_id}#{iso_s}", KeyBindings(metadata={"location": "us"}), b"us#ball", SensorToken),
        ("{metadata.location}#{sensor_id}#{iso_s}", KeyBindings("a", metadata={"location": "us"}), b"us#a#", None),
        ("{sensor_id}#{metric}#{reverse_us}", KeyBindings("a"), b"a#", MetricToken),
        ("{sensor_id}#{metric}#{reverse_us}", KeyBindings("a", "t"), b"a#t#", None),
        ("{sensor_id}#{iso_s}#{metric}", KeyBindings("a"), b"a#", None),
        ("{iso_s}#{sensor_id}", KeyBindings("a"), b"", None),
        ("{sensor_id}#v{bucket:1d}", KeyBindings("a"), b"a#v", None),
    ],
)
def test_what_is_known_before_the_time(template, known, prefix, unknown):
    """The prefix ends at the first unknown token or at the time; of sensors, a prefix of their ids may be known."""
    parsed = KeyTemplate.parse(template)
    assert parsed.prefix(known, "ball") == prefix
    token = parsed.first_unknown(known)
    assert (None if token is None else type(token)) == unknown


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        (DEFAULT, []),
        ("{metadata.location}#{metadata.model}#{sensor_id}#{iso_s}", ["location"]),
        ("{sensor_id}#{metadata.location}#{iso_s}", ["location"]),
        ("{sensor_id}#{iso_s}#{metadata.location}", []),
        ("{iso_s}#{metadata.location}#{sensor_id}", []),
    ],
)
def test_missing_metadata(template, missing):
    """Missing metadata is in keys before the time, and not among the bindings."""
    assert KeyTemplate.parse(template).missing_metadata(KeyBindings("a", None, {"model": "x"})) == missing
