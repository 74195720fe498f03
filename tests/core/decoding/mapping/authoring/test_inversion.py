"""Messages that a mapping, inverted, makes of events: the mapping makes the same events of them."""

import gzip
import json
import re

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.authoring.inversion import Inversion
from pipeline.core.decoding.mapping.compiling.mapper import Mapper
from pipeline.core.decoding.mapping.language.model import UNITS, MappingError
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.events.message import MESSAGE_TYPE
from tests.core.decoding.mapping import generated
from tests.support.exhaustive import examples

T_US = 1_771_324_200_250_000  # 2026-02-17T10:30:00.250Z
READINGS = {"temperature": 21.53, "humidity": 50.1, "pressure": 94123.0, "battery": 3.7}
METADATA = {"location": "roof", "model": "TH-200", "firmware": "2.1"}
JSON = 'message = "json"\n'


def fleet(count=4):
    """Returns the events of two sensors, a second apart."""
    return [(i % 2, Event(f"roof-000{i % 2}", T_US + i * 1_000_000, READINGS, METADATA)) for i in range(count)]


def inverted(mapper, batch=1):
    """Returns the messages for the fleet, and the events that the mapping makes of them, after comparing the two."""
    found, sent = [], {each.event_time_us: each.sensor_id for _, each in fleet()}
    coarsest_us = max(
        1_000_000, *(int(UNITS[source.unit or "s"]) for source in mapper.mapping.time)
    )  # of whole numbers
    for message, events in Inversion(mapper).messages(fleet(), batch):
        read = mapper.map(message, mapper.parse(message), LATEST_US)
        assert not read.problems
        assert [each[:5] for each in events] == [tuple(made) for made in read.events]
        for each in events:
            on_time = [sensor for time_us, sensor in sent.items() if 0 <= time_us - each.event_time_us < coarsest_us]
            assert any(sensor in each.sensor_id for sensor in on_time) or not mapper.mapping.sensor[0].path
        assert message.attributes[MESSAGE_TYPE] == mapper.mapping.message
        found.append((message, events))
    return found


def _compare(text, types=None):
    # No message has the name of a file.
    text = re.sub(r"'\{?\$file\.stem\}?'", "{ constant = 's' }", text)
    try:
        mapper = Mapper(parse_mapping(text), types)
        inverted(mapper, batch=2 if Inversion(mapper).holds_several else 1)
    except MappingError as error:
        assert "simulate " in str(error) or "stands for nothing" in str(error)  # noqa: PT017
        event("not inverted")
    else:
        event("inverted")


