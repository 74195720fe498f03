import pickle
import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.core.events import EARLIEST_US, LATEST_US, RESERVED_SENSOR_IDS, BadData, Event, Reason
from pipeline.core.rows import KeyRange
from pipeline.core.schema.template import KeyTemplate, Known, RawKey, first_segment
from pipeline.core.schema.tokens import (
    DAY_US,
    HOUR_US,
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    ShardToken,
    TemplateError,
    TimeToken,
)
from tests.core.strategies import events, sensor_ids, spans, times

DEFAULT = "{sensor_id}#{reverse_us}"
PUBLISHED = [
    "{salt:2}#{sensor_id}#{reverse_ms}",
    "shard-{shard:32}#{sensor_id}#{iso_s}",
    "{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}",
    "{sensor_id}#{reverse_s}",
]
TEMPLATES = [
    DEFAULT,
    *PUBLISHED,
    "v1/{sensor_id}#{reverse_us}#{event_id}",
    "{sensor_id}#{metric}#{reverse_us}",
    "{metric}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{reverse_us}#{metric}",
    "{sensor_id}#{bucket:1d}#{reverse_us}",
    "{sensor_id}#{time:%Y-%m}#{bucket:1h}#{iso_us}",
    "{metadata.location}#{metadata.model}#{sensor_id}#{iso_us}",
    "{sensor_id}#{reverse_us}#{metadata.location}",
    "{sensor_id}#{metadata.location}#{reverse_us}",
    "{iso_us}{sensor_id}",
    "{iso_us}#{sensor_id}",
    "{reverse_ms}#{metadata.location}#{sensor_id}#x#{metric}",
    "{bucket:1h}#{sensor_id}#{reverse_us}",
    "{bucket:1d}#{salt:1}{sensor_id}#{iso_us}",
    "{time:%Y-%m}#{sensor_id}#{bucket:1w}",
    "{salt:1}{shard:100}{sensor_id}#{metric}#{bucket:15m}",
    "%s{sensor_id}#%%{time:%%%Y}.*",
    "{sensor_id}#[{iso_ms}]+(.)\\d$^|?",
]

templates = st.sampled_from(TEMPLATES).map(KeyTemplate.parse)
key_events = events(promoted=("location", "model"))


