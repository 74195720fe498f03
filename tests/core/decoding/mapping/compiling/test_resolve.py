"""Where paths lead in a message type: selectors, maps, well-known types, stars, proto2, contents, levels."""

from datetime import UTC, datetime

import pytest
from google.protobuf import descriptor_pb2

from pipeline.core.decoding.mapping.compiling.mapper import Content, Mapper
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from tests.core.decoding.mapping.protos import descriptor_set

T = 1_771_324_200
UPLINK = 'message = "lorawan.Uplink"\nsensor = { constant = "s" }\ntime = "time"\n'
KINDS = 'message = "fleet.Kinds"\nsensor = { constant = "s" }\ntime = { path = "time", unit = "s" }\n'


@pytest.fixture
def kinds(mapped):
    """The readings and the metadata that entries make of fields of ``fleet.Kinds``."""

    def of(entries, **fields):
        made = mapped(KINDS + entries, {"time": T} | fields).events[0]
        return made.readings | made.metadata

    return of


@pytest.fixture
def heard(mapped):
    """What a path leads to in an uplink with these receptions."""

    def of(path, *receptions, table="readings"):
        fields = {"time": {"seconds": T}, "receptions": receptions}
        made = mapped(UPLINK + f"[readings]\n[{table}.r]\npath = '{path}'\n", fields).events[0]
        return getattr(made, table).get("r")

    return of


A, B, C = (
    {"gateway": "a", "rssi": -90, "snr": 1},
    {"gateway": "b", "rssi": -40, "snr": 2},
    {"gateway": "c", "rssi": -60},
)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("receptions[0].rssi", -90), ("receptions[2].rssi", -60), ("receptions[3].rssi", None),
        ("receptions[-1].rssi", -60), ("receptions[-3].rssi", -90), ("receptions[-4].rssi", None),
        ("receptions[max rssi].snr", 2), ("receptions[min rssi].snr", 1), ("receptions[gateway=c].rssi", -60),
        ("receptions[gateway=z].rssi", None), ("receptions[rssi=-40].snr", 2), ("receptions[snr=2].rssi", -40),
    ],
)  # fmt: skip
def test_selectors(heard, path, value):
    """A selector finds the element by its place, a value, or the greatest or smallest value."""
    assert heard(path, A, B, C) == value


def test_the_first_of_several_greatest_and_not_a_number_at_all(heard):
    """The first of equal elements is taken, and NaN is never the greatest."""
    nan = {"gateway": "n", "snr": float("nan"), "rssi": 3}
    assert heard("receptions[max snr].rssi", nan, A, {"snr": 1, "rssi": 7}) == -90
    assert heard("receptions[max snr].rssi", nan) is None


def test_the_latest(heard):
    """Times are compared to the nanosecond, and unset ones are left out."""
    times = [{"rssi": 1, "at": {"seconds": 5}}, {"rssi": 2, "at": {"seconds": 5, "nanos": 1}}, {"rssi": 3}]
    assert heard("receptions[max at].rssi", *times) == 2
    assert heard("receptions[min at].rssi", *times) == 1


def test_entries_of_a_map_within_an_element(heard):
    """A key of a map selects elements and values, dots and all."""
    with_notes = {"gateway": "x", "rssi": 1, "notes": {"a.b": "v"}}
    assert heard('receptions[notes."a.b"=v].rssi', A, with_notes) == 1
    assert heard('receptions[0].notes."a.b"', with_notes, table="metadata") == "v"


def test_maps(kinds):
    """Keys of every type find the entries of maps."""
    entries = """
[readings]
latitude = "positions.home.latitude"
none = "positions.work.latitude"
third = 'by_number."-3"'
yes = "by_flag.true"
"*" = "structs.x.*"
"[metadata]"
"""
    entries = entries.replace('"[metadata]"', '[metadata]\nlong = "by_long.18446744073709551615"')
    fields = {"positions": {"home": {"latitude": 0}}, "by_number": {-3: 1.5}, "by_flag": {True: 2}}
    fields |= {"by_long": {(1 << 64) - 1: "x"}, "structs": {"x": {"fields": {"a": {"number_value": 1}}}}}
    assert kinds(entries, **fields) == {"latitude": 0, "third": 1.5, "yes": 2, "a": 1, "long": "x"}
    assert kinds(entries) == {}


def test_reading_an_entry_does_not_create_it(mapper):
    """Looking up a missing entry leaves the message as it is."""
    compiled = mapper(KINDS + '[readings]\nr = "positions.home.latitude"\n')
    message = compiled.message_class(time=T)
    compiled.map(Message(b"", {}), Content([message], 0), LATEST_US)
    assert not message.positions


