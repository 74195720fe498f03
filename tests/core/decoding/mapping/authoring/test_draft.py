"""Drafts of mappings: they always compile, and guess right where names and types are plain."""

import tomllib

import pytest
from hypothesis import given

from pipeline.core.decoding.mapping.authoring.check import check
from pipeline.core.decoding.mapping.authoring.draft import draft, draft_of_json
from pipeline.core.decoding.mapping.authoring.guesses import unit_of
from pipeline.core.decoding.mapping.authoring.places import Place
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.mapping.values.nodes import Leaf
from tests.core.decoding.mapping import generated
from tests.core.decoding.mapping.protos import descriptor_set


def drafted(definition: str, message: str = "acme.Report") -> dict:
    """Returns the TOML document of a draft, which compiles."""
    types = Descriptors(
        descriptor_set(
            'package acme;\nimport "google/protobuf/struct.proto";\nimport "google/protobuf/timestamp.proto";\n'
            f'import "google/protobuf/wrappers.proto";\n{definition}'
        )
    )
    text = draft(types, message)
    report = check(parse_mapping(text), types)
    assert (report.problems, report.same_name) == ([], [])
    return tomllib.loads(text)


def test_a_flat_message():
    """The id is the sensor, the time has its unit, numbers are readings, text and enums are metadata."""
    assert drafted(
        """
        enum Mode { OFF = 0; ON = 1; }
        message Report {
          uint64 sequence = 1; string serialNumber = 2; fixed64 timestamp_us = 3; optional float celsius = 4;
          google.protobuf.BoolValue door_open = 5; Mode mode = 6; string firmware = 7; bytes raw = 8;
          int32 uptime_s = 9;
        }
        """
    ) == {
        "message": "acme.Report",
        "sensor": "serialNumber",
        "time": [{"path": "timestamp_us", "unit": "us"}, "$publish_time"],
        "shortest_floats": True,
        "readings": {"celsius": "celsius", "door_open": "door_open", "uptime_s": "uptime_s"},
        "metadata": {"mode": "mode", "firmware": "firmware"},
    }


def test_nested_messages_maps_and_structs():
    """Names are the fields' own if those differ; maps and Structs are taken by a star, numbers and text each."""
    assert drafted(
        """
        message Device { string dev_eui = 1; string name = 2; }
        message Level { double mean = 1; double max = 2; }
        message Report {
          Device device = 1; google.protobuf.Timestamp time = 2; Level sound = 3; Level light = 4; double weight = 5;
          map<string, double> values = 6; map<string, string> tags = 7; google.protobuf.Struct extra = 8;
          repeated double samples = 9;
        }
        """
    ) == {
        "message": "acme.Report",
        "sensor": "device.dev_eui",
        "time": ["time", "$publish_time"],
        "rewrite_names": True,
        "readings": {
            "sound.mean": "sound.mean",
            "sound.max": "sound.max",
            "light.mean": "light.mean",
            "light.max": "light.max",
            "weight": "weight",
            "*": ["values.*", "extra.**"],
            "samples.*": "samples.*",
        },
        "metadata": {"name": "device.name", "*": ["tags.*", "extra.**"]},
    }


def test_elements_with_a_time():
    """Elements with a time of their own become events of the message's sensor."""
    document = drafted(
        """
        message Sample { sint64 at_ms = 1; double celsius = 2; string quality = 3; }
        message Report { string device_id = 1; repeated Sample samples = 2; string site = 3; int32 battery = 4; }
        """
    )
    assert document == {
        "message": "acme.Report",
        "each": "samples[]",
        "sensor": "device_id",
        "time": {"path": ".at_ms", "unit": "ms"},
        "readings": {"celsius": ".celsius"},
        "metadata": {"quality": ".quality", "site": "site"},
    }


def test_elements_of_the_same_form_and_name(types):
    """Points of gauges and of sums are taken; the sensor is an attribute, not the metric's unit."""
    document = tomllib.loads(draft(types, "telemetry.Request"))
    metric = "resources[].scopes[].metrics[]"
    assert document["each"] == [f"{metric}.gauge.points[]", f"{metric}.sum.points[]"]
    assert document["sensor"] == [
        f"resources[].resource.attributes[key={key}].value.text"
        for key in ("service.instance.id", "host.name", "service.name")
    ]
    assert document["readings"] == {"*": {"name": f"{metric}.name", "first": [".as_double", ".as_int"]}}
    assert document["metadata"]["unit"] == f"{metric}.unit"


def test_elements_with_an_id():
    """Elements with an id, and no time, become sensors below the message's own."""
    document = drafted(
        """
        message Probe { uint32 port = 1; double celsius = 2; }
        message Report { string serial = 1; int64 timestamp = 2; repeated Probe probes = 3; }
        """
    )
    assert (document["each"], document["sensor"]) == ("probes[]", "{serial}/{.port}")
    assert document["time"] == [{"path": "timestamp", "unit": "ms"}, "$publish_time"]
    assert document["readings"] == {"celsius": ".celsius"}


def test_elements_of_a_name_and_a_value():
    """Elements that name their reading are readings under that name, whichever type the value has."""
    document = drafted(
        """
        message Metric {
          string name = 1; uint64 timestamp = 2; oneof value { double double_value = 3; int64 int_value = 4; }
        }
        message Group { repeated Metric metrics = 1; string station_id = 2; }
        message Report { repeated Group groups = 1; }
        """
    )
    assert document == {
        "message": "acme.Report",
        "each": "groups[].metrics[]",
        "sensor": "groups[].station_id",
        "time": [{"path": ".timestamp", "unit": "ms"}, "$publish_time"],
        "rewrite_names": True,
        "readings": {"*": {"name": ".name", "first": [".double_value", ".int_value"]}},
    }


