"""Mappings of messages as fleets send them."""

from datetime import UTC, datetime

import pytest

from pipeline.core.events.reasons import BadData, Reason

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000


def events(mapped):
    assert not mapped.problems
    return [made[:4] for made in mapped.events]


UPLINK = """
message = "lorawan.Uplink"
sensor = "device.eui"
time = "time"
[readings]
"*" = "object.**"
rssi = "receptions[max rssi].rssi"
snr = "receptions[max rssi].snr"
counter = "counter"
[metadata]
gateway = "receptions[max rssi].gateway"
"*" = ["device.tags.*", "object.**"]
"""


@pytest.fixture
def uplink(mapper):
    message = mapper(UPLINK).message_class(counter=0)
    message.time.seconds = T
    message.device.eui = "70b3d57ed0000001"
    message.device.tags.update(site="roof", level="tag")
    message.object.update(
        {"temperature": 21.5, "door": True, "air": {"co2": 412, "levels": [1, 2]}, "status": "ok", "level": "object"}
    )
    for gateway, rssi in (("a", -90), ("b", -40), ("c", -40)):
        message.receptions.add(gateway=gateway, rssi=rssi, snr=7.5)
    return message


def test_uplink_with_leaves_of_a_struct_the_best_gateway_and_tags(mapped, uplink):
    """An uplink becomes readings of a struct's leaves and the best gateway, and metadata of its tags."""
    readings = {"temperature": 21.5, "door": 1, "air.co2": 412, "air.levels.0": 1, "air.levels.1": 2}
    readings |= {"rssi": -40, "snr": 7.5, "counter": 0}
    metadata = {"gateway": "b", "site": "roof", "level": "tag", "status": "ok"}
    assert events(mapped(UPLINK, uplink)) == [("70b3d57ed0000001", T_US, readings, metadata)]


MESH = """
message = "mesh.Envelope"
skip_unless = { path = "packet.open.port", is = "TELEMETRY" }
sensor = "!{packet.from:08x}"
time = [{ path = "packet.open.body.time", unit = "s" }, { path = "packet.heard_at", unit = "s" }, "$publish_time"]
[types]
"packet.open.body" = "mesh.Telemetry"
[readings]
"*" = "packet.open.body.variant.*"
snr = "packet.heard_snr"
[metadata]
variant = { name_of = "packet.open.body.variant" }
channel = "channel"
"""


def _mesh(mapper, telemetry, *, port="TELEMETRY", heard_at=T, channel="main"):
    envelope = mapper(MESH).message_class(channel=channel)
    setattr(envelope.packet, "from", 0xBEEF)
    envelope.packet.heard_at = heard_at
    envelope.packet.open.port = {"TEXT": 1, "TELEMETRY": 67}[port]
    envelope.packet.open.body = telemetry
    return envelope


@pytest.fixture(scope="module")
def telemetry(types):
    return types.message_class("mesh.Telemetry")


def test_bytes_that_hold_a_message_whose_oneof_is_set_in_part(mapped, mapper, telemetry):
    """Bytes are parsed as the declared message, and its set variant is mapped."""
    body = telemetry(time=T - 5, weather={"temperature": 0, "gas": 12})
    assert events(mapped(MESH, _mesh(mapper, body.SerializeToString()))) == [
        (
            "!0000beef",
            T_US - 5_000_000,
            {"temperature": 0, "gas": 12, "snr": 0},
            {"variant": "weather", "channel": "main"},
        )
    ]
    body = telemetry(power={"level": 80})
    assert events(mapped(MESH, _mesh(mapper, body.SerializeToString(), channel=""))) == [
        ("!0000beef", T_US, {"level": 80, "snr": 0}, {"variant": "power"})
    ]


def test_the_first_time_that_is_set_and_last_the_publish_time(mapped, mapper, telemetry):
    """The first time that is set counts; the publish time is used last."""
    message = _mesh(mapper, telemetry(power={"level": 80}).SerializeToString(), heard_at=0)
    published = datetime(2026, 2, 17, 11, tzinfo=UTC)
    assert events(mapped(MESH, message, publish_time=published))[0][1] == T_US + 1800_000_000
    with pytest.raises(BadData, match="the mapping finds no time"):
        mapped(MESH, message)


