"""Random messages of random types through random mappings, against a slow reading of their JSON form."""

import contextlib
import gzip
import json
from datetime import UTC, datetime

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pipeline.core.decoding.file_names import file_attributes
from pipeline.core.decoding.mapping.compiling.mapper import Content, Mapper
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.message_types import MappedType
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData
from tests.core.decoding.mapping import generated, reference
from tests.support.exhaustive import examples

PUBLISHED_US = 1_771_324_200_000_000
PUBLISHED = datetime.fromtimestamp(PUBLISHED_US // 1_000_000, UTC)
ENCODED = {"Content-Encoding": "gzip"}
ENVELOPE = Message(b"", file_attributes("in/s.csv"), publish_time=PUBLISHED)

_slow = settings(
    max_examples=examples(200),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@_slow
@given(st.data())
def test_events_equal_those_of_the_json_form(data):
    """Random messages become the events that a slow reading of their JSON form finds."""
    types = data.draw(generated.types())
    drawn = data.draw(generated.mappings(types.descriptor(generated.ROOT)))
    if (mapper := _mapper(drawn.text, types)) is None:
        return
    for _ in range(3):
        message = mapper.message_class.FromString(data.draw(generated.messages(types)).SerializeToString())
        _compare(mapper, drawn, Content([message], 0), [reference.document_of(message, types.pool)])


def _mapper(text, types=None):
    """Returns the compiled mapping; None if other entries take all that a star stands for."""
    try:
        return Mapper(parse_mapping(text), types)
    except MappingError as error:
        assert "stands for nothing" in str(error)  # noqa: PT017
        return None


def _compare(mapper, drawn, content, documents):
    expected, reasons = None, None
    try:
        expected = reference.Expected(drawn, documents, PUBLISHED_US)
    except reference.Refused as refused:
        reasons = refused.args[0]
    try:
        result = mapper.map(ENVELOPE, content, LATEST_US)
    except BadData as problem:
        assert reasons is not None, problem  # noqa: PT017
        assert problem.reason in reasons  # noqa: PT017
        event("refused")
        return
    assert reasons is None, reasons
    # As texts, in which NaN equals NaN and 0.0 is not -0.0.
    assert sorted(map(_shown, result.events)) == sorted(map(_shown, expected.events))
    assert len(result.problems) == len(expected.problems)
    for problem, allowed in zip(result.problems, expected.problems, strict=True):
        assert problem.reason in allowed
    assert result.skipped == expected.skipped
    event("events" if any(made[2] for made in expected.events) else "empty")


def _shown(made):
    sensor, time_us, readings, metadata, *_ = made
    return repr((sensor, time_us, sorted(readings.items()), sorted(metadata.items())))


@_slow
@given(st.data())
def test_events_of_json(data):
    """Random JSON becomes the events that a slow reading finds, also several documents, as devices write them."""
    drawn = data.draw(generated.mappings("plain"))
    if (mapper := _mapper(drawn.text)) is None:
        return
    for _ in range(3):
        texts = list(map(json.dumps, data.draw(st.lists(generated.json_documents, min_size=1, max_size=3))))
        mark, between, end = data.draw(st.tuples(*map(st.sampled_from, (["", "\ufeff"], ["", "\n"], ["", "\0"]))))
        payload = data.draw(st.sampled_from([bytes, gzip.compress]))(f"{mark}{between.join(texts)}{end}".encode())
        content = mapper.parse(ENVELOPE._replace(data=payload, attributes={**ENVELOPE.attributes, **ENCODED}))
        _compare(mapper, drawn, content, list(map(json.loads, texts)))


EVERYTHING = """
message = "random.M0"
sensor = { constant = "s" }
time = "$publish_time"
inexact_integers = "round"
[readings]
"r_*" = "**"
[metadata]
"m_*" = "**"
"""


@_slow
@given(st.data())
def test_every_leaf_is_mapped_or_of_a_kind_that_a_star_leaves(data):
    """Two stars map every leaf of any message, except the kinds that stars leave out."""
    types = data.draw(generated.types())
    try:
        mapper = Mapper(parse_mapping(EVERYTHING), types)
    except MappingError as error:
        assert "stands for nothing" in str(error)  # noqa: PT017
        return
    message = data.draw(generated.messages(types))
    try:
        (made,) = mapper.map(ENVELOPE, Content([message], 0), LATEST_US).events
    except BadData:  # two dotted names are equal
        event("refused")
        return
    document = reference.document_of(message, types.pool)
    found = list(reference.leaves(document, types.descriptor(generated.ROOT)))
    numbers = [kind for _, kind, value in found if reference.is_number(kind, value)]
    texts = [kind for _, kind, value in found if reference.is_text(kind, value)]
    assert (len(made.readings), len(made.metadata)) == (len(numbers), len(texts))
    left = {kind for _, kind, value in found if value or kind not in ("text", "blob")} - {*numbers, *texts}
    assert left <= {"timestamp", "bytes", "blob"}
    read = {names for names, kind, _ in found if kind in numbers and kind != "plain"}
    assert read <= {use.names for use in mapper.uses}


@_slow
@given(st.data(), st.binary(max_size=3), st.integers(0, 60))
def test_damaged_bytes_are_events_or_bad_data(data, damage, at):
    """Damaged bytes are decoded or refused, and raise nothing else."""
    types = data.draw(generated.types())
    drawn = data.draw(generated.mappings(types.descriptor(generated.ROOT)))
    payload = data.draw(generated.messages(types)).SerializeToString()
    payload = payload[:at] + damage + payload[at + len(damage) :]
    with contextlib.suppress(MappingError, BadData):
        mapped = MappedType("random.toml", drawn.text, types.serialized)
        mapped.decode(ENVELOPE._replace(data=payload), 2 * PUBLISHED_US)
