"""Payloads as devices and gateways send them: several documents, forms, lines, text that may be JSON."""

import gzip
import json
from datetime import UTC, datetime

import pytest

from pipeline.core.decoding.mapping.compiling.resolve import MAX_ELEMENTS
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.message_types import DecoderFunction, MappedType
from pipeline.core.events.message import Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason

T = 1_771_324_200
US = T * 1_000_000
HEAD = 'sensor = "id"\ntime = { path = "t", unit = "s" }\n'
JSON = f'message = "json"\n{HEAD}'
INFLUX = """
message = "influx"
sensor = "tags.host"
time = [{ path = "time", unit = "ns" }, "$publish_time"]
[readings]
"*" = { path = "fields.*", name = ["{measurement}.{tags.cpu}.*", "{measurement}.*"], except = "raw" }
[metadata]
"*" = "fields.*"
"""


def decoded(text, payload, **attributes):
    """Returns what a job makes of a payload: its events, and the problem of its dead letter."""
    data = payload if isinstance(payload, bytes) else payload.encode()
    published = datetime.fromtimestamp(T, UTC)
    result = MappedType("m.toml", text).decode(Message(data, attributes, publish_time=published), 2 * US)
    return [event[:4] for event in result.events], [str(problem) for _, problem in result.refused], result.skipped


def lines(*documents):
    return "\n".join(map(json.dumps, documents))


def test_documents_are_like_elements():
    """Those of one sensor and time make one event; a problem names its document and costs no event of the others."""
    text = JSON + 'readings = { "*" = "v.*" }'
    payload = lines({"id": "a", "t": T, "v": {"x": 1}}, {"id": "a", "t": T, "v": {"y": 2}}, {"t": T, "v": {"x": 3}})
    events, problems, _ = decoded(text, payload + lines({"id": "b", "t": T, "v": {"x": 4}}))
    assert events == [("a", US, {"x": 1, "y": 2}, {}), ("b", US, {"x": 4}, {})]
    assert problems == ["MISSING_SENSOR_ID: document 3: the mapping finds no sensor: none of its paths is set"]


def test_elements_of_documents():
    """What is skipped is counted in each document: a null, a condition, no element, no reading."""
    text = 'each = "e[]"\nskip_if = { path = ".s", is = 1 }\n' + JSON + 'readings = { x = ".x" }'
    one = {"id": "a", "t": T, "e": [None, {"s": 1}, {"x": 1}]}
    events, problems, skipped = decoded(text, lines(one, {"id": "a", "t": T + 1, "e": [{"x": 5}, None]}, {}, {"e": []}))
    assert (events, problems, skipped) == ([("a", US, {"x": 1}, {}), ("a", US + 1_000_000, {"x": 5}, {})], [], 5)
    _, (problem,), _ = decoded(text, lines(one, one | {"e": [{"x": "?"}]}))
    assert problem.startswith("NOT_A_NUMBER: document 2: e[0]: readings.x is the text '?'") or "e[0]" in problem


def test_all_documents_fulfil_match():
    """A message of several kinds is none of them."""
    mapped = MappedType("m.toml", 'match = { path = "k", is = 1 }\n' + JSON + "readings = {}")
    for kinds, matches in (((1, 1), True), ((1, 2), False), ((), False)):
        assert mapped.matches(Message(lines(*({"k": kind} for kind in kinds)).encode(), {})) is matches


def test_bounds_of_documents():
    """More documents than elements are refused as a whole; so are documents with too many values from the message."""
    text = JSON + 'readings = { x = "x" }\nmetadata = { m = "@m" }'
    for payload in ("[]" * (MAX_ELEMENTS + 1), lines({"id": "a", "t": T, "x": 1}) * 20_000):
        with pytest.raises(BadData) as raised:
            decoded(text, payload, m="m" * 1024)
        assert raised.value.reason is Reason.TOO_MANY_ELEMENTS


def test_line_protocol():
    """A point is a document; a line that is none costs no other; without a time, it is that of the message."""
    events, problems, _ = decoded(
        INFLUX,
        f'cpu,host=a,cpu=cpu0 idle=99,busy=t,note="x",raw=5i {US}000\ncpu,host=a,cpu=cpu1 idle=98 {US}000\n'
        f"mem,host=a free=4i {US}000\nbad\n# comment\ndisk,host=b free=5u,full=nan",
    )
    readings = {"cpu.cpu0.idle": 99, "cpu.cpu0.busy": 1, "cpu.cpu1.idle": 98, "mem.free": 4}
    assert events[0] == ("a", US, readings, {"note": "x"})
    assert problems[0].startswith("UNPARSEABLE: line 4: at character 4")
    assert INFLUX.count("raw") == 1


@pytest.mark.parametrize("payload", ["bad", "m", b"m f=\xff"])
def test_text_that_is_no_line_protocol(payload):
    """It is refused, once."""
    try:
        events, problems, _ = decoded(INFLUX, payload)
    except BadData as problem:
        events, problems = [], [str(problem)]
    assert (events, len(problems)) == ([], 1)
    assert problems[0].startswith("UNPARSEABLE")