def test_a_condition_skips_a_message_before_its_bytes_are_parsed(mapped, mapper):
    """A message that a condition skips may contain bytes of any kind."""
    result = mapped(MESH, _mesh(mapper, b"\xff hello", port="TEXT"))
    assert (result.events, result.problems, result.skipped) == ([], [], 1)
    message = mapper(MESH).message_class()
    message.packet.sealed = b"x"
    assert mapped(MESH, message).skipped == 1


def test_bytes_that_hold_no_such_message(mapped, mapper):
    """Bytes that are not the declared message are UNPARSEABLE."""
    with pytest.raises(BadData, match=r"packet\.open\.body is not a mesh\.Telemetry") as error:
        mapped(MESH, _mesh(mapper, b"\xff"))
    assert error.value.reason is Reason.UNPARSEABLE


INDUSTRIAL = """
message = "industrial.Report"
each = "metrics[]"
skip_if = { path = ".absent", is = true }
sensor = "{@topic.group}/{@topic.node}/{@topic.device}"
time = [{ path = ".time", unit = "ms" }, { path = "time", unit = "ms" }]
rewrite_names = true
[attributes]
topic = "v1/{group}/DATA/{node}/{device=**}"
[readings]
"*" = { name = [".name", "alias.{.alias}"], first = [
  { path = ".small", signed = 16, when = { path = ".datatype", is = [1, 2] } },
  { path = ".large", signed = 64, when = { path = ".datatype", is = 4 } },
  ".small", ".large", ".single", ".number", ".flag" ] }
[metadata]
group = "@topic.group"
"""
TOPIC = {"topic": "v1/plant/DATA/line/press/1"}


def test_metrics_with_names_aliases_types_and_times_of_their_own(mapped):
    """Each metric is named, typed and timed by its own fields."""
    metrics = [
        {"name": "Oil/Temp °C", "datatype": 2, "small": 0xFFFF, "time": T * 1000 + 1},
        {"alias": 7, "datatype": 4, "large": (1 << 64) - 5},
        {"name": "1st", "datatype": 3, "small": 0xFFFFFFFF},
        {"name": "on", "flag": False},
        {"name": "gone", "absent": True, "number": 1.0},
        {"name": "label", "text": "x", "time": T * 1000 + 2},
        {"name": "p", "single": 0.5, "time": T * 1000 + 1},
    ]
    result = mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics}, TOPIC)
    group = {"group": "plant"}
    assert events(result) == [
        ("plant/line/press/1", T_US + 1000, {"Oil.Temp__C": -1, "p": 0.5}, group),
        ("plant/line/press/1", T_US, {"alias.7": -5, "_1st": 0xFFFFFFFF, "on": 0}, group),
    ]
    assert result.skipped == 2  # what is absent, and what has no reading


def test_two_values_of_one_metric_and_time_are_refused_and_the_rest_is_kept(mapped):
    """Two values of one metric and time are refused, unless they are equal; other events are kept."""
    metrics = [{"name": "a", "number": 1}, {"name": "a", "number": 2}, {"name": "b", "number": 3, "time": T * 1000 + 1}]
    result = mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics}, TOPIC)
    assert [made.readings for made in result.events] == [{"b": 3}]
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        (Reason.NAME_COLLISION, "metrics[1]: reading a is '1.0' and '2.0' for one sensor and time")
    ]
    metrics[1]["number"] = 1
    assert len(mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics}, TOPIC).events) == 2


def test_a_value_without_a_name_and_a_topic_of_another_form_are_refused(mapped):
    """A value without a name, or a topic without the sensor, is refused with its reason."""
    metrics = [{"name": "a", "number": 1}, {"number": 1}]
    result = mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics}, TOPIC)
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        (Reason.MISSING_FIELD, "metrics[1]: readings.*.name is not set, so a value has no name")
    ]
    for attributes in ({}, {"topic": "v1/plant/BIRTH/line/press"}):
        result = mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics[:1]}, attributes)
        assert [problem.reason for problem in result.problems] == [Reason.MISSING_SENSOR_ID]


