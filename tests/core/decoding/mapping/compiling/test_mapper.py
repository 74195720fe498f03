"""Mappings of messages as fleets send them."""

import json
from datetime import UTC, datetime

import pytest

from pipeline.core.decoding.mapping.compiling.execution import MadeEvent
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000
JSON = 'message = "json"\nsensor = "id"\ntime = { path = "t", unit = "s" }\n'


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


def test_uplink_that_no_gateway_heard_and_without_object(mapped, uplink):
    """Fields that are not set are left out."""
    del uplink.receptions[:]
    uplink.ClearField("object")
    assert events(mapped(UPLINK, uplink)) == [
        ("70b3d57ed0000001", T_US, {"counter": 0}, {"site": "roof", "level": "tag"})
    ]


def test_two_leaves_with_one_dotted_name_are_refused(mapped, uplink):
    """Two leaves with the same dotted name are a NAME_COLLISION."""
    uplink.object.update({"air.co2": 1})
    with pytest.raises(BadData, match=r"air\.co2.* is mapped twice") as error:
        mapped(UPLINK, uplink)
    assert error.value.reason is Reason.NAME_COLLISION


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


def test_names_that_are_rewritten_to_the_same_name_are_refused(mapped):
    """Two names that become one are a NAME_COLLISION."""
    metrics = [{"name": "a b", "number": 1}, {"name": "a?b", "number": 1}]
    result = mapped(INDUSTRIAL, {"time": T * 1000, "metrics": metrics}, TOPIC)
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        (Reason.NAME_COLLISION, "'a b' and 'a?b' are both rewritten to a_b")
    ]


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


def test_an_integer_of_a_oneof_is_exact_or_refused(mapped):
    """An integer that no double can hold is an INEXACT_INTEGER."""
    points = {"points": [{"time_ns": T * 10**9, "as_int": (1 << 53) + 1}]}
    result = mapped(TELEMETRY, _request({"name": "a", "gauge": points}))
    assert [problem.reason for problem in result.problems] == [Reason.INEXACT_INTEGER]
    assert str((1 << 53) + 1) in result.problems[0].detail


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


def test_json_objects_with_the_same_language(mapped):
    """Paths, selectors and stars read JSON objects as they read messages."""
    text = (
        JSON
        + '[readings]\n"*" = "values.**"\nbest = "heard[max rssi].rssi"\n[metadata]\nsite = "tags[key=site].value"\n'
    )
    payload = (
        '{"id": "a", "t": 1771324200.5, "values": {"x": 1, "y": {"z": true}, "s": "text", "n": null},'
        ' "heard": [{"rssi": -5}, {"rssi": -2}, {}, null], "tags": [{"key": "site", "value": "roof"}]}'
    )
    assert events(mapped(text, payload)) == [("a", T_US + 500_000, {"x": 1, "y.z": 1, "best": -2}, {"site": "roof"})]


def test_json_with_an_array_at_the_root(mapped):
    """Each object of an array at the root is an event; others are skipped."""
    text = 'message = "json"\neach = "[]"\nsensor = ".id"\ntime = { path = ".t", unit = "s" }\n[readings]\nv = "[].v"\n'
    payload = f'[{{"id": "a", "t": {T}, "v": 1}}, {{"id": "b", "t": "{T}", "v": "2.5"}}, null, {{"id": "c"}}]'
    result = mapped(text, payload)
    assert events(result) == [("a", T_US, {"v": 1}, {}), ("b", T_US, {"v": 2.5}, {})]
    assert result.skipped == 2


def test_json_with_arrays_of_plain_values_and_an_object_as_entries(mapped):
    """An object is a list of entries with keys, and plain values are elements."""
    text = 'message = "json"\neach = "series[].value[]"\nsensor = "series[].key"\ntime = "$publish_time"\n'
    text += '[readings]\nv = "."\n'
    published = datetime.fromtimestamp(T, UTC)
    result = mapped(text, '{"series": {"a": [1, null], "b": [2], "c": null}}', publish_time=published)
    assert events(result) == [("a", T_US, {"v": 1}, {}), ("b", T_US, {"v": 2}, {})]


@pytest.mark.parametrize("payload", ["1", '"a"', "true", '{"id": 1}', '[{"id": []}]'])
def test_json_of_another_form_is_refused(mapped, payload):
    """JSON of another form than the mapping's has no event: it is refused, skipped or reported."""
    text = (
        'message = "json"\neach = "[]"\nsensor = ".id"\ntime = { path = ".t", unit = "s" }\n[readings]\nv = "[].v.w"\n'
    )
    try:
        result = mapped(text, payload)
    except BadData as problem:
        assert problem.reason is Reason.UNPARSEABLE  # noqa: PT017
    else:
        assert result.events == []
        assert result.skipped or result.problems


