"""Series in one message: parallel lists, and times that are a base and an offset, or a start and a step."""

import json

import pytest

from pipeline.core.decoding.mapping.compiling.mapper import Content, Mapper
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from tests.core.decoding.mapping.protos import descriptor_set

T = 1_771_324_200
SERIES = 'message = "json"\nsensor = "id"\n'
ROWS = SERIES + 'time = { path = ".t", unit = "s" }\nreadings = { "*" = ".*" }\n'
TYPES = Descriptors(
    descriptor_set(
        """
        package acme;
        import "google/protobuf/duration.proto";
        message Point { google.protobuf.Duration after = 1; sint32 v = 2; }
        message Lists { repeated int64 t = 1; repeated float x = 2; repeated Point points = 3; string unit = 4; }
        message Report {
          string id = 1; int64 start = 2; optional uint32 step = 3; repeated Point points = 4; Lists lists = 5;
          oneof kind { Lists raw = 6; Lists mean = 7; }
        }
        """
    )
)


def made(result):
    assert not result.problems
    return [(event.event_time_us - T * 1_000_000, event.readings) for event in result.events]


def of_protobuf(text, **fields):
    mapper = Mapper(parse_mapping(f'message = "acme.Report"\nsensor = "id"\n{text}'), TYPES)
    return mapper.map(Message(b"", {}), Content([mapper.message_class(id="s", **fields)], 0), LATEST_US)


def test_a_base_and_an_offset(mapped):
    """The offset may be 0, negative, a fraction or text. One that is not set adds nothing."""
    text = SERIES + 'each = "v[]"\nreadings = { x = ".x" }\n'
    text += 'time = { path = "t", unit = "s", plus = { path = ".o", unit = "ms" } }\n'
    for offset, after_us in ((None, 0), (0, 0), (-1, -1000), ("2.5", 2500), (0.0057, 5), (" ", 0)):
        assert made(mapped(text, json.dumps({"id": "s", "t": T, "v": [{"x": 1, "o": offset}]}))) == [
            (after_us, {"x": 1})
        ]
    for offset, what in (("soon", "'soon'"), (True, "a boolean"), ([1], "an array")):
        (problem,) = mapped(text, json.dumps({"id": "s", "t": T, "v": [{"x": 1, "o": offset}]})).problems
        assert problem.reason is Reason.INVALID_EVENT_TIME
        assert problem.detail == f"v[0]: time.plus is {what}, not a number of ms"
    text = 'each = "points[]"\nreadings = { v = ".v" }\n'
    text += 'time = { path = "start", unit = "s", plus = { path = ".after" } }\n'
    points = [{"v": 1}, {"v": 2, "after": {"seconds": 1, "nanos": 500}}]
    assert made(of_protobuf(text, start=T, points=points)) == [(0, {"v": 1}), (1_000_000, {"v": 2})]


def test_a_start_and_a_step(mapped):
    """Every element has its place in time, also after one that is null; the steps do not add up rounded."""
    text = SERIES + 'each = "v[]"\nreadings = { v = "." }\n'
    text += 'time = { path = "t", unit = "s", step = { path = "step", unit = "ms" } }\n'
    values = {"id": "s", "t": T, "v": [1, None, 3]}
    assert made(mapped(text, json.dumps(values | {"step": 60}))) == [(0, {"v": 1}), (120_000, {"v": 3})]
    assert made(mapped(text, json.dumps(values | {"step": "0.00075"}))) == [(0, {"v": 1}), (1, {"v": 3})]
    # Without a step, only the first element has a time: the others are not put at one time.
    result = mapped(text, json.dumps(values))
    assert (len(result.events), [str(problem) for problem in result.problems]) == (
        1,
        ["MISSING_EVENT_TIME: v[2]: time.step is not set, and the time of an element needs it"],
    )
    text = 'each = ["points[]", "lists.points[]"]\nskip_if = { path = "points[].v", is = 0 }\n'
    text += (
        'time = { path = "start", unit = "s", step = "2s" }\nreadings = { v = "points[].v", w = "lists.points[].v" }\n'
    )
    lists = {"points": [{"v": 7}, {"v": 8}]}
    result = of_protobuf(text, start=T, points=[{"v": 1}, {}, {"v": 3}], lists=lists)
    assert made(result) == [(0, {"v": 1, "w": 7}), (4_000_000, {"v": 3}), (2_000_000, {"w": 8})]


