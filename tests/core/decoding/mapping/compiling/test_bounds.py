"""Messages that a mapping would multiply: what is above elements is read once, and texts and names are bounded."""

import contextlib
import json
import tracemalloc

import pytest

from pipeline.core.decoding.mapping.compiling import resolve
from pipeline.core.decoding.mapping.values import conversions
from pipeline.core.decoding.mapping.values.conversions import plainly
from pipeline.core.decoding.message_types import refused_once
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason

JSON = 'message = "json"\nsensor = "id"\ntime = { path = "t", unit = "s" }\n'
T = 1771324200


@pytest.mark.parametrize(
    "where",
    [
        'each = "e[]"\n[readings]\nv = ".v"\n[metadata]\nsite = "{.n}{tags[key=site].value}"\n',
        'each = "e[]"\n[readings]\nv = { path = ".v", when = { path = "tags[key=site].value", is = "roof" } }\n',
    ],
)
def test_a_search_above_the_elements_is_made_once(where, mapped, monkeypatch):
    """A selector above the elements looks at each tag once, not once for each element."""
    looked_at = []
    monkeypatch.setattr(conversions, "plainly", lambda value: looked_at.append(value) or plainly(value))
    tags = [{"key": "other"}] * 50 + [{"key": "site", "value": "roof"}]
    elements = [{"n": "", "v": 1}] * 100
    result = mapped(JSON + where, json.dumps({"id": "a", "t": T, "tags": tags, "e": elements}))
    assert [made.readings for made in result.events] == [{"v": 1}]
    assert looked_at.count("other") == len(tags) - 1


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (JSON.replace('"id"', '"{id:d}"'), [Reason.NOT_A_NUMBER] * 2),
        (JSON.replace('"id"', '"{site}{.v}"'), [Reason.INVALID_SENSOR_ID] * 2),
        (JSON + 'metadata = { m = "{site}{.v}" }\n', [Reason.METADATA_TOO_LONG] * 2),
        (JSON + 'metadata = { m = "site" }\n', None),  # read, and thus refused, above the elements
    ],
)
def test_a_problem_above_the_elements(text, reasons, mapped):
    """What fails above the elements is a problem of each; a long text is refused before it is copied into each."""
    text += 'each = "e[]"\nreadings.v = ".v"\n'
    payload = json.dumps({"id": "a", "t": T, "site": "s" * 4097, "e": [{"v": 1}, {"v": 2}]})
    if reasons is None:
        with pytest.raises(BadData, match="METADATA_TOO_LONG"):
            mapped(text, payload)
        return
    result = mapped(text, payload)
    assert ([problem.reason for problem in result.problems], result.events) == (reasons, [])


@pytest.mark.parametrize("values", [{"1": 1}, {"1": {"2": 1}}])
def test_a_name_that_is_too_long_is_refused_at_once(values, mapped):
    """A long key is not copied for each value below it."""
    document = {"id": "a", "t": T, "o": {"k" * 100_000: values}}
    with pytest.raises(BadData, match="has more than 128 characters") as error:
        mapped(JSON + '[readings]\n"*" = "o.**"\n', json.dumps(document))
    assert error.value.reason is Reason.INVALID_METRIC_NAME


EACH = JSON + 'each = "e[]"\n'
HEAD = f'{{"id":"a","t":{T},'
TIMES = "".join(f"{time}," for time in range(T, T + 2000))
MULTIPLIED = {
    "arrays below many names": (
        JSON + 'rewrite_names = true\nreadings = { v = "t" }\nmetadata = { "*" = "o.**" }\n',
        f'{HEAD}"o":{"[" * 300 + "[]," * 20_000 + "[]" + "]" * 300}}}',
    ),
    "a name for each element": (
        EACH.replace('"t"', '"."') + '[readings]\n"*" = { path = ".", name = "n" }\n',
        f'{HEAD}"n":"{"n" * 50_000}","e":[{TIMES}1]}}',
    ),
    "values for each element": (
        EACH.replace('"t"', '"."') + '[readings]\n"*" = "o.*"\nv = "."\n',
        f'{HEAD}"o":{json.dumps({f"n{index}": 1 for index in range(900)})},"e":[{TIMES}1]}}',
    ),
    "a text for each element": (
        EACH.replace('"t"', '"."') + 'readings = { v = "." }\nmetadata = { m = "{n} {.}" }\n',
        f'{HEAD}"n":"{"n" * 4000}","e":[{TIMES}1]}}',
    ),
    "a list beside many that are missing": (
        JSON + f"zip = {['e[]', *(f'x{index}[]' for index in range(500))]}\nreadings = {{ v = '.e' }}\n",
        f'{HEAD}"e":[{TIMES}1]}}',
    ),
    "a problem of each element": (EACH + 'readings = { v = "." }\n', f'{HEAD}"e":[{"{}," * 20_000}{{}}]}}'),
    "JSON in text, read by many paths": (
        JSON + "types = { p = 'json' }\n[readings]\n" + "".join(f'v{index} = "p[{index}]"\n' for index in range(50)),
        f'{HEAD}"p":"[{"1," * 10_000}1]"}}',
    ),
}


@pytest.mark.parametrize("case", MULTIPLIED)
def test_memory_is_a_small_multiple_of_the_message(case, mapper):
    """What the message has once is not held once for each element, path or problem."""
    text, payload = MULTIPLIED[case]
    compiled, message = mapper(text), Message(payload.encode(), {})
    tracemalloc.start()
    with contextlib.suppress(BadData):
        compiled.map(message, compiled.parse(message), LATEST_US)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(payload) + 1_000_000


@pytest.mark.parametrize("star", ['"*" = "o.**"', '"*" = "o.*"', '"*" = { path = "o.*.v" }'])
def test_a_star_goes_through_at_most_100_000_elements(star, mapped):
    """Whether or not any of them is a reading."""
    document = {"id": "a", "t": T, "o": [{}] * 100_000}
    assert not mapped(f"{JSON}[readings]\n{star}\n", json.dumps(document)).events[0].readings
    document["o"].append({})
    with pytest.raises(BadData, match="a star stands for more than 100,000 elements") as error:
        mapped(f"{JSON}[readings]\n{star}\n", json.dumps(document))
    assert error.value.reason is Reason.TOO_MANY_ELEMENTS


def test_a_star_above_the_elements_is_gone_through_once(mapped, monkeypatch):
    """Also if a condition on each element decides whether its values count."""
    seen = []
    monkeypatch.setattr(resolve, "bounded", lambda label: seen.append(label) or label)
    text = EACH + '[readings]\n"*" = { path = "o.*", when = { path = ".v", is = 1 } }\nv = ".v"\n'
    text = text.replace('"t"', '".t"')
    elements = [{"v": index % 2, "t": T + index} for index in range(10)]
    result = mapped(text, json.dumps({"id": "a", "o": {"x": 1, "y": 2}, "e": elements}))
    assert [made.readings for made in result.events] == [{"v": 0}, {"v": 1, "x": 1, "y": 2}] * 5
    assert seen == ["x", "y"]


def test_problems_beyond_a_thousand_are_not_kept(mapped):
    """The detail of the dead letter says so."""
    result = mapped(EACH + 'readings = { v = ".v" }\n', json.dumps({"id": "a", "t": T, "e": [{"v": ""}] * 5000}))
    assert len(result.problems) == 1001
    ((_, problem),) = refused_once(Message(b"", {}), result.problems)
    assert problem.detail.endswith("; and over 999 more problems")


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