def test_a_form():
    """Stars of readings take texts that are numbers, in the mapping's notation, stars of metadata the others."""
    text = 'decimal = ","\nmessage = "form"\nsensor = "{key:sha256}"\ntime = "at"\nreadings = { "*" = "*" }\n'
    text += 'metadata = { "*" = { path = "*", except = "key" } }'
    payload = "key=K&at=2026-02-17+10%3A30%3A00&t=21%2C5&n=-3&e=&m=A+1&dot=1.5"
    digest = "86be9a55762d316a"  # the beginning of what sha256sum prints for K
    assert decoded(text, payload) == ([(digest, US, {"t": 21.5, "n": -3}, {"m": "A 1", "dot": "1.5"})], [], 0)
    opened = text.replace("readings =", 'types = { j = "json" }\nreadings =').replace('"*" = "*" }', '"*" = "j.*" }', 1)
    ((*_, readings, _),), _, _ = decoded(opened, payload + "&j=%7B%22a%22%3A1%2C%22b%22%3A%222%22%7D")
    assert readings == {"a": 1, "b": 2}
    with pytest.raises(BadData, match="the message can't be read as form: 't' appears twice"):
        decoded(text, "t=1&t=2")


def test_packed_messages():
    """The mapping says it, for payloads of every type; the bound of values is by the unpacked size."""
    text = 'compression = "auto"\n' + JSON + 'readings = { x = "x" }'
    payload = lines({"id": "a", "t": T, "x": 1}).encode()
    for data in (payload, gzip.compress(payload)):
        assert decoded(text, data)[0] == [("a", US, {"x": 1}, {})]
    with pytest.raises(BadData, match='the message is not JSON: it is gzip, so the mapping needs compression = "auto"'):
        decoded(JSON + "readings = {}", gzip.compress(payload))
    each = JSON + 'each = "e[]"\nreadings = { v = ".", w = "." }'
    many = gzip.compress(lines({"id": "a", "t": T, "e": [1] * 90_000}).encode())
    assert decoded(each, many, **{"content-encoding": "gzip"})[0] == [("a", US, {"v": 1, "w": 1}, {})]


def read_packed(data, attributes):
    yield sensor_event(data.decode(), US, {"x": 1.0}, {})


def test_a_decoder_gets_what_is_unpacked():
    """Its payload is what the publisher packed."""
    decoder = DecoderFunction(f"{__name__}:read_packed")
    ((name, *_),) = decoder.decode(Message(gzip.compress(b"s"), {"Content-Encoding": "gzip"}), 2 * US).events
    assert name == "s"


def test_text_that_may_be_json():
    """Arrays, objects and booleans are read; numbers keep their digits, and what is no JSON stays text."""
    text = JSON + 'types = { v = ["json", "text"] }\n[readings]\nx = { path = "v", when = { path = "n", is = 1 } }\n'
    text += '"l.*" = "v.*"\n[metadata]\nm = { path = "v", when = { path = "n", is = 2 } }\n'
    for value, number, readings, metadata in (
        ("true", 1, {"x": 1}, {}),
        ("2.150000e+01", 1, {"x": 21.5}, {}),
        ("[1, 2.5]", 0, {"l.0": 1, "l.1": 2.5}, {}),
        ('{"a": 1}', 0, {"l.a": 1}, {}),
        ("1.50", 2, {}, {"m": "1.50"}),
        ("[1, ", 2, {}, {"m": "[1, "}),
        ("truely", 2, {}, {"m": "truely"}),
        (7, 1, {"x": 7}, {}),
    ):
        events, problems, _ = decoded(text, lines({"id": "a", "t": T, "n": number, "v": value}))
        assert [event[2:] for event in events] == ([(readings, metadata)] if readings else [])
        assert len(problems) == (not readings)  # an event of metadata alone


def test_text_that_may_be_json_in_protobuf(mapper, mapped):
    """It is a field of text, no other."""
    head = 'message = "fleet.Kinds"\nsensor = { constant = "s" }\ntime = "$publish_time"\n'
    now = {"publish_time": datetime.fromtimestamp(T, UTC)}
    text = head + '[types]\ntext = ["json", "text"]\n[readings]\n"*" = "text.*"\n'
    assert mapped(text, {"text": "[4]"}, **now).events[0].readings == {"0": 4}
    with pytest.raises(MappingError, match="only text can be text that may be JSON"):
        mapper(text.replace("types]\ntext", "types]\ni32"))


def test_a_star_below_a_name():
    """The name's star is what the path's star matches; the entry's own name stands around it."""
    text = 'each = "e[]"\n' + JSON + '[readings]\n"x_*_y" = { path = ".v.*", name = "{.n}.*.{m}", except = "no" }\n'
    element = {"n": "a", "v": {"p": 1, "no": 2, "text": "t"}}
    found = decoded(text, lines({"id": "s", "t": T, "m": "b", "e": [element, {"n": "c", "v": {"p": 3}}, {"v": {}}]}))
    assert found == ([("s", US, {"x_a.p.b_y": 1, "x_c.p.b_y": 3}, {})], [], 0)
    _, (problem,), _ = decoded(text, lines({"id": "s", "t": T, "m": "b", "e": [{"v": {"p": 1}}]}))
    assert problem == "MISSING_FIELD: e[0]: readings.x_*_y.name is not set, so a value has no name"
    digits = 'inexact_integers = "metadata"\n' + JSON + '[readings]\n"*" = { path = "v.*", name = "{m}.*" }\nz = "z"\n'
    ((*_, readings, metadata),), _, _ = decoded(
        digits, lines({"id": "s", "t": T, "m": "b", "z": 1, "v": {"p": (1 << 53) + 1}})
    )
    assert (readings, metadata) == ({"z": 1}, {"b.p": str((1 << 53) + 1)})


def test_numbers_that_are_not_finite_are_numbers():
    """A null can name them."""
    text = JSON + 'null = nan\nreadings = { x = "x", y = "y" }'
    assert decoded(text, f'{{"id": "a", "t": {T}, "x": -nan, "y": 1}}\0')[0] == [("a", US, {"y": 1}, {})]