def test_parallel_lists_of_json(mapped):
    """A row has the elements of one position; null, and a list that is missing, are not set."""
    rows = {"t": [T, T + 1], "x": [1, None], "y": [True, 4], "unit": "K"}
    expected = [(0, {"x": 1, "y": 1}), (1_000_000, {"y": 4})]
    assert (
        made(mapped(ROWS + 'zip = ["h.t[]", "h.x[]", "h.y[]", "h.z[]"]\n', json.dumps({"id": "s", "h": rows})))
        == expected
    )
    assert made(mapped(ROWS + 'zip = "h.*[]"\n', json.dumps({"id": "s", "h": rows}))) == expected
    assert made(mapped(ROWS + 'zip = "*[]"\n', json.dumps({"id": "s", **rows}))) == expected
    several = ROWS.replace('"id"', '"[].id"') + 'zip = ["[].h.t[]", "[].h.x[]"]\n'
    result = mapped(several, json.dumps([{"id": "a", "h": rows}, {"id": "b", "h": rows | {"x": [5]}}]))
    assert [(event.sensor_id, event.readings) for event in result.events] == [("a", {"x": 1})]
    assert [str(problem) for problem in result.problems] == [
        "UNPARSEABLE: [1].h.t[]: h.t has 2 elements and h.x has 1, but zip pairs them"
    ]


def test_parallel_lists_of_protobuf():
    """Lists of numbers and of messages; an empty one is not set. Rows and elements of one time are one event."""
    time = 'time = { first = [".t", "start"], unit = "s" }\n'
    lists = {"t": [T, T + 1], "points": [{"v": 1}, {"v": 2}]}
    text = 'zip = ["lists.t[]", "lists.x[]", "lists.points[]"]\n' + time + 'readings = { x = ".x", v = ".points.v" }\n'
    assert made(of_protobuf(text, lists=lists)) == [(0, {"v": 1}), (1_000_000, {"v": 2})]
    text = 'each = "points[]"\nzip = "lists.*[]"\nreadings = { "*" = ".*", p = "points[].v" }\n' + time
    text = text.replace('".t"', '"start"')
    result = of_protobuf(text, start=T, points=[{"v": 3}], lists={"t": [T], "x": [0.5]})
    assert made(result) == [(0, {"p": 3, "t": T, "x": 0.5})]


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ('zip = ["lists.t[]", "lists.y[]"]', "zip: acme.Lists has no field 'y'; it has t, x, points, unit"),
        ('zip = ["lists.t[]", "lists.unit[]"]', "zip: lists.unit is string, which is not a repeated field"),
        ('zip = ["kind.t[]", "kind.x[]"]', "zip: it leads through 2 members of a oneof; name one of them"),
        ('zip = "lists.points.*[]"', "zip: repeated acme.Point has no repeated field"),
        ('zip = ["lists.t[]", "lists.x[]"]\nskip_if = { path = ".v", is = 1 }', "skip_if: .v: zip has no list 'v'"),
    ],
)
def test_lists_that_do_not_fit(lines, problem):
    """One line names what the type has instead."""
    with pytest.raises(MappingError) as error:
        of_protobuf(f'{lines}\ntime = {{ path = "start", unit = "s" }}\nreadings = {{ x = ".x" }}\n')
    assert problem in str(error.value)


def test_rows_are_elements(mapped):
    """Their number and their values have the bounds of elements."""
    text = ROWS + 'zip = ["t[]", "x[]"]\n'
    with pytest.raises(BadData, match=r"t\[\] goes through more than") as error:
        mapped(text, json.dumps({"id": "s", "t": [T] * 100_001, "x": [1] * 100_001}))
    assert error.value.reason is Reason.TOO_MANY_ELEMENTS
    text = text.replace('".*" }', '".*", o = "o.*" }').replace("o = ", '"o*" = ')
    document = {"id": "s", "t": list(range(T, T + 150)), "x": [1] * 150, "o": {f"n{index}": 1 for index in range(900)}}
    with pytest.raises(BadData, match="more values than") as error:
        mapped(text, json.dumps(document))
