"""What a mapping reads, reads twice, gives one name, and leaves out."""

import pytest

from pipeline.core.decoding.mapping.authoring.check import MappingReport, check
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from tests.core.decoding.mapping.protos import descriptor_set

TYPES = Descriptors(
    descriptor_set(
        """
package acme;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Mode { OFF = 0; ON = 1; }
message Place { string site = 1; double height = 2; }
message Probe {
  string id = 1;
  google.protobuf.Timestamp at = 2;
  google.protobuf.DoubleValue celsius = 3;
  uint32 port = 4;
}
message Climate { double celsius = 1; double humidity = 2; string comment = 3; }
message Power { double volts = 1; }
message Node { double weight = 1; Node next = 2; }
message Report {
  string serial = 1;
  int64 at_ms = 2;
  Place place = 3;
  repeated Probe probes = 4;
  map<string, double> values = 5;
  map<string, string> tags = 6;
  google.protobuf.Struct extra = 7;
  Mode mode = 8;
  bytes payload = 9;
  google.protobuf.Any detail = 10;
  oneof variant { Climate climate = 11; Power power = 12; }
  Node node = 13;
  repeated double samples = 14;
  map<string, Probe> channels = 15;
  repeated bytes blobs = 16;
}
"""
    )
)
HEAD = 'message = "acme.Report"\nsensor = "serial"\ntime = {path = "at_ms", unit = "ms"}\n'
# Of acme.Report, without what HEAD reads.
ALL = [
    "place.site", "place.height", "probes[].id", "probes[].at", "probes[].celsius", "probes[].port", "values.*",
    "tags.*", "extra", "mode", "payload", "detail", "climate.celsius", "climate.humidity", "climate.comment",
    "power.volts", "node.weight", "node.next", "samples[]", "channels.*.id", "channels.*.at", "channels.*.celsius",
    "channels.*.port", "blobs[]",
]  # fmt: skip


def report_of(text: str) -> MappingReport:
    return check(parse_mapping(HEAD + text), TYPES)


def mapped_by(text: str) -> set[str]:
    """Returns the places that a mapping takes, wholly or in part."""
    return {place for place in ALL if place not in {left.path for left in report_of(text).unmapped}}


def test_every_line():
    """Each value has its key, its path and its type, in the order of the mapping; a star has a line for each field."""
    report = report_of(
        """
skip_if = {path = "mode", is = "OFF"}
event_id = {path = "{serial}-{at_ms:x}"}
[readings]
"*" = "variant.*"
"c.*" = "channels.*.celsius"
port = {first = ["probes[0].port", "probes[-1].port"], when = {path = "probes[0].at", set = true}}
[metadata]
which = {name_of = "variant"}
line = "@line"
id = "$message_id"
file = "$file"
kind = {constant = "meter"}
"x.*" = "extra.**"
"""
    )
    assert report.problems == []
    assert [tuple(line) for line in report.lines] == [
        ("sensor", "serial", "string"),
        ("time", "at_ms", "int64"),
        ("event_id", "serial", "string"),
        ("event_id", "at_ms", "int64"),
        ("readings.celsius", "climate.celsius", "double"),
        ("readings.humidity", "climate.humidity", "double"),
        ("readings.volts", "power.volts", "double"),
        ("readings.c.*", "channels.*.celsius", "double"),
        ("readings.port", "probes[0].port", "uint32"),
        ("readings.port.when", "probes[0].at", "timestamp"),
        ("readings.port", "probes[-1].port", "uint32"),
        ("metadata.which", "variant", "the field that is set"),
        ("metadata.line", "@line", "attribute"),
        ("metadata.id", "$message_id", "of the message"),
        ("metadata.file", "$file", "of the file"),
        ("metadata.kind", "'meter'", "constant"),
        ("metadata.x.*", "extra.**", "text"),
        ("skip_if", "mode", "acme.Mode"),
    ]


def test_elements_of_each():
    """Paths of elements stay as they are written; the elements' own fields are taken whole."""
    report = report_of('each = "probes[]"\n[readings]\n"*" = ".*"\n[metadata]\nid = ".id"\nsite = "place.site"')
    assert report.each == ("probes[]",)
    assert [tuple(line) for line in report.lines[2:]] == [
        ("readings.celsius", ".celsius", "double"),
        ("readings.port", ".port", "uint32"),
        ("metadata.id", ".id", "string"),
        ("metadata.site", "place.site", "string"),
    ]
    assert report.partly == []
    assert {"probes[].at", "place.height"} <= {left.path for left in report.unmapped}


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("readings = {}", set()),
        ('readings.a = "place.height"', {"place.height"}),
        ('[readings]\n"*" = "values.*"', {"values.*"}),
        ('[readings]\n"*" = "place.**"', {"place.height"}),
        ('[metadata]\n"*" = "place.**"\n[readings]', {"place.site"}),
        ('[readings]\n"*" = {path = "place.*", except = ["h*"]}', set()),
        ('[readings]\n"s.*" = "samples.*"', {"samples[]"}),
        ('[readings]\n"*" = "variant.*"', {"climate.celsius", "climate.humidity", "power.volts"}),
        ('[readings]\na = "node.next.next.weight"', {"node.next"}),
        ('[readings]\n"*" = "channels.*.celsius"', {"channels.*.celsius"}),
        ('[readings]\n"p.*" = "probes.*.celsius"', {"probes[].celsius"}),
        ('[readings]\nmode = "mode"\n[metadata]\nmode = {name_of = "mode"}', {"mode"}),
    ],
)
def test_what_is_left_out(text: str, taken: set[str]):
    """What no entry takes is reported: every leaf of the type is either taken or reported."""
    assert mapped_by(text) == taken


