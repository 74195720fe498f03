"""What a mapping makes of a message, whatever its type."""

import json
from datetime import UTC, datetime

import pytest

from pipeline.core.decoding.file_names import file_attributes
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.events.reasons import BadData, Reason

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000
JSON = 'message = "json"\nsensor = "id"\ntime = { path = "t", unit = "s" }\n'


def events(mapped):
    assert not mapped.problems
    return [made[:4] for made in mapped.events]


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


def test_event_id_and_what_pub_sub_adds(mapped):
    """Attributes, the ordering key, the message id and the publish time are values like others."""
    text = (
        'message = "json"\nsensor = "$ordering_key"\ntime = { path = "@sent", unit = "ms" }\nevent_id = "$message_id"\n'
    )
    text += '[readings]\nv = "v"\n[metadata]\npublished = "$publish_time"\n'
    published = datetime(2026, 2, 17, 11, tzinfo=UTC)
    result = mapped(text, '{"v": 1}', {"sent": f"{T}250"}, message_id="m1", publish_time=published, ordering_key="k")
    assert result.events == [("k", T_US + 250_000, {"v": 1}, {"published": "2026-02-17T11:00:00Z"}, "m1")]


def test_the_name_of_a_file(mapped):
    """It is text like other values: of the sensor, the time, metadata and conditions, also of elements."""
    text = (
        'message = "json"\neach = "rows[]"\nsensor = "{$file.folder:upper}/{$file.stem:id}"\nevent_id = "$file"\n'
        'time = { path = "{$file.stem} {.clock}", format = "t %Y-%m-%d %H:%M" }\n'
        'skip_if = { path = "$file", glob = "*.pb" }\n[readings]\nv = ".v"\n'
        '[metadata]\nstem = { path = "$file.stem", when = { path = "$file.folder", is = "north" } }\n'
    )
    payload = '{"rows": [{"clock": "10:30", "v": 1}]}'
    (made,) = mapped(text, payload, file_attributes("in/north/t 2026-02-17.csv.gz")).events
    assert made == ("NORTH/t%202026-02-17", T_US, {"v": 1}, {"stem": "t 2026-02-17"}, "in/north/t 2026-02-17.csv.gz")
    (other,) = mapped(text, payload, file_attributes("in/south/t 2026-02-17.csv")).events
    assert (other.sensor_id, other.metadata) == ("SOUTH/t%202026-02-17", {})
    assert mapped(text, payload, file_attributes("in/north/a.pb")).skipped == 1
    (problem,) = mapped(text, payload).problems
    assert problem.reason is Reason.MISSING_SENSOR_ID


def test_elements_with_other_ids_are_other_events(mapped):
    """Elements of one time are one event only if their event ids are the same."""
    text = JSON + 'each = "e[]"\nevent_id = ".i"\n[readings]\n"*" = ".v.*"\n'
    elements = '[{"i": "1", "v": {"a": 1}}, {"i": "2", "v": {"a": 2}}, {"i": "1", "v": {"b": 3}}]'
    result = mapped(text, f'{{"id": "s", "t": 1771324200, "e": {elements}}}')
    assert result.events == [("s", T_US, {"a": 1, "b": 3}, {}, "1"), ("s", T_US, {"a": 2}, {}, "2")]
    assert not result.problems


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
