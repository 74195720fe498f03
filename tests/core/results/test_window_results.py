"""Results of windows as messages."""

import json

import pytest
from google.protobuf import json_format

from pipeline.core.results import window_results
from pipeline.core.results.window_results import (
    ENCODINGS,
    RESULT_TYPE,
    PaneResult,
    batches_of,
    message_of,
    read_batch,
    result_json,
)
from pipeline.core.schema.declared_metric import DeclaredMetric
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.sketch import Sketch
from pipeline.core.statistics.window_stats import MetricStats, WindowStats
from pipeline.proto.window_result_pb2 import WindowResult

SCHEMA = parse_schema(
    '[policies]\nraw = "never"\n[rate]\nevery = "15m"\n[tiers]\n1h = "hours"\n"1d@Europe/Berlin" = "days"\n'
    '[statistics]\nu = ["p50", "max", "last_time"]\n'
)
START_US = 1_771_322_400_000_000  # 2026-02-17T10:00:00Z


def stats_of(*values, metric="t"):
    stats = WindowStats()
    for value in values:
        stats.add({metric: value})
    return stats


def published(*results, batches=7):
    (batch,) = batches_of(results, SCHEMA.tiers, 1_771_300_000_000_000, batches)
    return list(read_batch(batch))


def test_a_message():
    """The message names the window, its statistics and its kind; the attributes tell what it is without parsing it."""
    (serialized,) = published(PaneResult(0, "s-1", START_US, stats_of(1.0, 2.5), "on_time"))
    message = message_of(serialized, "protobuf")
    event_id = "agg#hourly#s-1#2026-02-17T10/1771300000000000-000000000007"
    assert message.attributes == {
        "message_type": RESULT_TYPE,
        "sensor_id": "s-1",
        "tier": "1h",
        "kind": "on_time",
        "event_time": "2026-02-17T10:00:00Z",
        "event_id": event_id,
    }
    assert result_json(message.data) == {
        "sensor_id": "s-1",
        "tier": "1h",
        "window_start": "2026-02-17T10:00:00Z",
        "window_end": "2026-02-17T11:00:00Z",
        "kind": "on_time",
        "reading_count": 2,
        "metrics": {
            "t": {"count": 2, "coverage": 0.5, "sum": 3.5, "min": 1.0, "max": 2.5, "avg": 1.75, "stddev": 0.75}
        },
        "event_id": event_id,
        "version": 4,
    }


def test_a_day_of_a_calendar():
    """It begins and ends where its time zone's does."""
    (serialized,) = published(PaneResult(1, "s", START_US - 11 * 3_600_000_000, stats_of(1.0), "late"))
    found = result_json(serialized)
    assert (found["tier"], found["window_start"], found["window_end"]) == (
        "1d@Europe/Berlin",
        "2026-02-16T23:00:00Z",
        "2026-02-17T23:00:00Z",
    )


def test_declared_statistics():
    """A message has the row's statistics as numbers. What the row does not tell, and what only merges, is left out."""
    stats = stats_of(1.0, metric="u")
    stats.metrics["u"].parts = {"last": (START_US + 5, 1.0)}
    (serialized,) = published(PaneResult(0, "s", START_US, stats, "late"))
    assert result_json(serialized)["metrics"] == {
        "u": {"count": 1, "coverage": 0.25, "max": 1.0, "last": 1.0, "last_time": START_US + 5}
    }


