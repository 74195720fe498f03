"""Which type a message is of, and what becomes of messages that are of none."""

import itertools
import json
import pickle
import subprocess
import sys

import pytest

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.decoding.message_types import DecoderFunction, MappedType, MessageTypes, TableRules
from pipeline.core.events.message import BATCH_TYPE, EVENT_TYPE, Message, sensor_event
from pipeline.core.events.reasons import BadData, Reason
from pipeline.proto.sensor_event_pb2 import SensorEvent, SensorEventBatch
from tests.core.decoding.mapping.protos import descriptor_set

T = 1_771_324_200_000_000
EVENT = sensor_event("a", T, {"t": 1.0}, {})
BATCH = SensorEventBatch(events=[EVENT, sensor_event("", T, {"t": 1.0}, {})]).SerializeToString()
JSON = MappedType("j.toml", 'message = "json"\nsensor = "id"\ntime = "at"\n[readings]\n"*" = "*"')
FOREIGN = descriptor_set("package acme; message Report { string probe = 1; string site = 9; }")
REPORT = MappedType(
    "r.toml", 'message = "acme.Report"\nsensor = "probe"\ntime = "$publish_time"\nreadings = {}', FOREIGN
)


def with_keys(mapped, keys):
    return MappedType(mapped.file, f"{keys}\n{mapped.text}", mapped.descriptors)


def name_of(types, **attributes):
    """Returns the name of the type of a message with these attributes, of the types after a journey to a worker."""
    return pickle.loads(pickle.dumps(types)).of(Message(b"{}", attributes)).name  # noqa: S301


def refuse_everything(data, attributes):
    return []


DECODER = DecoderFunction(f"{__name__}:refuse_everything")


def test_marked_messages():
    """The attribute names a built-in type, or a mapped one, which may replace it; the decoder takes the others."""
    types = MessageTypes([JSON, REPORT])
    for name in ("json", "acme.Report", EVENT_TYPE):
        assert name_of(types, message_type=name) == name
    with pytest.raises(
        BadData, match=r"message_type is 'x', none of tidetable.v1.SensorEvent, .*acme\.Report"
    ) as raised:
        types.of(Message(b"", {"message_type": "x"}))
    assert raised.value.reason is Reason.UNKNOWN_MESSAGE_TYPE
    assert name_of(MessageTypes([JSON], DECODER), message_type="x") == DECODER.name
    replacing = MappedType("e.toml", JSON.text.replace('"json"', f'"{EVENT_TYPE}"'), b"")
    assert MessageTypes([replacing]).of(Message(b"", {"message_type": EVENT_TYPE})) is replacing


def test_unmarked_messages():
    """They are of the type that is declared for them, or the decoder's, or refused."""
    assert name_of(MessageTypes()) == EVENT_TYPE
    assert name_of(MessageTypes([JSON], default="json")) == "json"
    assert name_of(MessageTypes([REPORT, with_keys(JSON, "unmarked = true")], DECODER, default=None)) == "json"
    assert name_of(MessageTypes([REPORT], DECODER, default=None)) == DECODER.name
    with pytest.raises(BadData, match="the attribute message_type is missing, and no type is the default"):
        MessageTypes([REPORT], default=None).of(Message(b"", {}))


def test_conditions_go_first():
    """A mapping whose conditions hold takes the message, whatever its attribute says."""
    matched = with_keys(JSON, 'match = { path = "@source", is = "gateway" }')
    types = MessageTypes([matched])
    assert name_of(types, source="gateway", message_type=EVENT_TYPE) == "json"
    assert name_of(types, source="other") == EVENT_TYPE


def test_a_message_that_its_attributes_place_is_refused_by_its_type():
    """Conditions on attributes alone don't need the payload: what can't be parsed is UNPARSEABLE, not of no type."""
    matched = with_keys(JSON, 'match = { path = "@source", is = "gateway" }')
    message = Message(b"no JSON", {"source": "gateway"})
    found = MessageTypes([matched]).of(message)
    assert found is matched
    with pytest.raises(BadData) as raised:
        found.decode(message, 2 * T)
    assert raised.value.reason is Reason.UNPARSEABLE
    by_content = with_keys(JSON, 'match = [{ path = "@source", is = "gateway" }, { path = "kind", is = "report" }]')
    assert not by_content.matches(message)
    assert by_content.matches(message._replace(data=b'{"kind": "report"}'))