def at(*fields):
    return (datetime(*fields, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


TEN_THIRTY = at(2026, 2, 17, 10, 30, 0, 123456)
EVENT = Event("balloon-7", TEN_THIRTY, {"pressure": 94558.0}, {"location": "us-west2"}, "e-1")


def holds(key_range, key):
    return key_range.start <= key and (not key_range.end or key < key_range.end)


def problem_with(text):
    with pytest.raises(TemplateError) as caught:
        KeyTemplate.parse(text)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("template", "key"),
    [
        (DEFAULT, b"balloon-7#8228675799876543"),
        ("{salt:2}#{sensor_id}#{reverse_ms}", b"0d#balloon-7#8228675799876"),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", b"shard-00#balloon-7#2026-02-17T10:30:00"),
        ("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", b"us-west2#balloon-7#2026-02-17-1030"),
        ("{sensor_id}#{reverse_s}", b"balloon-7#8228675799"),
        ("{sensor_id}#{metric}#{bucket:1w}", b"balloon-7#pressure#2026-W08"),
        ("{sensor_id}#{bucket:1d}#{reverse_us}#{event_id}", b"balloon-7#2026-02-17#8228675799876543#e-1"),
        ("{iso_ms}|{sensor_id}", b"2026-02-17T10:30:00.123|balloon-7"),
        ("%d{sensor_id}#%%{time:%Y%%}", b"%dballoon-7#%%2026%"),
    ],
)
def test_keys(template, key):
    """The default template's keys, the published examples', and others', byte for byte."""
    assert KeyTemplate.parse(template).render(EVENT, "pressure") == key


@given(sensor_ids, times)
def test_default_key_round_trip(sensor_id, time_us):
    """A key of the default template says its sensor and its time to the microsecond, over the whole valid range."""
    template = KeyTemplate.parse(DEFAULT)
    key = template.render(Event(sensor_id, time_us, {"t": 1.0}, {}))
    assert key == f"{sensor_id}#{9_999_999_999_999_999 - time_us:016d}".encode()
    assert template.parse_key(key) == RawKey(sensor_id, time_us)


@given(templates, key_events)
def test_key_round_trip(template, event):
    """A key says all that its template has, whatever the texts in it, and the time to the template's grain."""
    metric = next(iter(event.readings))
    key = template.render(event, metric)
    read = template.parse_key(key)
    assert read.sensor_id == event.sensor_id
    assert 0 <= event.event_time_us - read.time_us < template.grain_us
    assert read.metric == (metric if template.has(MetricToken) else "")
    assert read.event_id == (event.event_id if template.has(EventIdToken) else "")
    assert read.metadata == {name: event.metadata[name] for name in template.metadata_names}
    floored = Event(read.sensor_id, read.time_us, {}, read.metadata, read.event_id)
    assert template.parse_key(template.render(floored, read.metric)) == read


@given(templates, key_events, st.sampled_from(["a", "a!"]), st.integers(0, 2 * 10**6), st.sampled_from("xy"))
def test_different_events_have_different_keys(template, event, sensor_id, offset_us, text):
    """Two keys are the same exactly where all that the template tells of their events is the same."""
    one = event._replace(sensor_id="a", metadata={"location": "x", "model": "x"}, event_id="x")
    later_us = min(event.event_time_us + offset_us, LATEST_US)
    other = Event(sensor_id, later_us, event.readings, {"location": text, "model": "x"}, text)
    told = [
        (
            event.sensor_id,
            [part.floor(event.event_time_us) for part in template.parts if isinstance(part, TimeToken)],
            [event.metadata[name] for name in template.metadata_names],
            event.event_id if template.has(EventIdToken) else "",
        )
        for event in (one, other)
    ]
    assert (template.render(one, "t") == template.render(other, "t")) == (told[0] == told[1])


@given(templates, key_events, st.integers(0, 3 * DAY_US))
def test_newest_first(template, event, offset_us):
    """Under one sensor keys are in the order of times, or in the opposite one where the newest comes first."""
    assume(len({token.newest_first for token in template.parts if isinstance(token, TimeToken)}) == 1)
    time_us = event.event_time_us
    later = event._replace(event_time_us=min(time_us + offset_us, LATEST_US))
    one, other = template.render(event, "t"), template.render(later, "t")
    assert one == other or (other < one) == template.newest_first
    if later.event_time_us - time_us >= template.grain_us:
        assert one != other


@given(sensor_ids, sensor_ids, times)
def test_prefix_safety(sensor_id, other, time_us):
    """A sensor's prefix is that of its own rows and of no other sensor's, even one whose name begins with its name."""
    template = KeyTemplate.parse(DEFAULT)
    prefix = template.prefix(Known(sensor_id))
    assert template.render(Event(sensor_id, time_us, {}, {})).startswith(prefix)
    assert not template.render(Event(sensor_id + other, time_us, {}, {})).startswith(prefix)
    if other != sensor_id:
        assert not template.render(Event(other, time_us, {}, {})).startswith(prefix)


@given(sensor_ids, spans, times)
def test_default_range_is_half_open(sensor_id, span, time_us):
    """A range of the default template's keys holds a time exactly when start <= time < end."""
    template = KeyTemplate.parse(DEFAULT)
    (key_range,), reverse, pattern = template.scan(Known(sensor_id), *span)
    inside = holds(key_range, template.render(Event(sensor_id, time_us, {}, {})))
    assert inside == (span[0] <= time_us < span[1])
    assert not reverse
    assert pattern is None


# Scans


def found(scan, key):
    """Whether the scan gives the row of the key."""
    return any(holds(key_range, key) for key_range in scan.ranges) and (
        scan.pattern is None or re.fullmatch(scan.pattern, key.decode(), re.DOTALL) is not None
    )


@st.composite
def neighbourhoods(draw):
    """A span of up to some weeks, and events in and around it of sensors with nearly one name."""
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


@pytest.mark.parametrize("text", TEMPLATES)
@settings(max_examples=30)
@given(neighbourhoods(), st.data())
def test_scan_finds_what_is_looked_for(text, neighbourhood, data):
    """A scan gives exactly the rows of the sensor, metric and grains that are looked for, and nobody else's."""
    template = KeyTemplate.parse(text)
    (start_us, end_us), feed = neighbourhood
    wanted = data.draw(st.sampled_from(feed)) if feed else EVENT
    metric = next(iter(wanted.readings)) if template.has(MetricToken) else None
    known = Known(wanted.sensor_id, metric, {name: wanted.metadata.get(name, "x") for name in ("location", "model")})
    before_time = [part for part in template.parts[: template._index(TimeToken)] if isinstance(part, MetadataToken)]
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
            assert found(scan, template.render(event, name)) == expected


@pytest.mark.parametrize("text", TEMPLATES)
@settings(max_examples=30)
@given(spans, times)
def test_scan_gives_the_newest_first(text, span, time_us):
    """Ranges do not overlap and are the newest first; each is read from its end where keys are in the order of time."""
    template = KeyTemplate.parse(text)
    span = [span[0], min(span[1], span[0] + 3 * DAY_US)]
    known = Known("a", "t", {"location": "x", "model": "y"})
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
        ("{sensor_id}#{reverse_us}#{metric}", r"[^#]+\#[0-9]{16}\#t\.1"),
        ("{iso_s}#{sensor_id}", r"[0-9]{4}\-[0-9]{2}\-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\#a\.\+"),
        ("{bucket:1d}#{salt:2}#{sensor_id}#x", r"[0-9]{4}\-[0-9]{2}\-[0-9]{2}\#[0-9a-f]{2}\#a\.\+\#x"),
    ],
)
def test_pattern_only_where_it_is_needed(template, pattern):
    """Keys are matched only where a sensor or metric that is known stands behind the last time."""
    assert KeyTemplate.parse(template).scan(Known("a.+", "t.1", {"location": "x"}), 0, 1).pattern == pattern