def test_several_paths_of_each_and_elements_of_both_in_one_event(mapped):
    """Elements of several paths that have one sensor and time are one event."""
    text = JSON + 'each = ["a[]", "b[].c[]"]\nskip_if = [{ path = "no", is = true }, { path = "b[].no", is = true }]\n'
    text += '[readings]\nx = "a[].x"\ny = "b[].c[].y"\nz = "b[].z"\n'
    payload = (
        '{"id": "s", "t": 1771324200, "a": [{"x": 1}], "b": [{"z": 3, "c": [{"y": 2}, {}]}, {"no": true, "c": [{}]}]}'
    )
    result = mapped(text, payload)
    assert events(result) == [("s", T_US, {"x": 1, "y": 2, "z": 3}, {})]
    assert result.skipped == 1
    assert mapped(text, '{"no": true, "a": [1], "b": [{}]}').skipped == 1


def test_elements_below_several_members_of_a_oneof_count_once(mapped):
    """An element is skipped once, however many paths lead to it."""
    text = TELEMETRY.replace('each = "', 'each = "')
    result = mapped(text, _request({"name": "debug.a", "gauge": {"points": [{}]}}, {"name": "debug.b"}))
    assert (result.events, result.skipped) == ([], 2)


def test_without_each_an_event_without_readings_is_left_to_the_rules_of_events(mapped):
    """The mapping makes an event without readings, which validation refuses."""
    result = mapped(JSON + '[readings]\nv = "v"\n', '{"id": "a", "t": 1771324200}')
    assert result == ([MadeEvent("a", T_US, {}, {}, "")], [], 0)


def test_a_required_value(mapped):
    """An element without a required value is a MISSING_FIELD; the others are events."""
    text = JSON + 'each = "e[]"\n[readings]\nv = { path = ".v", required = true }\n'
    result = mapped(text, '{"id": "a", "t": 1771324200, "e": [{"v": 1}, {}]}')
    assert [made.readings for made in result.events] == [{"v": 1}]
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        (Reason.MISSING_FIELD, "e[1]: readings.v is required and not set")
    ]


def test_event_id_and_what_pub_sub_adds(mapped):
    """Attributes, the ordering key, the message id and the publish time are values like others."""
    text = (
        'message = "json"\nsensor = "$ordering_key"\ntime = { path = "@sent", unit = "ms" }\nevent_id = "$message_id"\n'
    )
    text += '[readings]\nv = "v"\n[metadata]\npublished = "$publish_time"\n'
    published = datetime(2026, 2, 17, 11, tzinfo=UTC)
    result = mapped(text, '{"v": 1}', {"sent": f"{T}250"}, message_id="m1", publish_time=published, ordering_key="k")
    assert result.events == [("k", T_US + 250_000, {"v": 1}, {"published": "2026-02-17T11:00:00Z"}, "m1")]


def test_elements_with_other_ids_are_other_events(mapped):
    """Elements of one time are one event only if their event ids are the same."""
    text = JSON + 'each = "e[]"\nevent_id = ".i"\n[readings]\n"*" = ".v.*"\n'
    elements = '[{"i": "1", "v": {"a": 1}}, {"i": "2", "v": {"a": 2}}, {"i": "1", "v": {"b": 3}}]'
    result = mapped(text, f'{{"id": "s", "t": 1771324200, "e": {elements}}}')
    assert result.events == [("s", T_US, {"a": 1, "b": 3}, {}, "1"), ("s", T_US, {"a": 2}, {}, "2")]
    assert not result.problems


def test_a_star_leaves_out_what_other_entries_use_but_not_what_is_only_asked_for_presence(mapped):
    """A star leaves out values that other entries take, and keeps those whose presence a condition asks for."""
    text = (
        JSON
        + 'skip_unless = { path = "o.sub", set = true }\n[readings]\n"*" = "o.**"\nb = "o.a"\n[metadata]\nc = "o.c"\n'
    )
    payload = '{"id": "s", "t": 1771324200, "o": {"a": 1, "c": 2, "sub": {"d": 3}}}'
    assert events(mapped(text, payload)) == [("s", T_US, {"b": 1, "sub.d": 3}, {"c": "2"})]


def test_what_a_star_leaves_out_is_not_converted(mapped):
    """An excepted integer that no double can hold is no problem."""
    text = JSON + '[readings]\n"*" = { path = "o.*", except = "big*" }\n'
    payload = f'{{"id": "s", "t": 1771324200, "o": {{"a": 1, "big_one": {(1 << 53) + 1}}}}}'
    assert events(mapped(text, payload)) == [("s", T_US, {"a": 1}, {})]


