import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeline.core.events.event import LATEST_US, RESERVED_SENSOR_IDS, Event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.schema.key_template import KeyTemplate, first_segment
from pipeline.core.schema.key_tokens import (
    DAY_US,
    EventIdToken,
    MetadataToken,
    MetricToken,
    SaltToken,
    SensorToken,
    TemplateError,
    TimeToken,
)
from tests.core.schema.key_templates import DEFAULT, EVENT, TEMPLATES, TEN_THIRTY
from tests.support.strategies import events

templates = st.sampled_from(TEMPLATES).map(KeyTemplate.parse)
key_events = events(promoted=("location", "model"))


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
    """Renders the default template's keys, the published examples and others, byte for byte."""
    assert KeyTemplate.parse(template).render(EVENT, "pressure") == key


@given(templates | st.just(KeyTemplate.parse("%d#{sensor_id}#%{reverse_ms}")), key_events)
def test_many_keys(template, event):
    """The keys of many events are those of each."""
    events = [event, event._replace(event_time_us=event.event_time_us + 1)]
    assert template.render_all(events) == [template.render(each) for each in events]


@given(templates, key_events)
def test_key_round_trip(template, event):
    """A key can be parsed into all of its fields, whatever their text, with the time at the template's grain."""
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
    """Two events have the same key exactly if all fields of the template are the same."""
    one = event._replace(sensor_id="a", metadata={"location": "x", "model": "x"}, event_id="x")
    later_us = min(event.event_time_us + offset_us, LATEST_US)
    other = Event(sensor_id, later_us, event.readings, {"location": text, "model": "x"}, text)
    fields = [
        (
            event.sensor_id,
            [part.floor(event.event_time_us) for part in template.parts if isinstance(part, TimeToken)],
            [event.metadata[name] for name in template.metadata_names],
            event.event_id if template.has(EventIdToken) else "",
        )
        for event in (one, other)
    ]
    assert (template.render(one, "t") == template.render(other, "t")) == (fields[0] == fields[1])


@given(templates, key_events, st.integers(0, 3 * DAY_US))
def test_newest_first(template, event, offset_us):
    """Keys of one sensor are sorted by time, descending if the template puts the newest first."""
    assume(len({token.newest_first for token in template.parts if isinstance(token, TimeToken)}) == 1)
    time_us = event.event_time_us
    later = event._replace(event_time_us=min(time_us + offset_us, LATEST_US))
    one, other = template.render(event, "t"), template.render(later, "t")
    assert one == other or (other < one) == template.newest_first
    if later.event_time_us - time_us >= template.grain_us:
        assert one != other


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
def test_prefix_through(template, kind, key, prefix):
    """A key's prefix ends with the '#' behind a text token, so longer texts do not match."""
    assert KeyTemplate.parse(template).prefix_through(kind, key) == prefix


@pytest.mark.parametrize(
    "key", [b"", b"a", b"agg#hourly#a#2026-02-17T10", b"a#822867579987654", b"a#82286757998765432", b"\xff"]
)
def test_foreign_keys(key):
    """A key that the template does not render is a ValueError, whatever its bytes."""
    template = KeyTemplate.parse(DEFAULT)
    for parse in (template.parse_key, lambda key: template.prefix_through(SensorToken, key)):
        with pytest.raises(ValueError, match=r"does not match \{sensor_id\}#\{reverse_us\}|can't decode"):
            parse(key)


@given(templates, st.binary(max_size=30))
def test_any_key(template, key):
    """Any bytes are either parsed as one of the template's keys or a ValueError."""
    try:
        read = template.parse_key(key)
    except ValueError:
        return
    again = template.render(Event(read.sensor_id, read.time_us, {}, read.metadata, read.event_id), read.metric)
    assert template.parse_key(again) == read


# Properties