def test_stars(kinds):
    """Steps may follow a star; of a oneof, the fields of the member that is set count. Random types show the others."""
    fields = {"positions": {"h": {"latitude": 2}}, "path": [{"longitude": 9}]}
    assert kinds('[readings]\n"p*" = "path.*.longitude"\n', **fields) == {"p0": 9}
    assert kinds('[readings]\n"*" = "positions.*.latitude"\n', **fields) == {"h": 2}
    both = {"latitude": 0, "longitude": 0, "bearing": 1}
    assert kinds('[readings]\n"*" = "one.*"\n', one_position={"bearing": 1}) == both


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("r = 'receptions[max gateway].rssi'", "gateway is string, by which elements can't be compared"),
        ("r = 'receptions[max rsi].rssi'", "did you mean rssi?"),
        ("r = 'receptions[notes=a].rssi'", "by which elements can't be looked up"),
        ("r = 'receptions.rssi'", "name one of its elements"),
        ("r = 'receptions[].rssi'", "each does not go through"),
        ("r = 'counter[0]'", "not a repeated field"),
        ("r = 'device.tags[0]'", "not a repeated field"),
    ],
)
def test_selectors_that_do_not_fit(mapper, entry, problem):
    """A selector that does not fit its field is an error of the mapping."""
    with pytest.raises(MappingError) as error:
        mapper(f"{UPLINK}[readings]\n{entry}\n")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        *(
            (f"r = '{path}'", "is not a key of a map whose keys are")
            for path in ("by_number.x", "by_number.1_0", 'by_number."2147483648"', 'by_long."-1"', "by_flag.True")
        ),
        ('"*" = "inner.**"', "contains itself"),
        ('"*" = "text.*"', "a star stands for nothing in string"),
        ('"*" = "path.*"', "its star stands for nothing"),
        ('"*" = "positions.*.latitud"', "did you mean latitude?"),
        ('"*" = "nothing.*"', "no field 'nothing'"),
        ('t = "text.level"\n[types]\ntext = "mesh.Power"', "only bytes contain a message"),
        ('r = "raw.level"\n[types]\nraw = ["mesh.Power", "mesh.Data"]', "only an Any one of several types"),
        ('r = "raw.level"\n[types]\nraw = "mesh.Powr"', "did you mean mesh.Power?"),
    ],
)
def test_paths_that_lead_nowhere(mapper, entry, problem):
    """A key of another type than the map's, a star for nothing, or contents that can't be are errors of the mapping."""
    with pytest.raises(MappingError) as error:
        mapper(f"{KINDS}[readings]\n{entry}\n")
    assert problem in str(error.value)


def test_bytes_that_hold_json(mapped):
    """Bytes and texts that are declared as JSON are read as JSON, strictly."""
    text = KINDS + '[types]\nraw = "json"\ntext = "json"\n[readings]\n"*" = "raw.**"\nt = "text[1]"\n'
    assert mapped(text, {"time": T, "raw": b'{"a": {"b": 1}}', "text": "[1, 2]"}).events[0].readings == {
        "a.b": 1,
        "t": 2,
    }
    for raw in (
        b"{",
        b"\xff",
        b'{"a": N}',
        b'{"a": 1}{"a": 2}',
        b'{"a": 1, "a": 2}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
    ):
        with pytest.raises(BadData, match=r"raw (is|has)") as error:
            mapped(text, {"time": T, "raw": raw})
        assert error.value.reason is Reason.UNPARSEABLE
    assert mapped(text, {"time": T, "raw": b'{"a": "\\ud83d\\ude00", "b": 2, "c": "\\\\ud800"}'}).events[
        0
    ].readings == {"b": 2}