def test_a_star_whose_condition_is_of_a_deeper_element(mapped):
    """A condition of an element decides about a star above the elements."""
    text = JSON + 'each = "e[]"\n[readings]\n"*" = { path = "o.*", when = { path = ".all", is = true } }\nv = ".v"\n'
    text += '[metadata]\nn = ".n"\n'
    payload = '{"id": "s", "t": 1771324200, "o": {"a": 1}, "e": [{"n": "x", "v": 1}, {"n": "x", "all": true}]}'
    assert events(mapped(text, payload)) == [("s", T_US, {"v": 1, "a": 1}, {"n": "x"})]


def test_each_name_of_a_star_takes_the_first_source_that_has_it_across_levels(mapped):
    """Sources of a star are tried for each name, whatever their level."""
    text = JSON + 'each = "e[]"\n[readings]\n"*" = [".o.*", "o.*"]\n'
    payload = '{"id": "s", "t": 1771324200, "o": {"a": 1, "b": 2}, "e": [{"o": {"a": 3}}]}'
    assert events(mapped(text, payload)) == [("s", T_US, {"a": 3, "b": 2}, {})]


@pytest.mark.parametrize("choice", ["refuse", "round", "metadata"])
def test_inexact_integers(mapped, choice):
    """Integers that no double can hold are refused, rounded, or kept as metadata, as the mapping asks."""
    big = (1 << 53) + 1
    text = f'inexact_integers = "{choice}"\n' + JSON
    text += '[readings]\na = "a"\n"*" = "o.*"\n"l_*" = { path = "l", name = "n" }\n'
    payload = f'{{"id": "s", "t": 1771324200, "a": {big}, "o": {{"b": {big}, "c": 1}}, "l": {big}, "n": "d"}}'
    if choice == "refuse":
        with pytest.raises(BadData) as error:
            mapped(text, payload)
        assert error.value.reason is Reason.INEXACT_INTEGER
        return
    rounded = dict.fromkeys(("a", "b", "l_d"), float(1 << 53))
    exact = dict.fromkeys(("a", "b", "l_d"), str(big))
    expected = ({"c": 1} | rounded, {}) if choice == "round" else ({"c": 1}, exact)
    assert events(mapped(text, payload)) == [("s", T_US, *expected)]


def test_integers_beyond_the_range_of_a_double_are_infinite_also_if_rounded(mapped):
    """An integer beyond the doubles is infinite, which validation refuses."""
    for digits in (350, 4000):
        payload = f'{{"id": "s", "t": 1771324200, "v": {"9" * digits}}}'
        made = events(mapped('inexact_integers = "round"\n' + JSON + '[readings]\nv = "v"\n', payload))
        assert made[0][2] == {"v": float("inf")}


def test_more_elements_than_a_message_may_have(mapped):
    """More than 100,000 elements are TOO_MANY_ELEMENTS."""
    text = JSON + 'each = "e[].f[]"\n[readings]\nv = "."\n'
    document = {"id": "s", "t": T, "e": [{"f": [0] * 1000}] * 100}
    with pytest.raises(BadData, match="more than 100,000 elements") as error:
        mapped(text, json.dumps(document))
    assert error.value.reason is Reason.TOO_MANY_ELEMENTS


def test_more_values_than_a_message_may_have(mapped):
    """Each element has those of the message, so a message of kilobytes could become events of gigabytes."""
    text = JSON + 'each = "e[]"\n[readings]\n"*" = "o.*"\n[metadata]\nx = "."\n'
    text = text.replace('time = { path = "t", unit = "s" }', 'time = { path = ".", unit = "s" }')
    document = {"id": "s", "o": {f"n{index}": 1 for index in range(1000)}, "e": list(range(1, 201))}
    with pytest.raises(BadData, match="more values than 100,000 and one for each byte") as error:
        mapped(text, json.dumps(document))
    assert error.value.reason is Reason.TOO_MANY_ELEMENTS


def test_more_readings_than_an_event_of_several_elements_may_have(mapped):
    """Elements of one event may not add up to more readings than an event may have."""
    text = JSON + 'each = "e[]"\n[readings]\n"n*" = { path = ".", name = "." }\n'
    result = mapped(text, json.dumps({"id": "s", "t": T, "e": list(range(50_000))}))
    assert not result.events
    assert [problem.reason for problem in result.problems] == [Reason.TOO_MANY_READINGS]