@pytest.mark.parametrize(
    ("template", "newest_first", "time_first", "supports_prefix_scan", "spread"),
    [
        (DEFAULT, True, False, True, 1),
        ("{salt:2}#{sensor_id}#{reverse_ms}", True, False, True, 256),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", False, False, True, 32),
        ("{iso_s}#{sensor_id}", False, True, False, 1),
        ("{bucket:1d}#{sensor_id}#{reverse_us}", False, True, False, 1),
        ("{sensor_id}#{metric}#{reverse_us}", True, False, False, 1),
        ("{sensor_id}#{reverse_us}#{metric}", True, False, True, 1),
        ("{sensor_id}#{salt:2}#{reverse_us}", True, False, True, 1),
    ],
)
def test_properties(template, newest_first, time_first, supports_prefix_scan, spread):
    """Templates know whether the newest or the time comes first, and how sensors spread over ranges."""
    template = KeyTemplate.parse(template)
    assert template.newest_first is newest_first
    assert template.time_first is time_first
    assert template.supports_prefix_scan is supports_prefix_scan
    assert template.spread_factor == spread


@pytest.mark.parametrize(
    ("template", "most", "splits"),
    [
        (DEFAULT, 10, []),
        ("{salt:1}#{sensor_id}#{reverse_ms}", 3, [b"4", b"8", b"c"]),
        ("{salt:1}#{sensor_id}#{reverse_ms}", 0, []),
        ("shard-{shard:4}#{sensor_id}#{iso_s}", 100, [b"shard-1", b"shard-2", b"shard-3"]),
        ("shard-{shard:32}#{sensor_id}#{iso_s}", 3, [b"shard-08", b"shard-16", b"shard-24"]),
        ("{shard:3}{shard:2}#{sensor_id}#{iso_s}", 100, [b"01", b"10", b"11", b"20", b"21"]),
        ("{bucket:1d}#{salt:1}#{sensor_id}", 100, []),
    ],
)
def test_split_keys(template, most, splits):
    """A new table is split evenly between salts or shards, and never into more parts than requested."""
    assert KeyTemplate.parse(template).split_keys(most) == splits


@pytest.mark.parametrize("text", TEMPLATES)
def test_text_and_pickling(text):
    """A template is defined by its text: equal texts are equal templates, and pickling keeps it."""
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
        ("ü{sensor_id}#{reverse_us}", "'ü{sensor_id}#{reverse_us}' is not printable ASCII without blanks"),
        ("{sensor_id#{reverse_us}", "'{sensor_id#{reverse_us}' has an unmatched brace"),
        ("{reverse_us}", "'{reverse_us}' has no {sensor_id}: sensors would share rows"),
        (
            "{sensor_id}#{salt:2}",
            "'{sensor_id}#{salt:2}' has no time: a sensor's events would share one row; add one, like {reverse_us}",
        ),
        ("{sensor_id}#{sensor_id}#{iso_s}", "'{sensor_id}#{sensor_id}#{iso_s}' has {sensor_id} twice"),
        (
            "{sensor_id}{reverse_us}",
            "{sensor_id} must be followed by '#' or end the key: its length is not fixed",
        ),
        ("{sensor_id}#{iso_s}#{reverse_s}", "{iso_s} is no coarser than {reverse_s} after it; leave one out"),
        (
            "{sensor_id}#{bucket:15m}#{iso_us}",
            "{bucket:15m} before {iso_us} splits a span of time into too many key ranges; use {bucket:1d}",
        ),
        (
            "{sensor_id}#{bucket:1d}#{metric}#{iso_us}",
            "{metric} is between two times; put it before {bucket:1d}",
        ),
        (
            "{sensor_id}#{event_id}#{reverse_us}",
            "{event_id} must come after {reverse_us}: it distinguishes events with the same time",
        ),
        *(
            (f"{word}#{DEFAULT}", f"'{word}#{DEFAULT}' begins with the reserved prefix {word}#")
            for word in sorted(RESERVED_SENSOR_IDS)
        ),
        (
            "x" * 2000 + DEFAULT,
            f"'{'x' * 80}…' has 2,024 characters; at most 1,024 are allowed",
        ),
    ],
)
def test_refusals(text, problem):
    """A template whose rows could not be distinguished or found is refused in one line with the reason."""
    assert problem_with(text) == problem