def test_no_pattern_without_a_metric():
    """Where all metrics are wanted, nothing has to be matched."""
    assert KeyTemplate.parse("{sensor_id}#{reverse_us}#{metric}").scan(Known("a"), 0, 1).pattern is None


def test_ranges_of_days():
    """Two times make a range of keys a day, the newest day first, the first and last cut to the times."""
    template = KeyTemplate.parse("{sensor_id}#{bucket:1d}#{iso_s}")
    ranges, reverse, pattern = template.scan(Known("a"), at(2026, 2, 16, 22), at(2026, 2, 18, 2))
    assert list(ranges) == [
        KeyRange(b"a#2026-02-18#2026-02-18T00:00:00", b"a#2026-02-18#2026-02-18T01:59:5:"),
        KeyRange(b"a#2026-02-17#2026-02-17T00:00:00", b"a#2026-02-17#2026-02-17T23:59:5:"),
        KeyRange(b"a#2026-02-16#2026-02-16T22:00:00", b"a#2026-02-16#2026-02-16T23:59:5:"),
    ]
    assert reverse
    assert pattern is None


@pytest.mark.parametrize("text", TEMPLATES)
def test_all_of_time(text):
    """The whole of time can be asked for, from the epoch to the last instant."""
    template = KeyTemplate.parse(text)
    known = Known("a", "t", {"location": "x", "model": "y"})
    if template.coarse_time is None:
        (key_range,) = template.scan(known, 0, LATEST_US + 1).ranges
    else:
        key_range = template.coarse_range(known, 0, LATEST_US + 1)
    for time_us in (EARLIEST_US, LATEST_US):
        assert holds(key_range, template.render(Event("a", time_us, {"t": 1.0}, known.metadata, "e"), "t"))


@given(st.sampled_from([text for text in TEMPLATES if KeyTemplate.parse(text).coarse_time]), neighbourhoods())
def test_coarse_range(text, neighbourhood):
    """All rows whose first time is within the span, by its own grain, are in one range with no row of others."""
    template = KeyTemplate.parse(text)
    (start_us, end_us), feed = neighbourhood
    key_range = template.coarse_range(Known("a"), start_us, end_us)
    coarse = template.coarse_time
    for event in feed:
        within = coarse.floor(start_us) <= coarse.floor(event.event_time_us) <= coarse.floor(end_us - 1)
        sensors = template.time_first or event.sensor_id == "a"
        assert holds(key_range, template.render(event, "t")) == (within and sensors)