@pytest.mark.parametrize(
    ("table", "reason"), [("readings", Reason.TOO_MANY_READINGS), ("metadata", Reason.TOO_MUCH_METADATA)]
)
def test_a_star_that_stands_for_more_than_an_event_may_have(mapped, table, reason):
    """A star for too many names is refused with the reason of its table."""
    text = JSON + f'[readings]\n[{table}.x]\npath = "x"\n[{table}."*"]\npath = "o.*"\n'
    value = 1 if table == "readings" else "1"
    document = {"id": "s", "t": T, "o": {f"n{index}": value for index in range(1100)}}
    with pytest.raises(BadData) as error:
        mapped(text, json.dumps(document))
    assert error.value.reason is reason


def test_a_path_that_the_type_does_not_have(mapper):
    """Each path that does not fit the type is named, with what is wrong about it."""
    text = (
        'message = "fleet.Vehicle"\nsensor = "id"\ntime = { path = "timestamp", unit = "s" }\n[readings]\nx = "PATH"\n'
    )
    for path, problem in (
        ("position.latitud", "fleet.Position has no field 'latitud'; did you mean latitude?"),
        ("details.value", "name one of its elements, like [0]"),
        ("details[].value", "[] after a field that each does not go through"),
        ("position[0]", "not a repeated field"),
        ("id.x", "'x' follows string, which has no fields"),
        ("position", "a reading is a number, not fleet.Position"),
    ):
        with pytest.raises(MappingError) as error:
            mapper(text.replace("PATH", path))
        assert error.value.key == "readings.x"
        assert problem in str(error.value)


def test_a_path_that_an_older_revision_lacks_counts_as_not_set(mapper, types):
    """A revision without a field is mapped as if the field were not set; otherwise the path is an error."""
    text = 'message = "fleet.Vehicle"\nsensor = "id"\ntime = { path = "timestamp", unit = "s" }\n'
    text = 'match = { path = "later", is = 1 }\n' + text + '[readings]\na = "position.later"\nb = "position.latitude"\n'
    with pytest.raises(MappingError, match="later"):
        mapper(text)
    older = mapper(text, strict=False)
    vehicle = older.message_class(id="a", timestamp=T, position={"latitude": 1})
    assert older.map(Message(b"", {}), vehicle).events[0].readings == {"b": 1}
    assert not older.matches([None, vehicle])


def test_json_that_is_an_array_of_messages(mapped):
    """Each element of an array at the root is an event."""
    text = (
        'message = "json"\neach = "[]"\nsensor = ".id"\ntime = { path = ".t", unit = "s" }\nreadings = { v = ".v" }\n'
    )
    result = mapped(text, '[{"id": "a", "t": 1771324200, "v": 1}, {"id": "b", "t": 1771324200, "v": 2}]')
    assert [(made.sensor_id, made.readings) for made in result.events] == [("a", {"v": 1}), ("b", {"v": 2})]


def test_a_oneof_with_members_that_are_no_numbers_is_no_reading(mapper):
    """The message says what to do: such a path leads to several fields."""
    text = 'message = "mesh.Packet"\nsensor = "from"\ntime = "$publish_time"\nreadings = { v = "ONEOF" }\n'
    with pytest.raises(MappingError, match="is one of several fields; name those to read"):
        mapper(text.replace("ONEOF", "content"))


def test_elements_of_metadata_alone(mapped):
    """An element's own metadata makes an event where metadata alone is kept; that of the message does not."""
    text = 'inexact_integers = "metadata"\neach = "e[]"\n' + JSON.replace('"t"', '".t"')
    text += '[readings]\nv = ".v"\n[metadata]\nsite = "site"\nstatus = ".s"\n'
    elements = [{"t": T, "v": 1}, {"t": T + 1, "s": "on"}, {"t": T + 2}, {"t": T + 3, "v": (1 << 53) + 1}, {}]
    payload = json.dumps({"id": "s", "site": "north", "e": [*elements, {"t": T, "s": "on"}, {"s": "off"}]})
    found = mapped(text, payload, metadata_alone=True)
    site = {"site": "north"}
    assert [made[1:4] for made in found.events] == [
        (T_US, {"v": 1}, site | {"status": "on"}),
        (T_US + 1_000_000, {}, site | {"status": "on"}),
        (T_US + 3_000_000, {}, site | {"v": str((1 << 53) + 1)}),
    ]
    assert found.skipped == 2
    assert [(problem.reason, problem.detail[:4]) for problem in found.problems] == [(Reason.MISSING_EVENT_TIME, "e[6]")]
    assert mapped(text, payload).skipped == 4
