"""Readings by their units, in text and in other fields, and conditions on the event's time."""

import json

import pytest

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.invalid_readings import LeftOut
from pipeline.core.events.reasons import BadData

HEAD = 'message = "json"\nsensor = "s"\ntime = "t"\n[readings]\n'
ENERGY = '"r*" = { path = "v.*", units = { kWh = 1, Wh = 0.001, "m³" = 10, "µV" = 1e-6 } }'
HEAT = """
r.path = "v"
r.unit_path = "uom"
r.null = -999
r.units = { Cel = 1, "[degF]" = { scale = 0.5, offset = -16 }, "" = 0.1 }
"""


@pytest.fixture
def readings(mapped):
    """What entries make of a JSON object."""

    def of(entries, /, **fields):
        document = {"s": "s", "t": "2026-03-01T00:00:00Z"} | fields
        return mapped(HEAD + entries, json.dumps(document)).events[0].readings

    return of


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1.5 kWh", 1.5), ("300Wh", 0.3), (" -2e3 Wh ", -2), ("1 m3", 10), ("5\N{GREEK SMALL LETTER MU}V", 5e-6),
        ("0.3 MWh", "'0.3' in 'MWh'; its units are kWh, Wh, m³, µV"), ("3", "'3' without a unit"),
        (3, "'3' without a unit"), ("high", "'high', not a number"), ("1.2.3 Wh", "'1.2.3', not a number"),
    ],
)  # fmt: skip
def test_the_unit_behind_a_number(readings, text, number):
    """It has to be in the table, in whatever form its characters have. A star leaves other texts out."""
    single = ENERGY.replace("r*", "r").replace("v.*", "v")
    if isinstance(number, float | int):
        assert readings(single, v=text) == {"r": number}
        assert readings(ENERGY, v={"a": text, "b": "x"}) == {"ra": number}
        return
    with pytest.raises(BadData) as refused:
        readings(single, v=text)
    assert refused.value.detail.startswith(f"readings.r is {number}")
    if "not a number" not in number:
        assert readings(ENERGY, v={"a": text, "b": "1 Wh"}) == {"rb": 0.001}


def test_the_unit_in_another_field(readings, mapped):
    """The field of an element may be above the value or beside it; without it, the unit "" counts."""
    assert readings(HEAT, v=50, uom="[degF]") == {"r": 9}
    assert readings(HEAT, v="50", uom=" Cel ") == {"r": 50}
    assert readings(HEAT, v=50) == {"r": 5}
    assert readings(HEAT, v=-999, uom="K") == {}
    with pytest.raises(BadData, match=r"readings.r is '50' in 'K'; its units are Cel, \[degF\], "):
        readings(HEAT, v=50, uom="K")
    kept = readings('b = "b"\n' + HEAT + 'r.invalid = "drop reading"\n', b=1, v=50, uom="K")
    assert (kept["b"], type(kept["r"])) == (1, LeftOut)
    each = (
        'each = "m[]"\n' + HEAD + '"*" = { path = ".v", name = ".n", unit_path = ".u", units = { A = 1, mA = 0.001 } }'
    )
    elements = [{"n": "a", "v": 2, "u": "A"}, {"n": "b", "v": 3, "u": "mA"}, {"n": "c", "v": 3}]
    found = mapped(each, json.dumps({"s": "s", "t": "2026-03-01T00:00:00Z", "m": elements}))
    assert found.events[0].readings == {"a": 2, "b": 0.003}
    assert [problem.detail for problem in found.problems] == [
        "m[2]: readings.* is '3' without a unit; its units are A, mA"
    ]


def test_a_unit_that_changed(mapped):
    """A condition on the event's time divides the readings before a time from those from then on, of elements too."""
    path = '{{ path = ".v", scale = {}, when = {{ path = "$time", {} }} }}'
    rules = path.format(0.1, 'before = "2026-03-01"'), path.format(1, 'from = "2026-03-01T00:00:00Z"')
    text = f'each = "m[]"\n{HEAD}r = [{", ".join(rules)}]'.replace('"t"', '".t"')
    times = ["2026-02-28T23:59:59.999999Z", "2026-03-01T00:00:00Z"]
    found = mapped(text, json.dumps({"s": "s", "m": [{"t": time, "v": 50} for time in times]})).events
    assert [made.readings["r"] for made in found] == [5, 50]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ('{ path = "v", unit_path = "u" }', "r.unit_path: it needs units"),
        ('{ path = "v", units = { W = 1 }, scale = 2 }', "r.scale: units has it for each unit"),
        ('{ path = "v", units = { W = { factor = 2 } } }', "r.units.W.factor: there is no such key"),
        ('{ path = "v", units = {} }', "r.units: it takes 1 to 100 units"),
        ('{ path = "v", unit = "" }', "r.unit: it is '', not 1 to 32 printable characters"),
        ('{ path = "v", units = { W = 1 }, unit_path = "u.*" }', "r.unit_path: 'u.*' has a star"),
        ('{ path = "v", when = { path = "$time" } }', "r.when: a condition on $time has from, before"),
        ('{ path = "v", when = { path = "$time", from = "now" } }', "r.when.from: 'now' is not an ISO 8601 time"),
        ('"$time"', "r: '$time' is none of $publish_time"),
    ],
)
def test_wrong_units_and_times(mapper, entry, problem):
    """One line names the key."""
    with pytest.raises(MappingError) as error:
        mapper(HEAD + "r = " + entry)
    assert str(error.value).startswith(f"readings.{problem}")


def test_wrong_places_of_units_and_times(mapper, types):
    """A star is of several units, a number has none behind it, and the event's time decides about no message."""
    with pytest.raises(MappingError, match=r"readings.\*.unit_path: a star has values of several units"):
        mapper(HEAD + '"*" = { path = "v.*", units = { W = 1 }, unit_path = "u" }')
    with pytest.raises(MappingError, match=r"skip_if: \$time is the event's time, for the when of"):
        mapper('skip_if = { path = "$time", before = "2026-03-01" }\n' + HEAD + 'r = "v"')
    with pytest.raises(MappingError, match=r"readings\.r\.units: double is no text with a unit; name the unit's field"):
        mapper(HEAD.replace("json", "fleet.Kinds").replace('"s"', '"text"') + 'r = { path = "f64", units = { W = 1 } }')


def test_a_hostile_unit_takes_no_time(readings):
    """Python's normalization of a text is quadratic; no unit is as long."""
    with pytest.raises(BadData, match="its units are"):
        readings(HEAT, v=1, uom="\u0301\u0316" * 1_000_000)