# What is known


@pytest.mark.parametrize(
    ("template", "known", "prefix"),
    [
        (DEFAULT, Known(), b""),
        (DEFAULT, Known("a"), b"a#"),
        ("v1/{sensor_id}#{reverse_us}", Known(), b"v1/"),
        ("{salt:2}#{sensor_id}#{reverse_ms}", Known(), b""),
        ("{salt:2}#{sensor_id}#{reverse_ms}", Known("a"), b"0c#a#"),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", Known(), b"shard-"),
        ("{metadata.location}#{sensor_id}#{iso_s}", Known("a"), b""),
        ("{metadata.location}#{sensor_id}#{iso_s}", Known(None, None, {"location": "us"}), b"us#"),
        ("{metadata.location}#{sensor_id}#{iso_s}", Known("a", None, {"location": "us"}), b"us#a#"),
        ("{sensor_id}#{metric}#{reverse_us}", Known("a"), b"a#"),
        ("{sensor_id}#{metric}#{reverse_us}", Known("a", "t"), b"a#t#"),
        ("{iso_s}#{sensor_id}", Known("a"), b""),
        ("{sensor_id}#v{bucket:1d}", Known("a"), b"a#v"),
    ],
)
def test_prefix(template, known, prefix):
    """Keys begin with all that is known, up to the first token that is not, or to the time."""
    assert KeyTemplate.parse(template).prefix(known) == prefix


@pytest.mark.parametrize(
    ("template", "prefix"),
    [
        (DEFAULT, b"ball"),
        ("v1/{sensor_id}#{reverse_us}", b"v1/ball"),
        ("{metadata.location}#{sensor_id}#{iso_s}", b"us#ball"),
        ("{metadata.model}#{sensor_id}#{iso_s}", b""),
        ("{salt:2}#{sensor_id}#{iso_s}", b""),
    ],
)
def test_prefix_of_many_sensors(template, prefix):
    """How sensors' ids begin narrows the keys where the sensor is the first that is not known."""
    assert KeyTemplate.parse(template).prefix(Known(None, None, {"location": "us"}), "ball") == prefix


@pytest.mark.parametrize(
    ("template", "missing"),
    [
        (DEFAULT, []),
        ("{metadata.location}#{sensor_id}#{iso_s}", ["location"]),
        ("{metadata.location}#{metadata.model}#{sensor_id}#{iso_s}", ["location"]),
        ("{sensor_id}#{metadata.location}#{iso_s}", ["location"]),
        ("{sensor_id}#{iso_s}#{metadata.location}", []),
        ("{iso_s}#{metadata.location}#{sensor_id}", []),
    ],
)
def test_missing(template, missing):
    """The metadata without which a sensor is not found is what stands before the time and is not known."""
    assert KeyTemplate.parse(template).missing(Known("a", None, {"model": "x"})) == missing


@pytest.mark.parametrize(
    ("template", "known", "unknown"),
    [
        (DEFAULT, Known("a"), None),
        (DEFAULT, Known(), SensorToken),
        ("{salt:2}#{sensor_id}#{iso_s}", Known(), SaltToken),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", Known(), ShardToken),
        ("{salt:2}#{sensor_id}#{iso_s}", Known("a"), None),
        ("{metadata.location}#{sensor_id}#{iso_s}", Known("a"), MetadataToken),
        ("{sensor_id}#{metric}#{iso_s}", Known("a"), MetricToken),
        ("{sensor_id}#{metric}#{iso_s}", Known("a", "t"), None),
        ("{sensor_id}#{iso_s}#{metric}", Known("a"), None),
        ("{iso_s}#{sensor_id}", Known(), None),
    ],
)
def test_unknown(template, known, unknown):
    """The first token before the time that is not known is what has to be looked up."""
    token = KeyTemplate.parse(template).unknown(known)
    assert (None if token is None else type(token)) == unknown


