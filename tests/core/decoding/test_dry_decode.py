"""What a job would make of a message."""

from pipeline.core.decoding.dry_decode import Trial, Trials
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import EVENT_TYPE, MESSAGE_TYPE, Message, sensor_event
from pipeline.core.notation.times import parse_time
from tests.core.decoding.mapping.protos import descriptor_set

TYPES = descriptor_set(
    """package acme;
import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";
message Report { string id = 1; google.protobuf.Timestamp at = 2; repeated double c = 3; google.protobuf.Any more = 4; }
"""
)
AT = parse_time("2026-02-17T10:30:00Z")
REPORT = MappedType("report.toml", 'message = "acme.Report"\nsensor = "id"\ntime = "at"\nreadings.c = "c[0]"', TYPES)
PLAIN = 'message = "json"\nsensor = "id"\ntime = "at"\nreadings.t = "t"'


def payload(**fields) -> bytes:
    return REPORT.compile().message_class(**fields).SerializeToString()


def tried(data: bytes, *mapped: MappedType, **attributes: str) -> Trial:
    return Trials(mapped).of(Message(data, attributes), LATEST_US)


def test_events_too_late():
    """An event later than allowed is refused, as in the job."""
    data = payload(id="a", at={"seconds": AT // 1_000_000}, c=[1.5])
    trial = Trials([REPORT]).of(Message(data, {}), AT - 1)
    assert [problem.reason for problem in trial.problems] == ["EVENT_TIME_IN_FUTURE"]


def test_what_json_cannot_express():
    """A message that protobuf's JSON can't express is shown as text."""
    trial = tried(payload(id="a", at={"seconds": 1 << 60}), REPORT, message_type="acme.Report")
    assert trial.message == 'id: "a"\nat {\n  seconds: 1152921504606846976\n}\n'
    trial = tried(payload(id="a", more={"type_url": "x/acme.Unknown"}), REPORT, message_type="acme.Report")
    assert trial.message == 'id: "a"\nmore {\n  type_url: "x/acme.Unknown"\n}\n'


def test_a_single_mapping_reads_messages_without_a_type():
    """One mapping is tried on messages without a type, although a job would refuse them; two are not."""
    data = payload(id="a", at={"seconds": AT // 1_000_000}, c=[1.5])
    assert [(trial.type, trial.is_assumed) for trial in (tried(data, REPORT),)] == [("acme.Report", True)]
    trial = tried(data, REPORT, MappedType("plain.toml", PLAIN))
    assert (trial.type, trial.is_mapped) == ("", False)
    assert [problem.reason for problem in trial.problems] == ["UNKNOWN_MESSAGE_TYPE"]


def test_readings_that_are_left_out():
    """A reading that its event loses is shown, with the event."""
    ranged = MappedType("plain.toml", f"{PLAIN}\nreadings.u = {{ path = 'u', valid = [0, 1] }}")
    trial = tried(b'{"id": "a", "at": "2026-02-17T10:30:00Z", "t": 1, "u": 2}', ranged)
    [event] = trial.document()["events"]
    assert event["readings"] == {"t": 1}
    assert trial.document()["dropped"] == [{"reason": "INVALID_READING", "detail": "readings.u is 2, not in [0, 1]"}]


def test_conditions_and_defaults_decide_as_in_the_job():
    """A mapping with conditions, or for all messages without a type, is not assumed to fit."""
    unmarked = MappedType("plain.toml", f"unmarked = true\n{PLAIN}")
    trial = tried(b'{"id": "a", "at": "2026-02-17T10:30:00Z", "t": 1}', unmarked)
    assert (trial.type, trial.is_assumed, len(trial.events)) == ("json", False, 1)
    matched = MappedType("plain.toml", f'match = {{path = "kind", is = "t"}}\n{PLAIN}')
    assert tried(b'{"id": "a"}', matched).type == ""
    assert tried(b'{"kind": "t"}', matched).type == "json"


def test_the_built_in_type():
    """Messages of the built-in type are tried without a mapping."""
    event = sensor_event("a", AT, {"t": 1.5}, {}, "4711")
    trial = tried(event.SerializeToString(), REPORT, **{MESSAGE_TYPE: EVENT_TYPE})
    assert (trial.type, trial.is_mapped, trial.message["readings"]) == (EVENT_TYPE, False, {"t": 1.5})
    assert trial.document()["events"][0]["event_id"] == "4711"