def test_contents_of_bytes_and_any():
    """What bytes and an Any contain by the mapping is part of the message."""
    types = '[types]\npayload = "acme.Climate"\ndetail = ["acme.Power", "acme.Place"]\nblobs = "acme.Power"\n'
    left = {each.path for each in report_of(f'{types}[readings]\na = "payload.celsius"\nb = "detail.volts"').unmapped}
    assert {"payload.humidity", "payload.comment", "detail.site", "detail.height", "blobs[].volts"} <= left
    assert left.isdisjoint({"payload", "detail", "payload.celsius", "detail.volts"})


@pytest.mark.parametrize(
    ("text", "path", "note"),
    [
        ('[readings]\na = "probes[max celsius].port"', "probes[].port", "only probes[max celsius].port"),
        ('[readings]\na = "values.x"\nb = "values.y"', "values.*", "only values.x, values.y"),
        ('[readings]\n"*" = {path = "values.*", except = ["a*"]}', "values.*", "only values.* except a*"),
        ('[readings]\n"*" = "extra.**"\na = "extra.b.c"', "extra", "only numbers and booleans of extra.**, extra.b.c"),
        ('[readings]\n"*" = "extra.*"\n[metadata]\n"*" = "extra.**"', "extra",
         "only numbers and booleans of extra.*, text of extra.**"),
    ],
)  # fmt: skip
def test_what_is_taken_in_part(text: str, path: str, note: str):
    """One element, one key, or one kind of free-form values is not all of it."""
    assert [(left.path, left.note) for left in report_of(text).partly] == [(path, note)]


def test_numbers_and_text_are_all_of_a_struct():
    """Of a Struct, stars of readings and of metadata together take everything."""
    report = report_of('[readings]\n"*" = "extra.**"\n[metadata]\n"*" = "extra.**"')
    assert (report.partly, report.twice) == ([], [])
    assert "extra" not in {left.path for left in report.unmapped}


def test_what_only_conditions_read():
    """A value that decides what is skipped is read, unless the condition is on one of several elements."""
    report = report_of('skip_if = {path = "mode", is = "OFF"}\n[readings]\na = "place.height"')
    assert "mode" not in [left.path for left in report.unmapped]
    report = report_of('skip_if = {path = "probes[0].port", is = 1}\n[readings]\na = "place.height"')
    assert ("probes[].port", "uint32", "skip_if reads it") in report.unmapped


def test_what_a_selector_compares_is_read():
    """The key of a tag, and the value by which the greatest element is found."""
    report = report_of('[readings]\na = "probes[max port].celsius"\nb = "probes[id=x].celsius"\n')
    assert not {"probes[].port", "probes[].id"} & {left.path for left in report.unmapped}


def test_many_values_that_are_left_out_together_are_one_line():
    """Up to four values of a field are listed, and so are those of a field that is read in part."""
    inside = "".join(f"double v{index} = {index}; " for index in range(1, 6))
    types = Descriptors(
        descriptor_set(
            f"package acme; message Five {{ {inside} }} message Side {{ Five five = 1; double own = 2; }}"
            "message Report { string serial = 1; double at = 2; repeated Side all = 3; Side some = 4; }"
        )
    )
    text = (
        'message = "acme.Report"\nsensor = "serial"\ntime = {path = "at", unit = "s"}\nreadings = {a = "some.five.v2"}'
    )
    assert [left[:2] for left in check(parse_mapping(text), types).unmapped] == [
        ("all", "6 values"),
        *((f"some.five.v{index}", "double") for index in (1, 3, 4, 5)),
        ("some.own", "double"),
    ]


def test_keys_of_a_map():
    """Keys of a map whose entries become events are left out, unless they are read."""
    assert ("values[].key", "string", "") in report_of('each = "values[]"\n[readings]\nv = ".value"').unmapped
    report = report_of('each = "values[]"\n[readings]\n"*" = {name = ".key", path = ".value"}')
    assert not [left for left in (*report.unmapped, *report.partly) if left.path.startswith("values")]


def test_what_is_taken_twice():
    """A value under two entries is reported with both, but not two elements of one field."""
    report = report_of(
        '[readings]\na = "place.height"\nb = "place.height"\nc = "probes[0].port"\nd = "probes[1].port"\n'
        '[metadata]\nserial = "serial"\n'
    )
    assert report.twice == [("serial", ("sensor", "metadata.serial")), ("place.height", ("readings.a", "readings.b"))]


def test_one_name_from_two_entries():
    """A name that two entries give is reported: a message with both values is refused."""
    report = report_of('[readings]\n"*" = "climate.*"\ncelsius = "probes[0].celsius"')
    assert report.same_name == [("readings.celsius", ("readings.*", "readings.celsius"))]


def test_every_problem():
    """All paths that the type lacks are reported, each with its key and the nearest name."""
    report = check(
        parse_mapping(
            'message = "acme.Report"\nmatch = {path = "mod", is = "ON"}\nsensor = "serail"\ntime = "$publish_time"\n'
            '[readings]\na = "place.hight"\n"*" = "varient.*"'
        ),
        TYPES,
    )
    assert report.problems == [
        "match: mod: acme.Report has no field 'mod'; did you mean mode?",
        "sensor: serail: acme.Report has no field 'serail'; did you mean serial?",
        "readings.a: place.hight: acme.Place has no field 'hight'; did you mean height?",
        "readings.*: varient.*: acme.Report has no field 'varient'; did you mean variant?",
    ]
    assert report.lines == []