_slow = settings(
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@_slow
@given(st.data())
def test_messages_of_any_type_become_the_events(data):
    """Messages of random types for random mappings become the events, or an error names the key."""
    types = data.draw(generated.types())
    _compare(data.draw(generated.mappings(types.descriptor(generated.ROOT))).text, types)


@_slow
@given(st.data())
def test_json_becomes_the_events(data):
    """So does JSON for random mappings."""
    _compare(data.draw(generated.mappings("plain")).text)


def document(text, batch=1):
    """Returns the first message of the fleet as JSON, with its events."""
    message, made = inverted(Mapper(parse_mapping(JSON + text)), batch)[0]
    return json.loads(message.data), message.attributes, made


def test_conversions_are_inverted():
    """Scales, offsets, formats, zones, signs and units of time are."""
    content, attributes, (made,) = document(
        'sensor = "{@topic.site}/{n:04d}"\ntime = { path = "{day} {clock}", format = "%d.%m.%Y %H:%M:%S", '
        'time_zone = "Europe/Berlin" }\ndecimal = ","\n'
        'attributes = { topic = "plant/{site}/{rest=**}" }\n'
        "[readings]\ntemperature = { path = 'k', offset = -273.15 }\nbattery = { path = 'mv', scale = 0.001 }\n"
        '[metadata]\nlocation = "where"\n'
    )
    assert content == {"n": 0, "day": "17.02.2026", "clock": "11:30:00", "k": 294.68, "mv": 3700, "where": "roof"}
    assert attributes["topic"] == "plant/roof-0000/x"
    assert made[:4] == (
        "roof-0000/0000", T_US // 1_000_000 * 1_000_000, {"temperature": 21.53, "battery": 3.7}, {"location": "roof"},
    )  # fmt: skip


def test_conditions_are_fulfilled():
    """A value that a condition needs is set, and none that it forbids."""
    content, attributes, _ = document(
        'sensor = "id"\ntime = { path = "t", unit = "ms" }\nmatch = { path = "@kind", glob = "up*" }\n'
        'skip_unless = [{ path = "type", is = ["data", "x"] }, { path = "v", set = true }]\n'
        'skip_if = [{ path = "test", is = true }, { path = "error", set = true }, { path = "id", is = "y" }]\n'
        'readings = { temperature = { path = "v", when = { path = "unit", is = "C" } } }\n'
    )
    assert content == {"type": "data", "id": "roof-0000", "t": T_US // 1000, "unit": "C", "v": 21.53}
    assert attributes["kind"] == "uproof-0000"


def test_elements():
    """A metric with a name is an element; events that share what is above the elements share a message."""
    text = 'each = "gateways[].points[]"\nsensor = "gateways[].id"\ntime = { path = ".t", unit = "ms" }\n'
    content, _, made = document(text + 'readings = { "*" = { path = ".v", name = ".n" } }\n', batch=4)
    assert len(made) == 4
    assert [gateway["id"] for gateway in content["gateways"]] == ["roof-0000", "roof-0001"] * 2
    assert [{**point, "t": 0} for point in content["gateways"][0]["points"]] == [
        {"t": 0, "n": name, "v": value} for name, value in READINGS.items()
    ]


_HEAD = 'sensor = "id"\ntime = { path = "t", unit = "s" }\n'
_OF_KEYS = {
    "zip": (
        'zip = ["hourly.time[]", "hourly.v[]"]\nsensor = "id"\ntime = { path = ".time", unit = "ms" }\n'
        'readings.v = ".v"\n',
        {"id": "roof-0000", "hourly": {"time": [T_US // 1000, T_US // 1000 + 2000], "v": [50.1, 50.1]}},
    ),
    "zip of a star": (
        'zip = "*[]"\nsensor = { constant = "s" }\ntime = { path = ".t", unit = "ms" }\nreadings.v = ".v"\n',
        {"t": [T_US // 1000, T_US // 1000 + 1000], "v": [50.1, 50.1]},
    ),
    "step": (
        'each = "v[]"\nsensor = "id"\ntime = { path = "t", unit = "ms", step = "60s" }\nreadings.v = "."\n',
        {"id": "roof-0000", "t": T_US // 1000, "v": [50.1]},
    ),
    "values": (
        _HEAD + 'readings.v = { path = "v", values = { OPEN = 1, CLOSED = 0 } }\n',
        {"id": "roof-0000", "t": T_US / 1e6, "v": "OPEN"},
    ),
    "units": (
        _HEAD + 'readings.v = { path = "v", units = { Wh = 0.001, kWh = 1 } }\n',
        {"id": "roof-0000", "t": T_US / 1e6, "v": "50100.0 Wh"},
    ),
    "unit_path": (
        _HEAD + 'readings.v = { path = "v", units = { Wh = 0.001, kWh = 1 }, unit_path = "u" }\n',
        {"id": "roof-0000", "t": T_US / 1e6, "u": "Wh", "v": 50100},
    ),
    "valid": (
        _HEAD + 'readings.v = { path = "v", valid = [0, 3] }\n',
        {"id": "roof-0000", "t": T_US / 1e6, "v": 3},
    ),
    "epoch": (
        'sensor = "id"\ntime = { path = "t", unit = "s", epoch = "2000-01-01T00:00:00", time_zone = "Europe/Berlin" }\n'
        'readings.v = "v"\n',
        {"id": "roof-0000", "t": 824643000.25, "v": 50.1},
    ),
    "interval": (
        'sensor = "id"\ntime = { path = "t", interval = "/" }\nreadings.v = "v"\n',
        {"id": "roof-0000", "t": "2026-02-17T10:30:00.250Z/2026-02-17T11:30:00.250Z", "v": 50.1},
    ),
    "types": (
        'types = { v = ["json", "text"] }\n' + _HEAD + 'readings.v = "v.x"\n',
        {"id": "roof-0000", "t": T_US / 1e6, "v": '{"x": 50.1}'},
    ),
}


@pytest.mark.parametrize("key", _OF_KEYS)
def test_keys_are_inverted(key):
    """Each key of the language that needs more than its path set."""
    text, expected = _OF_KEYS[key]
    content, _, made = document(text, batch=2 if "zip" in key else 1)
    assert content == expected
    assert len(made) == (2 if "zip" in key else 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'message = "form"\n' + _HEAD + 'readings."*" = "*"\nmetadata = { place = "where", "m_*" = "*" }\n',
            b"id=roof-0000&t=1771324200.25&temperature=21.53&humidity=50.1&pressure=94123&battery=3.7&where=2.1"
            b"&location=roof&model=TH-200&firmware=v2.1",
        ),
        (
            'message = "influx"\nsensor = "tags.host"\ntime = { path = "time", unit = "ns" }\n'
            'readings."*" = "fields.*"\nmetadata = { "*" = "tags.*", a = "tags.\\"a =,b\\"" }\n',
            b"simulated,host=roof-0000,a\\ \\=\\,b=TH-200,location=roof,model=TH-200,firmware=2.1 "
            b"temperature=21.53,humidity=50.1,pressure=94123i,battery=3.7 1771324200250000000",
        ),
        (
            'message = "json"\ncompression = "gzip"\n' + _HEAD + 'readings.v = "v"\n',
            gzip.compress(b'{"id": "roof-0000", "t": 1771324200.25, "v": 50.1}', mtime=0),
        ),
    ],
    ids=["form", "influx", "gzip"],
)
def test_payloads(text, expected):
    """Forms, line protocol and compressed payloads."""
    message, _ = inverted(Mapper(parse_mapping(text)))[0]
    assert message.data == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('sensor = "$message_id"\ntime = "t"\nreadings = { v = "v" }\n', "sensor: simulate can't set it: no publisher"),
        ('sensor = "s"\ntime = { path = "s", unit = "s" }\nreadings.v = "v"\n', "time: simulate can't set it: time is"),
        (
            'sensor = "s"\ntime = "t"\nreadings = { v = "v", w = "v.w" }\n',
            "readings.w: simulate can't set it: another path",
        ),
        ('sensor = "s"\ntime = "t"\nskip_if = { path = "v", set = true }\nreadings.v = "v"\n', "readings.v: simulate"),
        ('each = "e[]"\nsensor = "s"\ntime = "t"\nreadings = { v = "e[0].v" }\n', "each: simulate can't fill its list"),
    ],
)
def test_what_can_not_be_inverted(text, problem):
    """An error names the key."""
    with pytest.raises(MappingError) as raised:
        document(text)
    assert str(raised.value).startswith(problem)