def test_text_of_proto2_that_is_not_utf_8_is_refused(mapped, mapper):
    """Text that is not UTF-8 makes the event UNPARSEABLE."""
    message = mapper(INDUSTRIAL).message_class.FromString(b"\x12\x0c\x0a\x01\xff\x69\x00\x00\x00\x00\x00\x00\x00\x00")
    message.time = T * 1000
    result = mapped(INDUSTRIAL, message, TOPIC)
    assert [problem.reason for problem in result.problems] == [Reason.UNPARSEABLE]


OLD = """
message = "industrial.Old"
sensor = "id"
time = { path = "time", unit = "s" }
[readings]
level = "level"
"*" = "body.*"
x = "point[1].x"
first_x = "point[0].x"
[metadata]
mode = { name_of = "mode" }
part = "body.parts[-1]"
"labels.*" = "labels.*"
"""


def test_presence_defaults_and_groups_of_proto2(mapped):
    """Set fields are mapped, with declared defaults and groups; unset ones are left out."""
    assert events(mapped(OLD, {"id": "a", "time": T})) == [("a", T_US, {}, {})]
    values = {"id": "a", "time": T, "level": 0, "mode": 0, "body": {"weight": 1.5, "parts": ["p", "q"]}}
    values |= {"point": [{}, {"x": 2}], "labels": {"k": "v"}}
    assert events(mapped(OLD, values)) == [
        ("a", T_US, {"level": 0, "weight": 1.5, "x": 2}, {"mode": "OFF", "part": "q", "labels.k": "v"})
    ]


def test_keys_and_values_of_proto2_maps_that_are_not_utf_8_are_refused(mapped, mapper):
    """Map entries that are not UTF-8 are refused, whether a path or a star reads them."""
    text = OLD.replace('"labels.*" = "labels.*"', '"*" = "labels.*"')
    for entry in (b"\x0a\x01\xff\x12\x01v", b"\x0a\x01k\x12\x01\xff"):
        message = mapper(OLD).message_class.FromString(b"\x0a\x01a\x32" + bytes([len(entry)]) + entry)
        message.time = T
        for mapping in (OLD, text):
            with pytest.raises(BadData, match="not UTF-8"):
                mapped(mapping, message)


def test_editions(mapped):
    """Presence follows each field's features."""
    text = (
        'message = "edition.Report"\nsensor = "id"\ntime = { path = "time", unit = "s" }\n'
        '[readings]\nalways = "always"\nvalue = "inner.value"\n'
    )
    assert events(mapped(text, {"id": "a", "time": T})) == [("a", T_US, {"always": 0}, {})]
    assert events(mapped(text, {"id": "a", "time": T, "inner": {"value": 0}})) == [
        ("a", T_US, {"always": 0, "value": 0}, {})
    ]


TELEMETRY = """
message = "telemetry.Request"
each = "resources[].scopes[].metrics[].data.points[]"
sensor = "resources[].resource.attributes[key=host].value.text"
time = { path = ".time_ns", unit = "ns" }
skip_unless = { path = ".attributes[key=state].value.text", is_not = "idle" }
skip_if = { path = "resources[].scopes[].metrics[].name", glob = "debug.*" }
[readings]
"*" = { name = "resources[].scopes[].metrics[].name", first = [".value", ".sum"] }
[metadata]
scope = "resources[].scopes[].scope.name"
unit = "resources[].scopes[].metrics[].unit"
cpu = ".attributes[key=cpu].value.value"
"""


def _request(*metrics):
    resource = {"attributes": [{"key": "host", "value": {"text": "h1"}}]}
    return {"resources": [{"resource": resource, "scopes": [{"scope": {"name": "s"}, "metrics": list(metrics)}]}]}