@pytest.mark.parametrize(
    ("template", "kind", "key", "prefix"),
    [
        (DEFAULT, SensorToken, b"a#8228675799876543", b"a#"),
        (DEFAULT, TimeToken, b"a#8228675799876543", b"a#8228675799876543"),
        ("{metadata.location}#{sensor_id}#{iso_s}", SensorToken, "zü#a#2026-02-17T10:30:00".encode(), "zü#a#".encode()),
        ("{metadata.location}#{sensor_id}#{iso_s}", MetadataToken, b"us#a#2026-02-17T10:30:00", b"us#"),
        ("{iso_s}#{sensor_id}", SensorToken, b"2026-02-17T10:30:00#a", b"2026-02-17T10:30:00#a"),
        ("{sensor_id}#{bucket:1d}#{iso_s}", TimeToken, b"a#2026-02-17#2026-02-17T10:30:00", b"a#2026-02-17"),
        ("{sensor_id}#{metric}#{iso_s}", MetricToken, b"a#t#2026-02-17T10:30:00", b"a#t#"),
    ],
)
def test_through(template, kind, key, prefix):
    """A key's beginning up to a token: with the '#' behind a text, so that longer texts are not taken in."""
    assert KeyTemplate.parse(template).through(kind, key) == prefix


FOREIGN = [
    b"",
    b"a",
    b"agg#hourly#a#2026-02-17T10",
    b"a#822867579987654",
    b"a#82286757998765432",
    b"#8228675799876543",
    b"\xff",
]


@pytest.mark.parametrize("key", FOREIGN)
def test_keys_of_others(key):
    """A key that the template does not render is a ValueError, whatever its bytes."""
    template = KeyTemplate.parse(DEFAULT)
    with pytest.raises(ValueError, match=r"is not of the form \{sensor_id\}#\{reverse_us\}|can't decode"):
        template.parse_key(key)
    with pytest.raises(ValueError, match=r"is not of the form \{sensor_id\}#\{reverse_us\}|can't decode"):
        template.through(SensorToken, key)


@given(templates, st.binary(max_size=30))
def test_any_key(template, key):
    """Whatever bytes a key has, it reads as one of the template's or is a ValueError."""
    try:
        read = template.parse_key(key)
    except ValueError:
        return
    again = template.render(Event(read.sensor_id, read.time_us, {}, read.metadata, read.event_id), read.metric)
    assert template.parse_key(again) == read


@pytest.mark.parametrize("key", [b"agg#hourly#a", b"agg", b"\xffagg#", b""])
def test_first_segment(key):
    """A key's first segment can be told of any bytes."""
    assert (first_segment(key) in RESERVED_SENSOR_IDS) == key.startswith(b"agg")


# What a template says of itself


@pytest.mark.parametrize(
    ("template", "newest_first", "time_first", "prefix_scans", "spread"),
    [
        (DEFAULT, True, False, True, 1),
        ("{salt:2}#{sensor_id}#{reverse_ms}", True, False, True, 256),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", False, False, True, 32),
        ("{metadata.location}#{sensor_id}#{time:%Y-%m-%d-%H%M}", False, False, True, 1),
        ("{sensor_id}#{reverse_s}", True, False, True, 1),
        ("{iso_s}#{sensor_id}", False, True, False, 1),
        ("{bucket:1d}#{sensor_id}#{reverse_us}", False, True, False, 1),
        ("{sensor_id}#{metric}#{reverse_us}", True, False, False, 1),
        ("{sensor_id}#{reverse_us}#{metric}", True, False, True, 1),
        ("{sensor_id}#{salt:2}#{reverse_us}", True, False, True, 1),
    ],
)
def test_what_it_knows_of_itself(template, newest_first, time_first, prefix_scans, spread):
    """Whether the newest or the time comes first, whether one scan has many sensors, over how many ranges they are."""
    template = KeyTemplate.parse(template)
    assert template.newest_first is newest_first
    assert template.time_first is time_first
    assert template.prefix_scans is prefix_scans
    assert template.spread == spread


