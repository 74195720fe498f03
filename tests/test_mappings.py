"""Runs every mapping of the pages on mappings, and holds their tables against the language."""

import dataclasses
import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.core.decoding.file_names import file_attributes
from pipeline.core.decoding.mapping.compiling import execution, resolve
from pipeline.core.decoding.mapping.language import model, parsing, paths
from pipeline.core.decoding.mapping.values.descriptors import MAX_DESCRIPTOR_BYTES
from pipeline.core.decoding.message_types import MappedType, TopicSchema
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from tests.core.decoding.mapping.protos import descriptor_set

DOCS = Path(__file__).parent.parent / "docs"
PAGES = (DOCS / "mappings.md").read_text() + (DOCS / "mapping-reference.md").read_text()
SECTIONS = dict(re.findall(r"^##+ (.+?)\n(.*?)(?=^##? |^### |\Z)", PAGES, re.DOTALL | re.MULTILINE))
JSON = "1. Map a message in JSON"
CORRECTED = "4. Correct it"
NOW = "2026-02-17T10:30:00Z"
T = 1_771_324_200  # the same, in seconds
HEAD = 'message = "json"\nsensor = { constant = "s" }\ntime = "$publish_time"\n'


def blocks(language: str, text: str = PAGES) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def rows(section: str, header: str) -> list[list[str]]:
    """Returns the cells of the table that begins with this header, without the code marks of the first."""
    table = SECTIONS[section].partition(f"| {header} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[2:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


class Result(NamedTuple):
    """What a message became: sensor, time in µs, readings and metadata of its events; reasons; what was skipped."""

    events: list[tuple[str, int, dict[str, float], dict[str, str]]]
    reasons: list[Reason]
    details: list[str]
    skipped: int


def read(mapping: str, payload: Any, attributes: dict[str, str] | None = None, descriptors: Any = b"") -> Result:
    """Returns what a job makes of a message: JSON, or bytes."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    message = Message(data, attributes or {}, "m1", datetime.fromisoformat(NOW), "")
    mapped = MappedType("page.toml", mapping, descriptors)
    mapped.compile()
    try:
        decoded = mapped.decode(message, parse_time("2027-01-01"))
    except BadData as problem:
        return Result([], [problem.reason], [problem.detail], 0)
    problems = [problem for _, problem in decoded.refused]
    return Result(
        [event[:4] for event in decoded.events],
        [problem.reason for problem in problems],
        [problem.detail for problem in problems],
        decoded.skipped,
    )


def event(sensor: str, seconds: float, readings: dict[str, float], metadata: dict[str, str] | None = None) -> Any:
    return sensor, round(seconds * 1_000_000), readings, metadata or {}


@pytest.fixture(scope="module")
def report() -> bytes:
    """The descriptors of the protobuf type that the pages use."""
    (definition,) = blocks("proto")
    return descriptor_set(definition.removeprefix('syntax = "proto3";\n'))


def corrected() -> str:
    (mapping,) = blocks("toml", SECTIONS[CORRECTED])
    return mapping


def report_of(report: bytes, fields: dict[str, Any]) -> bytes:
    mapped = MappedType("page.toml", corrected(), report)
    return mapped.compile().message_class(**fields).SerializeToString()


# Their mappings


def test_every_mapping_is_tried():
    """The tests below try the mappings of these sections."""
    assert {title: len(found) for title, body in SECTIONS.items() if (found := blocks("toml", body))} == {
        JSON: 1, CORRECTED: 1, "Many values at once": 1, "Leave messages out": 1, "Several types": 1,
            "Plausible times": 1,
    }  # fmt: skip


def test_the_first_mapping():
    """The page's message becomes the event that the page shows."""
    (mapping,), (message,) = (blocks(language, SECTIONS[JSON]) for language in ("toml", "json"))
    result = read(mapping, message.encode())
    assert result.events == [event("balloon-7", T + 0.5, {"temperature": 21.5, "humidity": 48}, {"site": "roof"})]
    assert len(mapping.splitlines()) == 5


def test_the_corrected_mapping(report):
    """Each probe is an event; its time is the report's if its own is 0; a reading that is 0 is one."""
    probes = [{"serial": 0xBEEF, "at": T + 1, "centi_celsius": -705}, {"serial": 1, "humidity": 0}]
    data = report_of(report, {"site": "roof", "sent": {"seconds": T}, "probes": probes})
    assert read(corrected(), data, descriptors=report) == Result(
        [
            event("roof/0000beef", T + 1, {"temperature": -7.05}),
            event("roof/00000001", T, {"temperature": 0, "humidity": 0}),
        ], [], [], 0,
    )  # fmt: skip


def test_names():
    """Stars take numbers or text, but not what other entries name; names are rewritten; collisions refuse."""
    (mapping,) = blocks("toml", SECTIONS["Many values at once"])
    data = {"battery": 3300, "debug.x": 1, "debug": {"y": 2}, "in/temp 1": 5, "2nd": True, "state": "ok", "no": None}
    gateways = {"a": {"rssi": -90}, "b": {"rssi": -40}, "c": {}}
    result = read(mapping, {"id": "s", "at": NOW, "data": data, "gateways": gateways})
    readings = {"volts": 3.3, "in.temp_1": 5, "_2nd-c21365": 1, "rssi_a": -90, "rssi_b": -40}
    assert result == Result([event("s", T, readings, {"state": "ok"})], [], [], 0)
    assert read(mapping, {"id": "s", "at": NOW, "data": {"a b": 1, "a_b": 1}}).reasons == [Reason.NAME_COLLISION]
    plain = mapping.replace("rewrite_names = true", "")
    assert read(plain, {"id": "s", "at": NOW, "data": {"a?": 1}}).reasons == [Reason.INVALID_METRIC_NAME]


def test_names_that_are_values(report):
    """The name of an element, or the first that it has."""
    (entry,) = re.findall(r"`(\"\*\" = \{[^`]+\})`", SECTIONS["Many values at once"])
    for name in (".metric", ["x", "{.metric}"]):
        text = 'each = "points[]"\n' + HEAD + "[readings]\n" + entry.replace('".metric"', json.dumps(name))
        assert read(text, {"points": [{"metric": "a", "value": 1}]}).events[0][2] == {"a": 1}


def test_conditions():
    """They leave out elements, or the message; ``null`` and ``when`` leave out a value."""
    (mapping,) = blocks("toml", SECTIONS["Leave messages out"])
    probes = [
        {"id": "a", "level": 1},
        {"id": "b", "level": 1, "status": "broken"},
        {"level": 1},
        {"id": "c", "level": -999},
        {"id": "d", "level": "n/a"},
        {"id": "e", "level": 2, "status": "dry"},
    ]
    message = {"site": "roof", "at": NOW, "probes": probes}
    assert read(mapping, message) == Result([event("a", T, {"level": 1})], [], [], 5)
    assert read(mapping, message | {"site": "lab-2"}) == Result([], [], [], 1)


def test_several_types():
    """``match`` holds if all of its conditions do; the mapping's time is the publish time."""
    (mapping,) = blocks("toml", SECTIONS["Several types"])
    payload = {"kind": "measurement", "id": "s", "values": {"a": 1}}
    mapped = MappedType("page.toml", mapping)
    for kind, source in (("measurement", "gateway"), ("x", "gateway"), ("measurement", "")):
        message = Message(json.dumps(payload | {"kind": kind}).encode(), {"source": source})
        assert mapped.matches(message) is (kind == "measurement" and source == "gateway")
    assert read(mapping, payload).events == [event("s", T, {"a": 1})]


# Their tables


def test_every_key():
    """The tables of keys have what the language has, and nothing else; the defaults are the language's."""
    table = {name: row[2] for row in rows("Keys", "key") for name in names(row[0])}
    assert table.keys() == {field.name for field in dataclasses.fields(model.Mapping)} | parsing._DEFAULTS.keys()
    mapping = parsing.parse_mapping(HEAD + "readings = {}")
    assert {key for key, default in table.items() if default == "required"} == {"message", "sensor", "time", "readings"}
    for key in ("inexact_integers", "decimal"):
        assert names(table[key]) == [getattr(mapping, key)]
    notation = {name: (names(row[2]) or [""])[0] for row in rows("Notation of CSV", "key") for name in names(row[0])}
    assert notation.keys() == parsing._CSV_KEYS.keys()
    assert notation == {name: str(default) for name, default in dataclasses.asdict(mapping.csv).items()}


def test_every_key_of_a_value():
    """Each key of a value is of the kinds of values that the page says."""
    kinds = {"readings": parsing._READING_KEYS, "times": parsing._TIME_KEYS, "text": parsing._TEXT_KEYS}
    kinds["readings"] += tuple(set(parsing._READING_ENTRY_KEYS) - set(parsing._ENTRY_KEYS))
    kinds["entries"] = parsing._ENTRY_KEYS
    of = {name: row[1] for row in rows("Values", "key") for name in names(row[0])}
    assert of.pop("first") == "all"
    assert of.keys() == {key for keys in kinds.values() for key in keys}
    for key, kind in of.items():
        having = {name for name, keys in kinds.items() if key in keys}
        assert having == ({"readings", "times", "text"} if kind == "all" else set(kind.split(", "))), key


def test_rewritten_names():
    """The table's names become what it says."""
    table = {name: row[1] for row in rows("Names", "name in the message") for name in names(row[0])}
    assert {name: f"`{execution.rewritten(name)}`" for name in table} == table
    assert len(table) == 3


def test_every_condition():
    """Each test of the table holds for the one value and not for the other."""
    tried: dict[str, tuple[Any, Any, Any]] = {
        "is": (["a", "b"], "b", "c"),
        "is_not": (["a", "b"], None, "a"),
        "set": (True, 0, None),
        "glob": ("prod-*", "prod-1", "test"),
    }
    assert [names(row[0])[0] for row in rows("Conditions", "test")] == [*tried, "from"]
    for test, (wanted, yes, no) in tried.items():
        text = f'skip_if = {{ path = "x", {test} = {json.dumps(wanted)} }}\n' + HEAD + 'readings.v = "v"'
        assert [read(text, {"x": value, "v": 1}).skipped for value in (yes, no)] == [1, 0], test


PATHS = {
    "device.id": "b-7",
    'device."serial no"': "x1",
    "heard[0].gateway": "g0",
    "[-1]": None,
    "heard[max rssi].gateway": "g1",
    "[min rssi]": None,
    "tags[key=site].value": "roof",
    "probes[].id": "p1",
    ".id": "p1",
    "values.*": {"a": "1", "list": None},
    "values.**": {"a": "1", "b.c": "2", "list.0": "3"},
    "@topic": "plants/north/l1/d/7",
    "@topic.plant": "north",
    "$publish_time": NOW,
    "$file.stem": "station-17",
}


def test_every_path():
    """Each path of the table leads to what the page says."""
    listed = [names(row[0])[0] for row in rows("Paths", "path")]
    assert listed == [path for path, value in PATHS.items() if value is not None]
    message = {
        "device": {"id": "b-7", "serial no": "x1"},
        "heard": [{"gateway": "g0", "rssi": -9}, {"gateway": "g1", "rssi": -4}, {"gateway": "g2", "rssi": -20}],
        "tags": [{"key": "room", "value": "7"}, {"key": "site", "value": "roof"}],
        "probes": [{"id": "p1"}],
        "values": {"a": "1", "b": {"c": "2"}, "list": ["3"]},
        "one": 1,
    }
    (pattern,) = re.findall(r"`(topic = \"[^`]+)`", SECTIONS["Attributes"])
    head = 'each = "probes[]"\n' + HEAD + f'readings.one = "one"\n[attributes]\n{pattern}\n[metadata]\n'

    def metadata(path: str, name: str = "x") -> dict[str, str]:
        attributes = {"topic": "plants/north/l1/d/7", **file_attributes("exports/north/station-17.csv.gz")}
        ((_, _, _, found),) = read(f"{head}{json.dumps(name)} = {json.dumps(path)}", message, attributes).events
        return found

    for path in listed:
        expected = PATHS[path]
        if isinstance(expected, dict):
            assert metadata(path, "*") == {name: value for name, value in expected.items() if value}
        else:
            assert metadata(path) == {"x": expected}
    assert metadata("heard[-1].gateway") == metadata("heard[min rssi].gateway") == {"x": "g2"}
    assert metadata("@topic.device") == {"x": "d/7"}
    assert metadata("$message_id") == {"x": "m1"}
    assert metadata("$ordering_key") == {}
    of_file = [(names(path)[0], names(value)[0]) for path, value in rows("Names of files", "path")]
    assert [metadata(path) for path, _ in of_file] == [{"x": value} for _, value in of_file]
    assert [path for path, _ in of_file] == ["$file", "$file.stem", "$file.folder"]
    other = read(f'{head}x = "@topic.plant"\none = "one"', message, {"topic": "plants/north"}).events
    assert other[0][3] == {"one": "1"}


def test_every_format():
    """Each format of text in braces is one of the language."""
    written = set(re.findall(r"(?:\{\w+:|`)(08x|\.2f|hex|upper|lower|d|o|b)\b", SECTIONS["Values"]))
    texts = {spec: format(0xBEEF, spec) for spec in ("08x", ".2f", "d", "o", "b")} | {"upper": "ROOF", "lower": "roof"}
    assert written == {*texts, "hex"}  # which is for bytes, and JSON has none
    for spec, text in texts.items():
        mapping = HEAD + f'readings.v = "v"\n[metadata]\ntext = "{{x:{spec}}}"'
        value = "Roof" if spec in ("upper", "lower") else 0xBEEF
        assert read(mapping, {"v": 1, "x": value}).events == [event("s", T, {"v": 1}, {"text": text})]


# Their other sections


def test_plausible_times():
    """The list of the page takes the publish time in place of a time that is not plausible."""
    (line,) = blocks("toml", SECTIONS["Plausible times"])
    text = 'message = "json"\nsensor = { constant = "s" }\n' + line + 'readings.v = "v"'
    for at, wanted in ((T - 5, T - 5), (7, T), ("x", T), (T - 31 * 86_400, T), (2_085_956_896, T)):
        assert read(text, {"at": at, "v": 1}).events == [event("s", wanted, {"v": 1})], at


def test_times_of_the_page():
    """What the page says of leap seconds and of the end of an interval."""
    head = 'message = "json"\nsensor = { constant = "s" }\nreadings.v = "v"\ntime = { path = "at"'
    leap, read_as = re.findall(r"`(23:[0-9:.]+)`", SECTIONS["Times"])
    keys = re.findall(r'`(stamps = "end")` and `(length = "15m")`', SECTIONS["Values"])[0]
    for at, more, wanted in (
        (f"2016-12-31 {leap}", "", f"2016-12-31 {read_as}"),
        ("2026-01-17 01:00", ", ".join(("", *keys)), "2026-01-17 00:45"),
    ):
        assert read(f"{head}{more} }}", {"at": at, "v": 1}).events == [event("s", parse_time(wanted) / 1e6, {"v": 1})]


def test_elements_of_one_event():
    """Elements of one sensor and time are one event; different values of a name refuse it."""
    lists, levels = re.findall(r"`each = (\[[^`]+\])`|`(\w+\[\][^`]*)`", SECTIONS["Elements"])[::-1]
    text = f'each = {lists[0]}\n{HEAD}readings = {{ "v_*" = {{ path = "voltages[].v", name = "voltages[].at" }}, '
    text += 'amps = "currents[].i" }'
    message = {"voltages": [{"at": "a", "v": 1}, {"at": "b", "v": 2}, {}], "currents": [{"i": 3}]}
    assert read(text, message) == Result([event("s", T, {"v_a": 1, "v_b": 2, "amps": 3})], [], [], 0)
    message["currents"].append({"i": 4})
    assert read(text, message).reasons == [Reason.NAME_COLLISION]
    assert read(text, {"voltages": [{}]}) == Result([], [], [], 1)
    assert read(text, {"voltages": []}).events == []
    text = f'each = "{levels[1]}"\n{HEAD}readings."*" = {{ path = ".v", name = "resources[].metrics[].name" }}'
    points = {"resources": [{"metrics": [{"name": "a", "points": [{"v": 1}]}, {"name": "b", "points": [{"v": 2}]}]}]}
    assert read(text, points).events == [event("s", T, {"a": 1, "b": 2})]


def test_reasons():
    """Each reason of the table has its cause."""
    simple = 'message = "json"\nsensor = "id"\ntime = "at"\n[readings]\n'
    point = {"id": "s", "at": NOW, "v": 1}
    in_ms = simple.replace('"at"', '{ path = "at", unit = "ms" }') + 'v = "v"'
    local = simple.replace('"at"', '{ path = "at", time_zone = "Europe/Amsterdam" }')
    schema = TopicSchema("projects/p/schemas/s", {"r1": descriptor_set("message M { int32 v = 1; }")}, lambda _: None)
    of_schema = 'message = "M"\nsensor = { constant = "s" }\ntime = "$publish_time"\nreadings.v = "v"'
    caused = [
        ("UNPARSEABLE", read(simple + 'v = "v"', b"{")),
        ("UNPARSEABLE", read(simple + 'v = "v"', b'{"v": 1, "v": 2}')),
        ("UNPARSEABLE", read(simple + 'v = "v"\n[metadata]\nx = "x"', point | {"x": [1]})),
        ("MISSING_SENSOR_ID", read(simple + 'v = "v"', {"at": NOW, "v": 1})),
        ("MISSING_EVENT_TIME", read(simple + 'v = "v"', {"id": "s", "v": 1})),
        ("INVALID_EVENT_TIME", read(simple + 'v = "v"', point | {"at": "noon"})),
        ("INVALID_EVENT_TIME", read(simple + 'v = "v"', point | {"at": 1})),
        ("INVALID_EVENT_TIME", read(local + 'v = "v"', point | {"at": "2026-03-29 02:30"})),
        ("EVENT_TIME_TOO_EARLY", read(in_ms, point | {"at": T})),
        ("EVENT_TIME_IN_FUTURE", read(in_ms, point | {"at": T * 1_000_000})),
        ("NOT_A_NUMBER", read(simple + 'v = "v"', point | {"v": "warm"})),
        ("NOT_A_NUMBER", read(simple + 'v = { path = "v", signed = 8 }', point | {"v": 300})),
        ("INEXACT_INTEGER", read(simple + 'v = "v"', point | {"v": (1 << 53) + 1})),
        ("MISSING_FIELD", read(simple + 'v = { path = "w", required = true }', point)),
        ("MISSING_FIELD", read(simple + '"*" = { path = "v", name = "n" }', point)),
        ("NAME_COLLISION", read(simple + 'v = "v"\n"*" = { path = "v", name = "n" }', point | {"n": "v"})),
        ("TOO_MANY_ELEMENTS", read('each = "e[]"\n' + simple + 'v = ".v"', {"e": [0] * 100_001})),
        ("UNKNOWN_REVISION", read(of_schema, b"", {"googclient_schemarevisionid": "r2"}, schema)),
    ]
    assert [name for row in rows("What becomes a dead letter", "reason") for name in names(row[0])] == list(
        dict.fromkeys(reason for reason, _ in caused)
    )
    for reason, result in caused:
        assert (result.reasons, result.events) == ([Reason(reason)], []), (reason, result)


def test_a_dead_letter_names_the_element():
    """There is one for a message, and the other elements are events."""
    text = 'each = "e[]"\n' + HEAD.replace('{ constant = "s" }', '".id"') + 'readings.v = ".v"'
    result = read(text, {"e": [{"id": "a", "v": 1}, {"id": "b", "v": "x"}, {"id": "c", "v": "y"}]})
    assert result.events == [event("a", T, {"v": 1})]
    assert result.details == ["e[1]: readings.v is 'x', not a number; and 1 more problem"]


def test_limits():
    """The numbers are the code's."""
    limits = SECTIONS["Limits"]
    for number, unit in (
        (parsing.MAX_MAPPING_BYTES >> 20, "MiB, descriptors"),
        (MAX_DESCRIPTOR_BYTES >> 20, "MiB, a message"),
        (resolve.MAX_ELEMENTS, "elements"),
        (execution.MAX_VALUES, "values"),
        (paths.MAX_PATH, "characters"),
        (paths.MAX_STEPS, "steps"),
        (resolve.MAX_WAYS, "fields of `oneof`s"),
    ):
        assert f"{number:,} {unit}" in " ".join(limits.split())
    assert f"{resolve.MAX_ELEMENTS:,} elements" in SECTIONS["What becomes a dead letter"]


def test_a_type_that_changes(report):
    """A field may be missing in an older revision; in the newest, and of another type anywhere, it may not."""
    mapping = corrected()
    (definition,) = blocks("proto")
    older = descriptor_set(definition.replace("optional float humidity = 4;", "").partition("\n")[2])
    retyped = descriptor_set(definition.replace("optional float humidity", "Report humidity").partition("\n")[2])
    schema = TopicSchema("projects/p/schemas/s", {"old": older, "new": report}, {"newer": report}.get)
    data = report_of(report, {"site": "a", "sent": {"seconds": T}, "probes": [{"humidity": 1}]})
    revision = "googclient_schemarevisionid"
    for name, readings in (("old", {"temperature": 0}), ("newer", {"temperature": 0, "humidity": 1})):
        assert read(mapping, data, {revision: name}, schema).events[0][2] == readings
    for revisions, problem in (({"r": older}, "no field 'humidity'"), ({"x": retyped, "r": report}, "is a number")):
        with pytest.raises(model.MappingError, match=f"readings.humidity: .*{problem}"):
            MappedType("page.toml", mapping, TopicSchema("projects/p/schemas/s", revisions, lambda _: None)).compile()