def test_four_levels_with_a_oneof_on_the_way_and_attributes_by_key(mapped):
    """Elements four levels deep become events, with attributes that keys select."""
    cpu = [{"key": "cpu", "value": {"number": 3}}]
    gauge = {
        "points": [{"time_ns": T * 10**9 + 1500, "as_double": 0.25, "attributes": cpu}, {"time_ns": 0, "as_int": 1}]
    }
    total = {"points": [{"time_ns": T * 10**9 + 1999, "as_int": -4, "attributes": cpu}]}
    idle = {
        "points": [{"time_ns": T * 10**9, "as_int": 1, "attributes": [{"key": "state", "value": {"text": "idle"}}]}]
    }
    histogram = {"points": [{"time_ns": T * 10**9, "count": 3, "sum": 0}, {"time_ns": T * 10**9}]}
    result = mapped(
        TELEMETRY,
        _request(
            {"name": "load", "unit": "1", "gauge": gauge},
            {"name": "sent", "unit": "1", "sum": total},
            {"name": "busy", "sum": idle},
            {"name": "debug.x", "gauge": gauge},
            {"name": "took", "histogram": histogram},
            {"name": "empty"},
        ),
    )
    assert [made[:4] for made in result.events] == [
        ("h1", T_US + 1, {"load": 0.25, "sent": -4}, {"scope": "s", "unit": "1", "cpu": "3"}),
        ("h1", T_US, {"took": 0}, {"scope": "s"}),
    ]
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        (
            Reason.MISSING_EVENT_TIME,
            "resources[0].scopes[0].metrics[0].data.points[1]: the mapping finds no time: none of its paths is set",
        )
    ]
    # One metric that conditions leave out, one idle point; the second point of the histogram joins the first's event.
    assert result.skipped == 2


def test_elements_below_several_members_of_a_oneof_count_once(mapped):
    """An element is skipped once, however many paths lead to it."""
    result = mapped(TELEMETRY, _request({"name": "debug.a", "gauge": {"points": [{}]}}, {"name": "debug.b"}))
    assert (result.events, result.skipped) == ([], 2)


FLEET = """
message = "fleet.Feed"
each = "vehicles[]"
sensor = "bus/{.id}"
time = [{ path = ".timestamp", unit = "s" }, { path = "timestamp", unit = "s" }]
[types]
"vehicles.detail" = ["fleet.Position", "fleet.Kinds"]
[readings]
"*" = ".position.*"
status = ".status"
detail_latitude = ".detail.latitude"
i32 = ".detail.i32"
[metadata]
status = { name_of = ".status" }
"""


def test_positions_of_vehicles_and_any_with_several_types(mapped, types):
    """An Any is read as each of the declared types; others are left out."""
    feed = types.message_class("fleet.Feed")(timestamp=T)
    for name in "abcd":
        feed.vehicles.add(id=name, position={"latitude": 52.5}, status=2)
    feed.vehicles[0].timestamp = T + 1
    feed.vehicles[0].detail.Pack(types.message_class("fleet.Position")(latitude=1.5))
    feed.vehicles[1].detail.Pack(types.message_class("fleet.Kinds")(i32=4))
    feed.vehicles[2].detail.Pack(types.message_class("mesh.Power")(level=4))
    feed.vehicles[3].status = 9
    both = {"latitude": 52.5, "longitude": 0, "status": 2}
    assert events(mapped(FLEET, feed)) == [
        ("bus/a", T_US + 1_000_000, both | {"detail_latitude": 1.5}, {"status": "STOPPED"}),
        ("bus/b", T_US, both | {"i32": 4}, {"status": "STOPPED"}),
        ("bus/c", T_US, both, {"status": "STOPPED"}),
        ("bus/d", T_US, both | {"status": 9}, {"status": "9"}),
    ]
    feed.vehicles[0].detail.value = b"\xff"
    result = mapped(FLEET, feed)
    assert [(problem.reason, problem.detail[:12]) for problem in result.problems] == [
        (Reason.UNPARSEABLE, "vehicles[0]:")
    ]
    assert len(result.events) == 3