def test_series_of_protobuf():
    """An offset is a plus, a step gives scalars their times, and lists with times are a zip."""
    document = drafted(
        """
        message Sample { uint32 offset_ms = 1; float celsius = 2; }
        message Hello { string device_id = 1; }
        message Ack { string device_id = 1; }
        message Report {
          string id = 1; fixed64 base_time_ms = 2; repeated Sample samples = 3;
          oneof body { Hello hello = 4; Ack ack = 5; }
        }
        """
    )
    assert (document["each"], document["sensor"]) == ("samples[]", "id")
    plus = {"path": ".offset_ms", "unit": "ms"}
    assert document["time"] == {"path": "base_time_ms", "unit": "ms", "plus": plus}
    assert document["readings"] == {"celsius": ".celsius"}
    document = drafted(
        "message Report { string serial = 1; fixed64 start_us = 2; int32 interval_ms = 3; repeated sint32 ecg = 4; }"
    )
    assert document["each"] == "ecg[]"
    assert document["time"] == {"path": "start_us", "unit": "us", "step": {"path": "interval_ms", "unit": "ms"}}
    assert document["readings"] == {"ecg": "."}
    document = drafted("message Report { string id = 1; repeated int64 time_ms = 2; repeated double load = 3; }")
    assert document["zip"] == ["time_ms[]", "load[]"]
    assert document["time"] == {"path": ".time_ms", "unit": "ms"}


def test_series_of_json():
    """Lists of one length are a zip, all of an object or by name; a span without a unit is taken for seconds."""
    hourly = {"time": ["2026-02-17T10:00", "2026-02-17T11:00"], "rain": [0, None], "temp": [1.5, 2]}

    def drafted_of(value: object) -> dict:
        return tomllib.loads(draft_of_json([value], "a sample"))

    document = drafted_of({"id": "a", "hourly": hourly, "hourly_units": {"time": "iso8601"}})
    assert (document["zip"], document["time"]) == ("hourly.*[]", ".time")
    assert document["readings"] == {"rain": ".rain", "temp": ".temp"}
    document = drafted_of([{"id": "a", "hourly": {**hourly, "codes": [1]}}])
    assert document["zip"] == [f"[].hourly.{name}[]" for name in hourly]
    document = drafted_of({"id": "a", "hourly": hourly, "daily": {"time": ["2026-02-17"], "sun": [5]}})
    assert (document["zip"], document["readings"]) == ("hourly.*[]", {"rain": ".rain", "temp": ".temp"})
    document = drafted_of({"device": "d", "t": "2026-02-17T10:00:00Z", "step": 60, "v": [1, 2, 3]})
    assert document["each"] == "v[]"
    assert document["time"] == {"path": "t", "step": {"path": "step", "unit": "s"}}
    document = drafted_of({"device": "d", "ts": 1771324200, "step": 60, "x": [1, 2, 3], "y": [1, 2, 3]})
    assert (document["zip"], document["readings"]) == ("*[]", {"x": ".x", "y": ".y"})


def test_elements_that_are_no_events():
    """Elements without a time or an id are readings by their position."""
    document = drafted("message Cell { double volts = 1; } message Report { string id = 1; repeated Cell cells = 2; }")
    assert "each" not in document
    assert document["readings"] == {"cells.*.volts": "cells.*.volts"}


def test_nothing_to_guess():
    """A message of bytes alone gets a mapping that compiles, and says which bytes may contain messages."""
    types = Descriptors(descriptor_set("package acme; message Report { bytes payload = 1; Report inner = 2; }"))
    text = draft(types, "acme.Report")
    assert check(parse_mapping(text), types).problems == []
    assert 'sensor = "@device_id" # guess: no field looks like a sensor' in text
    assert 'time = "$publish_time" # guess' in text
    assert text.endswith("\n# If these contain messages, name their types under [types]: payload\n")


def test_units_by_name():
    """A time's unit is that of its name; without one, it depends on the width."""
    for name, unit in (("at_ms", "ms"), ("timeUnixNano", "ns"), ("ts_us", "us"), ("time_s", "s")):
        assert unit_of(Place((name,), Leaf("int", 64))) == (unit, True)
    assert [unit_of(Place(("ts",), Leaf("int", bits))) for bits in (32, 64)] == [("s", False), ("ms", False)]


NAMES = (
    "serial", "name", "key", "time", "timestamp", "at_ms", "created_at", "value", "int_value", "temperature",
    "metrics", "samples", "tags", "extra", "status", "deviceId", "_x", "message", "max",
)  # fmt: skip


def test_any_name_in_json():
    """Names may have characters beyond the basic plane, which TOML writes in its own way."""
    mapping = parse_mapping(draft_of_json([{"id": "a", "data": {"\U0001f321": 1, "\u00e9 C": 2}}], "a sample"))
    assert {str(entry.value[0].path) for entry in mapping.readings} == {'data."\U0001f321"', 'data."\u00e9 C"'}


@given(generated.types(NAMES))
def test_every_draft_compiles(types: Descriptors):
    """Whatever the type, its draft passes the check, and gives no name twice."""
    report = check(parse_mapping(draft(types, generated.ROOT)), types)
    assert (report.problems, report.same_name) == ([], [])


@pytest.mark.parametrize(
    "value", [{"id": "a", "soil-temp": 21.5, "gps": {"lat": 1}}, [[1_771_324_200, 21.5]], [21.5], 5]
)
def test_any_json_has_a_draft(value):
    """Names that are no identifiers, and documents without any name, are no crash."""
    assert 'message = "json"' in draft_of_json([value], "a sample")