def test_unmarked_batches():
    """Batches can be the default type; their refused events are marked as what they are."""
    message = Message(BATCH, {"site": "north"})
    decoded = MessageTypes(default=BATCH_TYPE).of(message).decode(message, T)
    assert [event.sensor_id for event in decoded.events] == ["a"]
    ((letter, _),) = decoded.refused
    assert letter.attributes == {"site": "north", "message_type": EVENT_TYPE, "event_time": "2026-02-17T10:30:00Z"}


def test_a_batch_with_over_a_thousand_refused_events_is_refused_once():
    """A letter for each would be hundreds of times its size. Its other events are written, as often as it returns."""
    broken = [SensorEvent()] * 1000
    for events, letters in ((broken, 1000), ([*broken, SensorEvent()], 1)):
        message = Message(SensorEventBatch(events=[EVENT, *events]).SerializeToString(), {"message_type": BATCH_TYPE})
        decoded = MessageTypes().of(message).decode(message, T)
        assert [event.sensor_id for event in decoded.events] == ["a"]
        assert len(decoded.refused) == letters
    ((letter, problem),) = decoded.refused
    assert letter == message
    assert (problem.reason, problem.detail[-33:]) == (Reason.MISSING_SENSOR_ID, "empty; and over 999 more problems")


def yield_without_end(data, attributes):
    return itertools.repeat(EVENT)


@pytest.mark.parametrize(
    ("mapped", "default", "problem"),
    [
        ([REPORT], "acme.Reports", r"acme.Reports can't be the default type: it is none of .*, acme.Report$"),
        ([with_keys(JSON, "unmarked = true")], EVENT_TYPE, r"can't be the default type: json has unmarked = true$"),
    ],
)
def test_a_default_that_is_none(mapped, default, problem):
    """A default type has to exist, and to be the only one."""
    with pytest.raises(MappingError, match=problem):
        MessageTypes(mapped, default=default)


def test_attributes_that_mappings_read():
    """Templates, parts of attributes and conditions count."""
    text = 'message = "json"\nmatch = { path = "@a", set = true }\nsensor = "{@b}/{@c.d}"\ntime = "at"\nreadings = {}'
    other = 'message = "json"\nsensor = "@e"\ntime = "at"\nreadings = {}\n[attributes]\nc = "x/{d}"'
    assert MessageTypes([MappedType("a", text), MappedType("b", other)]).attribute_names == {"a", "b", "c", "e"}


NOW, BIG = "2026-02-17T10:30:00Z", 2**53 + 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('time = "t"\nreadings = { v = "v" }', {"t": NOW, "v": BIG}),
        ('each = "e[]"\ntime = ".t"\nreadings = { v = ".v" }', {"e": [{"t": NOW, "v": BIG}]}),
        ('each = "e[]"\ntime = ".t"\nreadings = { "*" = ".r.*" }', {"e": [{"t": NOW, "r": {"v": BIG}}]}),
        ('each = "e[]"\ntime = "t"\nrewrite_names = true\nreadings = { "*" = { path = ".v", name = ".n" } }',
         {"t": NOW, "e": [{"n": "v", "v": BIG}, {"n": "w", "v": None}]}),
        ('each = "e[].f[]"\ntime = "t"\nreadings = { v = "e[].v" }', {"t": NOW, "e": [{"v": BIG, "f": [1]}]}),
    ],
)  # fmt: skip
def test_an_integer_that_became_metadata_is_not_lost_with_its_event(keys, message):
    """An event whose only reading it was is a dead letter that says so, or is kept where metadata alone is."""
    mapped = MappedType("m", f'message = "json"\ninexact_integers = "metadata"\nsensor = "id"\n{keys}')
    decoded = mapped.decode(Message(json.dumps({"id": "s"} | message).encode(), {}), T)
    assert (decoded.events, decoded.skipped) == ([], 0)
    ((_, problem),) = decoded.refused
    assert problem.reason is Reason.INEXACT_INTEGER
    assert "the only reading, 'v', is '9007199254740993'" in problem.detail
    kept = mapped.decode(Message(json.dumps({"id": "s"} | message).encode(), {}), T, TableRules(metadata_alone=True))
    assert ([event[2:4] for event in kept.events], kept.refused) == ([({}, {"v": str(BIG)})], [])
    text = mapped.text.replace("readings = {", 'readings = { beside = "one",')
    beside = MappedType("m", text).decode(Message(json.dumps({"id": "s", "one": 1} | message).encode(), {}), T)
    assert [event[2:4] for event in beside.events] == [({"beside": 1}, {"v": str(BIG)})]