@pytest.mark.parametrize(
    ("template", "most", "splits"),
    [
        (DEFAULT, 10, []),
        ("{salt:1}#{sensor_id}#{reverse_ms}", 3, [b"4", b"8", b"c"]),
        ("{salt:1}#{sensor_id}#{reverse_ms}", 1, [b"8"]),
        ("{salt:1}#{sensor_id}#{reverse_ms}", 0, []),
        ("shard-{shard:4}#{sensor_id}#{iso_s}", 100, [b"shard-1", b"shard-2", b"shard-3"]),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", 3, [b"shard-08", b"shard-16", b"shard-24"]),
        ("{shard:3}{shard:2}#{sensor_id}#{iso_s}", 100, [b"01", b"10", b"11", b"20", b"21"]),
        ("{sensor_id}#{salt:1}#{reverse_ms}", 100, []),
        ("{bucket:1d}#{salt:1}#{sensor_id}", 100, []),
    ],
)
def test_split_keys(template, most, splits):
    """A new table is split between salts or shards, evenly and never more often than is asked."""
    assert KeyTemplate.parse(template).split_keys(most) == splits


@given(
    st.sampled_from(["{salt:1}", "{salt:2}", "{salt:4}", "{shard:7}", "x{shard:1000}", "{salt:1}{shard:9}"]),
    st.integers(1, 200),
)
def test_splits_are_even(text, most):
    """Splits are in order, at most as many as asked for, and no fewer than half of what is possible."""
    template = KeyTemplate.parse(f"{text}#{{sensor_id}}#{{reverse_us}}")
    splits = template.split_keys(most)
    assert splits == sorted(set(splits))
    assert min(most, template.spread - 1) // 2 <= len(splits) <= most


@pytest.mark.parametrize("text", TEMPLATES)
def test_text_and_pickling(text):
    """A template is its text, equal to any of the same text, and travels between workers as that."""
    template = KeyTemplate.parse(text)
    template.render(Event("a", TEN_THIRTY, {}, {"location": "x", "model": "y"}, "e"), "t")
    copy = pickle.loads(pickle.dumps(template))  # noqa: S301 (our own)
    assert str(copy) == text
    assert copy == template
    assert hash(copy) == hash(template)
    assert copy.parts == template.parts