def _chain(length, width):
    """A type that is nested this deep, with as many fields for the next level."""
    file = descriptor_pb2.FileDescriptorProto(name="chain.proto", package="chain", syntax="proto3")
    for index in range(length):
        message = file.message_type.add(name=f"M{index}")
        message.field.add(name="v", number=1, type=1, label=1)
        if index + 1 < length:
            if width > 1:
                message.oneof_decl.add(name="o")
            for number in range(width):
                field = message.field.add(name=f"f{number}", number=number + 2, type=11, label=1)
                field.type_name = f".chain.M{index + 1}"
                if width > 1:
                    field.oneof_index = 0
    return Descriptors(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


@pytest.mark.parametrize(
    ("length", "width", "path", "problem"),
    [
        (25, 3, "**", "stands for more than 1,000 fields"),
        (200, 1, "**", "more than 100 levels"),
        (2000, 1, "v", "goes through too many other types"),
        (25, 3, ".".join(["o"] * 20) + ".v", "more than 1,000 members of oneofs"),
        (25, 3, ".".join(["o"] * 20) + ".*", "more than 1,000"),
    ],
)
@pytest.mark.slow
def test_types_that_are_too_wide_or_deep(length, width, path, problem):
    """Types beyond the bounds of a mapping are an error of the mapping."""
    text = 'message = "chain.M0"\nsensor = "@s"\ntime = "$publish_time"\n[readings]\n'
    entry = f'"*" = "{path}"' if "*" in path else f'v = "{path}"'
    with pytest.raises(MappingError) as error:
        Mapper(parse_mapping(text + entry), _chain(length, width))
    assert problem in str(error.value)


def test_texts_that_hold_json_in_json(mapped):
    """Texts in JSON that are declared as JSON are read, and refused if they are something else."""
    text = 'message = "json"\neach = "rows[]"\nsensor = { constant = "s" }\ntime = { path = ".t", unit = "s" }\n'
    text += '[types]\nrows = "json"\n"one" = "json"\n[readings]\n"*" = "rows[].v.*"\n'
    result = mapped(text, '{"rows": ["{\\"t\\": 1, \\"v\\": {\\"a\\": 2}}", null]}')
    assert [made.readings for made in result.events] == [{"a": 2}]
    for rows in ("[1]", "1", "{}", '["x"]'):
        with pytest.raises(BadData) as error:
            mapped(text, f'{{"rows": {rows}}}')
        assert error.value.reason is Reason.UNPARSEABLE


def test_elements_and_entries_that_hold_messages(mapped, types):
    """Selectors and stars see the contents of elements that are parsed as messages."""
    text = 'message = "fleet.Vehicle"\nsensor = "id"\ntime = { path = "timestamp", unit = "s" }\n'
    text += '[types]\ndetails = ["fleet.Position", "mesh.Power"]\n[readings]\nfirst = "details[0].latitude"\n'
    text += 'power = "details[1].level"\nother = "details[-1].latitude"\nfound = "details[latitude=3].longitude"\n'
    text += 'greatest = "details[max latitude].latitude"\n"all.*" = "details.*.latitude"\n'
    vehicle = types.message_class("fleet.Vehicle")(id="a", timestamp=T)
    for name, fields in (("fleet.Position", {"latitude": 3}), ("mesh.Power", {"level": 0}), ("mesh.Data", {})):
        vehicle.details.add().Pack(types.message_class(name)(**fields))
    made = mapped(text, vehicle).events[0]
    assert made.readings == {"first": 3, "power": 0, "found": 0, "greatest": 3, "all.0": 3}


def events(mapped):
    assert not mapped.problems
    return [made[:4] for made in mapped.events]


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
    assert events(mapped(OLD, {"id": "a", "time": T})) == [("a", T * 1_000_000, {}, {})]
    values = {"id": "a", "time": T, "level": 0, "mode": 0, "body": {"weight": 1.5, "parts": ["p", "q"]}}
    values |= {"point": [{}, {"x": 2}], "labels": {"k": "v"}}
    assert events(mapped(OLD, values)) == [
        ("a", T * 1_000_000, {"level": 0, "weight": 1.5, "x": 2}, {"mode": "OFF", "part": "q", "labels.k": "v"})
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
    assert events(mapped(text, {"id": "a", "time": T})) == [("a", T * 1_000_000, {"always": 0}, {})]
    assert events(mapped(text, {"id": "a", "time": T, "inner": {"value": 0}})) == [
        ("a", T * 1_000_000, {"always": 0, "value": 0}, {})
    ]


FEED = """
message = "fleet.Feed"
each = "vehicles[]"
sensor = "bus/{.id}"
time = [{ path = ".timestamp", unit = "s" }, { path = "timestamp", unit = "s" }]
[types]
"vehicles.detail" = ["fleet.Position", "fleet.Kinds"]
[readings]
detail_latitude = ".detail.latitude"
i32 = ".detail.i32"
[metadata]
status = { name_of = ".status" }
"""


def test_any_with_several_types(mapped, types):
    """An Any is read as each of the declared types; others are left out; bytes that are none refuse their element."""
    feed = types.message_class("fleet.Feed")(timestamp=T)
    for name, status in (("a", 2), ("b", 9), ("c", 0)):
        feed.vehicles.add(id=name, status=status)
    feed.vehicles[0].timestamp = T + 1
    feed.vehicles[0].detail.Pack(types.message_class("fleet.Position")(latitude=1.5))
    feed.vehicles[1].detail.Pack(types.message_class("fleet.Kinds")(i32=4))
    feed.vehicles[2].detail.Pack(types.message_class("mesh.Power")(level=4))
    at = T * 1_000_000
    expected = [
        ("bus/a", at + 1_000_000, {"detail_latitude": 1.5}, {"status": "STOPPED"}),
        ("bus/b", at, {"i32": 4}, {"status": "9"}),
    ]
    result = mapped(FEED, feed)
    assert (events(result), result.skipped) == (expected, 1)
    feed.vehicles[0].detail.value = b"\xff"
    result = mapped(FEED, feed)
    assert [made[:4] for made in result.events] == expected[1:]
    ((problem, detail),) = [(problem.reason, problem.detail) for problem in result.problems]
    assert (problem, detail[:12]) == (Reason.UNPARSEABLE, "vehicles[0]:")


def test_a_list_of_several_types_of_any(mapped, types):
    """Each element is read as its own type; one of another type is skipped, once."""
    text = 'message = "fleet.Vehicle"\neach = "details[]"\nsensor = "id"\ntime = { path = "timestamp", unit = "s" }\n'
    text += '[types]\ndetails = ["fleet.Position", "mesh.Power"]\n'
    text += '[readings]\nlatitude = ".latitude"\nlevel = ".level"\n'
    vehicle = types.message_class("fleet.Vehicle")(id="a", timestamp=T)
    for name, fields in (("fleet.Position", {"latitude": 2}), ("mesh.Power", {"level": 0}), ("mesh.Data", {})):
        vehicle.details.add().Pack(types.message_class(name)(**fields))
    result = mapped(text, vehicle)
    assert [made.readings for made in result.events] == [{"latitude": 2, "level": 0}]
    assert result.skipped == 1


LEVELS = """
message = "telemetry.Request"
each = "resources[].scopes[].metrics[].data.points[]"
sensor = { constant = "s" }
time = "$publish_time"
skip_if = { path = "resources[].scopes[].metrics[].name", glob = "debug.*" }
readings = { "*" = { name = "resources[].scopes[].metrics[].name", first = [".value", ".sum"] } }
metadata = { unit = "resources[].scopes[].metrics[].unit" }
"""


def test_elements_below_several_members_of_a_oneof(mapped):
    """The member that is set has the elements; what is skipped counts once, however many paths lead to it."""
    metrics = [{"name": "a", "unit": "1", "sum": {"points": [{"as_int": 4}]}}, {"name": "b", "histogram": {}}]
    metrics += [{"name": "debug.a", "gauge": {"points": [{}]}}, {"name": "debug.b"}]
    published = datetime.fromtimestamp(T, UTC)
    result = mapped(LEVELS, {"resources": [{"scopes": [{"metrics": metrics}]}]}, publish_time=published)
    assert (events(result), result.skipped) == ([("s", T * 1_000_000, {"a": 4}, {"unit": "1"})], 2)


CONTENTS = Descriptors(
    descriptor_set(
        """
        package acme;
        message Reading { double celsius = 1; bytes more = 2; }
        message Packet { bytes payload = 1; oneof kind { bytes left = 2; bytes right = 3; } }
        message Report { string id = 1; repeated Packet packets = 2; map<string, bytes> parts = 3; }
        """
    )
)


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        ('"packets.kind" = "acme.Reading"', None),
        ('"parts.first" = "json"', None),
        ('"packets.payload" = "acme.Reading"\n"packets.payload.more" = "acme.Reading"', None),
        ('"packets.payload" = "json"\n"packets.payload.anything" = "json"', None),
        ('"packets.paylod" = "json"', "types.packets.paylod: acme.Packet has no field 'paylod'; did you mean payload?"),
        ('"packets.payload" = "acme.Redding"', "types.packets.payload: there is no message type 'acme.Redding'"),
        ('"id.more" = "json"', "types.id.more: 'more' follows string, which has no fields"),
        ('"packets.payload" = "acme.Reading"\n"packets.payload.mor" = "json"', "acme.Reading has no field 'mor'"),
    ],
)
def test_contents_at_paths(types, problem):
    """A misspelled path or type would open nothing, silently: it is refused. What JSON and maps contain is open."""
    text = f'message = "acme.Report"\nsensor = "id"\ntime = "$publish_time"\nreadings = {{}}\n[types]\n{types}'
    if problem is None:
        Mapper(parse_mapping(text), CONTENTS)
        return
    with pytest.raises(MappingError) as raised:
        Mapper(parse_mapping(text), CONTENTS)
    assert problem in str(raised.value)