def test_a_replay_keeps_the_event_time_and_attributes():
    """The publish time as event time is that of the first publication, and renamed attributes are found."""
    text = 'message = "json"\nsensor = "@topic"\ntime = "$publish_time"\nreadings.x = "x"'
    attributes = {"dead_letter_attribute_topic": "north", "dead_letter_publish_time": "2026-02-17T10:30:00Z"}
    (event,) = MappedType("a", text).decode(Message(b'{"x": 1}', attributes), T).events
    assert (event.sensor_id, event.event_time_us) == ("north", T)


def take_one(data):
    return []


async def wait(data, attributes):
    return []


def raise_at_once(data, attributes):
    return 1 / 0


def yield_something_else(data, attributes):
    yield EVENT
    yield {"sensor_id": "a"}


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (
            f"{__name__}:take_one",
            r"does not take a payload and attributes, as f\(data, attributes\): too many",
        ),
        (f"{__name__}:wait", "is not a function that returns events"),
        (f"{__name__}:T", "is not a function that returns events"),
        ("no.such.module:f", "is not a function of this environment, as module:function: "),
        ("pipeline.core.events.message:nothing", "is not a function of this environment, as module:function: "),
        ("json:dumps.x", "is not a function of this environment, as module:function: "),
    ],
)
def test_a_function_that_can_not_be_called(function, problem):
    """It is an error at launch, not of each message."""
    with pytest.raises(MappingError, match=f"^'{function}' {problem}"):
        DecoderFunction(function)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("raise_at_once", r"DECODER_FAILED: test_message_types\.py:\d+: ZeroDivisionError: division by zero"),
        ("yield_something_else", "DECODER_FAILED: TypeError: it yielded a dict, not a SensorEvent"),
        ("yield_without_end", "TOO_MANY_ELEMENTS: the function yields more than 100,000 events"),
    ],
)
def test_a_function_that_fails(function, problem):
    """Its message is refused, and no event of it is written."""
    with pytest.raises(BadData, match=f"^{problem}$"):
        DecoderFunction(f"{__name__}:{function}").decode(Message(b"", {}), T)


def test_the_exception_of_decoders_needs_no_beam():
    """A decoder's module can be imported, and its function tested, where there is no Beam."""
    imported = "print([*map(sys.modules.get, ['apache_beam', 'google'])])"
    script = f"import sys; from pipeline import RefusedMessageError; {imported}"
    ran = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[None, None]\n"


def test_a_foreign_message_that_fits():
    """Unmarked bytes of another type are an event if their field numbers fit; what does not fit is counted."""
    foreign = descriptor_set("""
        package acme;
        message Inner { int64 at = 1; }
        message Value { string name = 1; double value = 2; }
        message Foreign { string id = 1; Inner inner = 2; repeated Value values = 3; int32 other = 4; int32 more = 9; }
    """)
    fields = {"id": "x", "inner": {"at": T // 1_000_000}, "values": [{"name": "n", "value": 1}], "other": 1, "more": 1}
    message = Message(Descriptors(foreign).message_class("acme.Foreign")(**fields).SerializeToString(), {})
    decoded = MessageTypes().of(message).decode(message, T)
    assert [event[:4] for event in decoded.events] == [("x", T, {"n": 1.0}, {})]
    assert decoded.unknown_fields == 2
    with pytest.raises(BadData, match="the attribute message_type is missing"):
        MessageTypes([REPORT], default=None).of(message)


def yield_a_status(data, attributes):
    return [sensor_event("a", T, {}, {"status": "on"})]


@pytest.mark.parametrize("unknown_fields", ["count", "refuse"])
def test_metadata_alone(unknown_fields):
    """Every type of message may have it: built-in ones, batches without a type, and those of a decoder."""
    (alone,) = yield_a_status(b"", {})
    alone.MergeFromString(b"\x9a\x06\x01x")  # a field that SensorEvent does not have
    decoder = DecoderFunction(f"{__name__}:yield_a_status")
    batch = SensorEventBatch(events=[alone, EVENT]).SerializeToString()
    types = MessageTypes([], decoder, BATCH_TYPE, unknown_fields)
    for message in (Message(batch, {}), Message(b"", {"message_type": "x"})):
        for keeps in (False, True):
            decoded = types.of(message).decode(message, T, TableRules(metadata_alone=keeps))
            refused = [problem.reason for _, problem in decoded.refused]
            if message.data and unknown_fields == "refuse":
                assert refused == [Reason.UNKNOWN_FIELDS]
            else:
                assert refused == ([] if keeps else [Reason.NO_READINGS])