# Refusals


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not printable ASCII without blanks"),
        ("{sensor_id} #{reverse_us}", "'{sensor_id} #{reverse_us}' is not printable ASCII without blanks"),
        ("{sensor_id}#{reverse_us}\n", "'{sensor_id}#{reverse_us}\\n' is not printable ASCII without blanks"),
        ("ü{sensor_id}#{reverse_us}", "'\\xfc{sensor_id}#{reverse_us}' is not printable ASCII without blanks"),
        ("{sensor_id}#{time:%Y\0}", "'{sensor_id}#{time:%Y\\x00}' is not printable ASCII without blanks"),
        ("{sensor_id}#{time:%Y %m}", "'{sensor_id}#{time:%Y %m}' is not printable ASCII without blanks"),
        ("{sensor_id#{reverse_us}", "'{sensor_id#{reverse_us}' has a brace without its partner"),
        ("{sensor_id}}#{reverse_us}", "'{sensor_id}}#{reverse_us}' has a brace without its partner"),
        ("{{sensor_id}}#{reverse_us}", "'{{sensor_id}}#{reverse_us}' has a brace without its partner"),
        ("{reverse_us}", "'{reverse_us}' has no {sensor_id}: sensors could not be told apart"),
        ("literal", "'literal' has no {sensor_id}: sensors could not be told apart"),
        (
            "{sensor_id}#{salt:2}",
            "'{sensor_id}#{salt:2}' has no time: a sensor's events would all be one row; add one, like {reverse_us}",
        ),
        ("{sensor_id}#{sensor_id}#{iso_s}", "'{sensor_id}#{sensor_id}#{iso_s}' has {sensor_id} twice"),
        ("{sensor_id}#{iso_s}#{iso_s}", "'{sensor_id}#{iso_s}#{iso_s}' has {iso_s} twice"),
        (
            "{sensor_id}{reverse_us}",
            "{sensor_id} has to be followed by '#' or end the key, or where it ends could not be told",
        ),
        (
            "{metadata.location}-{sensor_id}#{reverse_us}",
            "{metadata.location} has to be followed by '#' or end the key, or where it ends could not be told",
        ),
        (
            "{sensor_id}#{metric}{metadata.a}#{reverse_us}",
            "{metric} has to be followed by '#' or end the key, or where it ends could not be told",
        ),
        ("{sensor_id}#{iso_s}#{reverse_s}", "{iso_s} is no coarser than {reverse_s} behind it; leave one out"),
        ("{sensor_id}#{iso_us}#{bucket:1d}", "{iso_us} is no coarser than {bucket:1d} behind it; leave one out"),
        (
            "{sensor_id}#{bucket:1d}#{bucket:24h}",
            "{bucket:1d} is no coarser than {bucket:24h} behind it; leave one out",
        ),
        (
            "{sensor_id}#{bucket:15m}#{iso_us}",
            "{bucket:15m} before {iso_us} makes a range of keys of every moment; use {bucket:1d}",
        ),
        (
            "{sensor_id}#{reverse_s}#{iso_us}",
            "{reverse_s} before {iso_us} makes a range of keys of every moment; use {bucket:1d}",
        ),
        (
            "{sensor_id}#{bucket:1d}#{metric}#{iso_us}",
            "{metric} stands between two times; put it before {bucket:1d}",
        ),
        (
            "{sensor_id}#{bucket:1d}#{metadata.location}#{iso_us}",
            "{metadata.location} stands between two times; put it before {bucket:1d}",
        ),
        (
            "{sensor_id}#{event_id}#{reverse_us}",
            "{event_id} has to stand behind {reverse_us}: it tells events of one moment apart",
        ),
        (
            "{sensor_id}#{bucket:1d}#{event_id}#{reverse_us}",
            "{event_id} has to stand behind {reverse_us}: it tells events of one moment apart",
        ),
        *(
            (f"{word}#{DEFAULT}", f"'{word}#{DEFAULT}' begins with {word}#, as the table's own rows do")
            for word in sorted(RESERVED_SENSOR_IDS)
        ),
        (
            "x" * 2000 + DEFAULT,
            f"'{'x' * 80}\\u2026' has 2,024 characters, at most 1,024 leave a key room",
        ),
    ],
)
def test_refusals(text, problem):
    """A template whose rows could not be told apart or found again is refused in one line that says why."""
    assert problem_with(text) == problem


def test_refusal_of_a_token():
    """What is wrong with a token is told as the token tells it."""
    assert problem_with("{sensor}#{reverse_us}").startswith("{sensor} is no token; there are {sensor_id}, ")
    assert problem_with("{}").startswith("{} is no token; ")


PIECES = [
    *(
        "{sensor_id}",
        "{metric}",
        "{event_id}",
        "{metadata.location}",
        "{salt:1}",
        "{shard:3}",
        "{reverse_us}",
        "{iso_s}",
    ),
    *(
        "{bucket:1h}",
        "{bucket:1w}",
        "{time:%Y-%m}",
        "{time:%H}",
        "{nothing}",
        "#",
        "x",
        "agg",
        "gg",
        "a",
        "{",
        "}",
        " ",
    ),
]


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join), key_events, st.sampled_from(["gg", "a", "schema", "x"])
)
def test_whatever_is_accepted_works(text, event, metric):
    """Any text is refused in one line, or makes keys that read back and never look like the table's own rows."""
    try:
        template = KeyTemplate.parse(text)
    except TemplateError as error:
        problem = str(error)
        assert problem.isprintable()
        return
    event = event._replace(readings={metric: 1.0})
    try:
        template.check(event)
    except BadData as refusal:
        assert refusal.reason is Reason.RESERVED_KEY  # noqa: PT017
        return
    key = template.render(event, metric)
    assert first_segment(key) not in RESERVED_SENSOR_IDS
    assert template.parse_key(key).sensor_id == event.sensor_id


# What only the data can tell


def refusal(text, **changes):
    with pytest.raises(BadData) as caught:
        KeyTemplate.parse(text).check(EVENT._replace(**changes))
    return caught.value.reason, caught.value.detail


