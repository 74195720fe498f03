"""What a mapping makes of one value."""

import json
from datetime import UTC, datetime

import pytest

from tests.core.decoding.mapping.values.heads import HEAD, KINDS, NOW


@pytest.fixture
def reading(mapped):
    """What a source makes of a JSON value; None if it is not set."""

    def of(value, source='"v"', options=""):
        text = options + HEAD + f"[readings]\nr = {source}\n"
        return mapped(text, json.dumps({"s": "s", "v": value}), **NOW).events[0].readings.get("r")

    return of


@pytest.fixture
def kind(mapped):
    """What a source makes of a field of ``fleet.Kinds``, as a reading or as metadata."""

    def of(field, value, source=None, table="readings"):
        text = KINDS + f"[readings]\n[{table}.r]\n{source or f'path = {field!r}'}\n"
        made = mapped(text, {field: value} if value is not None else {}, **NOW).events[0]
        return getattr(made, table).get("r")

    return of


@pytest.fixture
def time(mapped):
    """The event time that a source makes of a JSON value, or of a field of ``fleet.Kinds``; None if it is not set."""

    def of(value, source='{ path = "v", unit = "s" }', options=""):
        text = options + HEAD.replace('time = "$publish_time"', f'time = [{source}, "$publish_time"]') + "[readings]\n"
        at = mapped(text, json.dumps({"s": "s", "v": value}), publish_time=datetime.fromtimestamp(0, UTC)).events[0][1]
        return at or None

    return of