PIECES = [
    "{sensor_id}", "{metric}", "{event_id}", "{metadata.location}", "{salt:1}", "{shard:3}", "{reverse_us}", "{iso_s}",
    "{bucket:1h}", "{bucket:1w}", "{time:%Y-%m}", "{time:%H}", "{nothing}", "#", "x", "agg", "gg", "a", "{", "}", " ",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join), key_events, st.sampled_from(["gg", "a", "schema", "x"])
)
def test_accepted_templates_work(text, event, metric):
    """Any text is refused in one line, or yields keys that can be parsed and never look like the table's own rows."""
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


# Problems that depend on the event


def refusal(text, **changes):
    with pytest.raises(BadData) as caught:
        KeyTemplate.parse(text).check(EVENT._replace(**changes))
    return caught.value.reason, caught.value.detail


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        *(
            (
                {"metadata": metadata},
                Reason.MISSING_KEY_FIELD,
                "metadata location is missing or empty, but part of the table's row keys",
            )
            for metadata in ({}, {"location": ""})
        ),
        *(
            (
                {"metadata": {"location": text}},
                Reason.INVALID_KEY_FIELD,
                f"metadata location is {text!r}; a field of row keys can't contain '#'",
            )
            for text in ("#", "a#b", "ü#")
        ),
        (
            {"event_id": ""},
            Reason.MISSING_KEY_FIELD,
            "event_id is missing or empty, but part of the table's row keys",
        ),
        ({"event_id": "a#b"}, Reason.INVALID_KEY_FIELD, "event_id is 'a#b'; a field of row keys can't contain '#'"),
    ],
)
def test_fields_of_keys(changes, reason, detail):
    """An event without a field that keys contain, or with '#' in it, is a dead letter."""
    assert refusal("{metadata.location}#{sensor_id}#{iso_s}#{event_id}", **changes) == (reason, detail)


@pytest.mark.parametrize("character", ["x", "ü"])
def test_key_too_long(character):
    """A key of 4096 bytes is accepted, and one more byte is not; the longest metric decides."""
    template = "{metadata.location}#{sensor_id}#{metric}#{reverse_us}"
    room = 4096 - len("#balloon-7#pressure#8228675799876543")
    fits = character * (room // len(character.encode())) + "x" * (room % len(character.encode()))
    readings = EVENT.readings | {"t": 1.0}
    KeyTemplate.parse(template).check(EVENT._replace(metadata={"location": fits}, readings=readings))
    assert refusal(template, metadata={"location": fits + "x"}, readings=readings) == (
        Reason.KEY_TOO_LONG,
        "the row key has 4097 bytes, at most 4096",
    )


@pytest.mark.parametrize("word", sorted(RESERVED_SENSOR_IDS))
@pytest.mark.parametrize(
    ("template", "changes"),
    [
        ("{metadata.location}#{sensor_id}#{iso_s}", lambda word: {"metadata": {"location": word}}),
        ("{metric}#{sensor_id}#{iso_s}", lambda word: {"readings": {"t": 1.0, word: 1.0}}),
        ("{iso_s}{metric}#{sensor_id}", None),
    ],
)
def test_reserved_prefixes(template, changes, word):
    """A key that would begin like the table's own rows is a dead letter."""
    if changes is None:
        KeyTemplate.parse(template).check(EVENT._replace(readings={word: 1.0}))
    else:
        assert refusal(template, **changes(word)) == (
            Reason.RESERVED_KEY,
            f"the row key begins with the reserved prefix {word}#",
        )


def test_composed_reserved_prefixes():
    """Fixed text or a salt before a sensor's id may complete a reserved prefix."""
    assert refusal("a{sensor_id}#{iso_s}", sensor_id="gg")[0] is Reason.RESERVED_KEY
    KeyTemplate.parse("a{sensor_id}#{iso_s}").check(EVENT)
    salted = next(name for name in map(str, range(1000)) if SaltToken("", 1).render(name) == "a")
    assert refusal("{salt:1}gg#{sensor_id}#{iso_s}", sensor_id=salted)[0] is Reason.RESERVED_KEY