def test_default_holds_every_event():
    """Of a valid event the default template can always make a key."""
    event = Event("x" * 256, LATEST_US, {"t": 1.0}, {"location": "a#b"})
    KeyTemplate.parse(DEFAULT).check(event)


@pytest.mark.parametrize("metadata", [{}, {"location": ""}])
def test_missing_metadata(metadata):
    """A promoted field that is missing or empty is a dead letter."""
    assert refusal("{metadata.location}#{sensor_id}#{iso_s}", metadata=metadata) == (
        Reason.MISSING_KEY_FIELD,
        "metadata location is missing or empty; the table's row keys are made of it",
    )


@pytest.mark.parametrize("location", ["#", "a#b", "ü#"])
def test_metadata_with_a_separator(location):
    """A promoted field that holds '#' is a dead letter."""
    reason, detail = refusal("{metadata.location}#{sensor_id}#{iso_s}", metadata={"location": location})
    assert reason is Reason.INVALID_KEY_FIELD
    assert detail == f"metadata location is {location!a}; what row keys are made of can't hold '#'"


@pytest.mark.parametrize(("event_id", "reason"), [("", Reason.MISSING_KEY_FIELD), ("a#b", Reason.INVALID_KEY_FIELD)])
def test_event_id(event_id, reason):
    """An event's id that is missing or holds '#' is a dead letter where keys are made of it."""
    assert refusal("{sensor_id}#{iso_s}#{event_id}", event_id=event_id)[0] is reason


@pytest.mark.parametrize("character", ["x", "ü"])
def test_key_too_long(character):
    """A key of 4096 bytes fits, one more does not."""
    template = "{metadata.location}#{sensor_id}#{reverse_us}"
    room = 4096 - len("#balloon-7#8228675799876543")
    fits = character * (room // len(character.encode())) + "x" * (room % len(character.encode()))
    KeyTemplate.parse(template).check(EVENT._replace(metadata={"location": fits}))
    assert refusal(template, metadata={"location": fits + "x"}) == (
        Reason.KEY_TOO_LONG,
        "the row key has 4097 bytes, at most 4096",
    )


def test_key_too_long_with_the_longest_metric():
    """Where keys are made of metrics, the longest of them counts."""
    template = "{metadata.location}#{sensor_id}#{metric}#{reverse_us}"
    metadata = {"location": "x" * 4000}
    KeyTemplate.parse(template).check(EVENT._replace(metadata=metadata, readings={"t": 1.0}))
    assert refusal(template, metadata=metadata, readings={"t": 1.0, "m" * 100: 1.0})[0] is Reason.KEY_TOO_LONG


@pytest.mark.parametrize("word", sorted(RESERVED_SENSOR_IDS))
@pytest.mark.parametrize(
    ("template", "changes"),
    [
        ("{metadata.location}#{sensor_id}#{iso_s}", lambda word: {"metadata": {"location": word}}),
        ("{metric}#{sensor_id}#{iso_s}", lambda word: {"readings": {"t": 1.0, word: 1.0}}),
        ("{iso_s}{metric}#{sensor_id}", None),
    ],
)
def test_reserved_beginnings(template, changes, word):
    """A key that would begin like the table's own rows is a dead letter."""
    if changes is None:
        KeyTemplate.parse(template).check(EVENT._replace(readings={word: 1.0}))
    else:
        assert refusal(template, **changes(word)) == (
            Reason.RESERVED_KEY,
            f"the row key begins with {word}#, as the table's own rows do",
        )


def test_reserved_beginnings_put_together():
    """Text before a sensor's id, or a salt, may make a reserved word of it."""
    assert refusal("a{sensor_id}#{iso_s}", sensor_id="gg")[0] is Reason.RESERVED_KEY
    KeyTemplate.parse("a{sensor_id}#{iso_s}").check(EVENT)
    salted = next(name for name in map(str, range(1000)) if SaltToken("", 1).render(name) == "a")
    assert refusal("{salt:1}gg#{sensor_id}#{iso_s}", sensor_id=salted)[0] is Reason.RESERVED_KEY
