"""Messages that a mapping would multiply: what is above elements is read once, and texts and names are bounded."""

import json

import pytest

from pipeline.core.decoding.mapping.values import conditions
from pipeline.core.decoding.mapping.values.texts import plainly
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
    monkeypatch.setattr(conditions, "plainly", lambda value: looked_at.append(value) or plainly(value))
    tags = [{"key": "other"}] * 50 + [{"key": "site", "value": "roof"}]
    elements = [{"n": "", "v": 1}] * 100
    result = mapped(JSON + where, json.dumps({"id": "a", "t": T, "tags": tags, "e": elements}))
    assert [made.readings for made in result.events] == [{"v": 1}]
    assert len(looked_at) == len(tags)


def test_a_problem_above_the_elements_is_one_of_each(mapped):
    """What fails above the elements is reported for each of them."""
    text = JSON.replace('"id"', '"{id:d}"') + 'each = "e[]"\n[readings]\nv = ".v"\n'
    result = mapped(text, json.dumps({"id": "a", "t": T, "e": [{"v": 1}, {"v": 2}]}))
    assert [problem.reason for problem in result.problems] == [Reason.NOT_A_NUMBER] * 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (JSON.replace('"id"', '"{site}{.n}"'), Reason.INVALID_SENSOR_ID),
        (JSON + 'metadata = { m = "{site}{.n}" }\n', Reason.METADATA_TOO_LONG),
    ],
)
def test_a_text_that_is_composed_for_each_element_is_bounded(text, reason, mapped):
    """A long text above the elements is refused before it is copied into each."""
    text += 'each = "e[]"\n[readings]\nv = ".v"\n'
    result = mapped(text, json.dumps({"id": "a", "t": T, "site": "s" * 4096, "e": [{"n": "1", "v": 1}]}))
    assert [problem.reason for problem in result.problems] == [reason]
    assert not result.events


@pytest.mark.parametrize("values", [{"1": 1}, {"1": {"2": 1}}])
def test_a_long_key_is_not_copied_for_each_value_below_it(values, mapped):
    """Names are cut, so that a long key costs its length once."""
    result = mapped(JSON + '[readings]\n"*" = "o.**"\n', json.dumps({"id": "a", "t": T, "o": {"k" * 100_000: values}}))
    (made,) = result.events
    assert all(128 < len(name) < 1100 for name in made.readings)
    assert len(made.readings) == 1


def test_metadata_above_the_elements_that_is_too_long_is_told_once(mapped):
    """Not measured again for each element."""
    text = JSON + 'each = "e[]"\n[readings]\nv = ".v"\n[metadata]\nm = "m"\n'
    with pytest.raises(BadData, match="METADATA_TOO_LONG"):
        mapped(text, json.dumps({"id": "a", "t": T, "m": "x" * 5000, "e": [{"v": 1}, {"v": 2}]}))