def test_json_is_protobufs_mapping():
    """JSON has every field by its name in the protobuf file, also one that is infinite, and protobuf reads it."""
    stats = stats_of(1.7e308, 1.7e308)
    stats.metrics["t"].total = float("inf")
    (serialized,) = published(PaneResult(0, "s", START_US, stats, "late"))
    declared = {"t": DeclaredMetric("°C", "Hall")}
    data = message_of(serialized, "json", declared).data
    result = WindowResult.FromString(message_of(serialized, "protobuf", declared).data)
    assert json.loads(data) == json_format.MessageToDict(
        result, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    assert b"Infinity" in data
    assert json_format.Parse(data, WindowResult()) == result
    assert result_json(data) == result_json(result.SerializeToString())
    assert result_json(data)["metrics"]["t"]["sum"] == "inf"


def test_without_a_rate():
    """A schema that expects no number of readings gives no coverage, in either encoding."""
    (batch,) = batches_of([PaneResult(0, "s", START_US, stats_of(1.0), "late")], parse_schema("").tiers, START_US, 0)
    (serialized,) = read_batch(batch)
    for encoding in ENCODINGS:
        assert "coverage" not in result_json(message_of(serialized, encoding).data)["metrics"]["t"]
    assert b"coverage" not in message_of(serialized, "json").data


_GOOD = (
    b'{"reading_count":%s,"metrics":[{"metric":"t","count":%s,"statistics":[]}],"sensor_id":%s,"tier":"1h",'
    b'"window_start":"x","window_end":"x","kind":"late","event_id":"x"}'
)


def test_the_unit_and_the_label():
    """Messages have those that the schema declares, in both encodings; other metrics have none."""
    schema = parse_schema('[metrics.t]\nunit = "°C"\nlabel = "Hall"')
    (batch,) = batches_of([PaneResult(0, "s", START_US, stats_of(1.0), "late")], schema.tiers, START_US, 0)
    (serialized,) = read_batch(batch)
    for encoding in ENCODINGS:
        metric = result_json(message_of(serialized, encoding, schema.declared).data)["metrics"]["t"]
        assert (metric["unit"], metric["label"]) == ("°C", "Hall")
        assert not {"unit", "label"} & result_json(message_of(serialized, encoding).data)["metrics"]["t"].keys()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff", b"{", b"[]", b"{}", b'{"metrics":7}', b"{\xff", b'{"reading_count":"x"}', b'{"a":' * 100_000,
        _GOOD % (b"1e400", b"1", b'"a"'), _GOOD % (b"1", b"1e400", b'"a"'), _GOOD % (b"-1", b"1", b'"a"'),
        _GOOD % (b"9" * 5000, b"1", b'"a"'), _GOOD % (b"1", b"1", b"[1]"),
    ],
)  # fmt: skip
def test_other_messages(data):
    """What is no result is refused in one line."""
    with pytest.raises(ValueError, match=r"^the message is no tidetable\.v1\.WindowResult$"):
        result_json(data)


def test_messages_of_earlier_releases():
    """They have neither a coverage nor a version, and are read without."""
    found = result_json(_GOOD % (b"1", b"1", b'"a"'))
    assert (found["metrics"], "version" in found) == ({"t": {"count": 1}}, False)


@pytest.mark.parametrize("names", [None, [f"p{number}.123" for number in range(10, 42)]], ids=["default", "most"])
def test_the_widest_window(names):
    """A result of as many metrics as a row may have, with the longest names, fits in a message: 10 MB."""
    declared = "" if names is None else f'"*" = {json.dumps(names)}\n'
    rate = '[rate]\nevery = "7s"\n'
    schema = parse_schema(f'[policies]\nraw = "never"\n{rate}[tiers]\n1h = "hours"\n[statistics]\n{declared}')
    stats, sketch = WindowStats(), Sketch.of([1.0123456789012345])
    for number in range(schema.tiers[0].statistics.most_metrics):
        metric = stats.metrics[f"{number:0128}"] = MetricStats.of((0.1, 0.2, 0.4))
        metric.parts = {"sketch": sketch}
    stats.events = 3
    (batch,) = batches_of([PaneResult(0, "s" * 256, START_US, stats, "late")], schema.tiers, START_US, 0)
    (serialized,) = read_batch(batch)
    assert len(message_of(serialized, "json").data) < 9_500_000


def test_large_firings(monkeypatch):
    """The results of a firing are passed on in batches of limited size, all with the same number."""
    monkeypatch.setattr(window_results, "_MOST_BYTES", 1000)
    results = [PaneResult(0, f"s{n}", START_US, stats_of(1.0), "late") for n in range(50)]
    batches = list(batches_of(results, SCHEMA.tiers, 5, 3))
    assert 1 < len(batches) < 50
    assert max(map(len, batches)) < 1500
    ids = [WindowResult.FromString(each).event_id for batch in batches for each in read_batch(batch)]
    assert [each.partition("#2026")[0] for each in ids] == [f"agg#hourly#s{n}" for n in range(50)]
    assert {each.partition("/")[2] for each in ids} == {"0000000000000005-000000000003"}


def test_batches_of_another_release():
    """They are refused, as other state is."""
    with pytest.raises(ValueError, match="another release"):
        list(read_batch(b"\x09abc"))
