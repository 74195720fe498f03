"""What a mapping says about the contents of bytes, text and Any is held against the types."""

import pytest

from pipeline.core.decoding.mapping.compiling.mapper import Mapper
from pipeline.core.decoding.mapping.language.document import parse_mapping
from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from tests.core.decoding.mapping.protos import descriptor_set

TYPES = Descriptors(
    descriptor_set(
        """
        package acme;
        message Reading { double celsius = 1; bytes more = 2; }
        message Packet { bytes payload = 1; oneof kind { bytes left = 2; bytes right = 3; } }
        message Report { string id = 1; repeated Packet packets = 2; map<string, bytes> parts = 3; }
        """
    )
)


def mapper(types: str) -> Mapper:
    text = f'message = "acme.Report"\nsensor = "id"\ntime = "$publish_time"\nreadings = {{}}\n[types]\n{types}'
    return Mapper(parse_mapping(text), TYPES)


@pytest.mark.parametrize(
    "types",
    [
        '"packets.payload" = "acme.Reading"',
        '"packets.kind" = "acme.Reading"',
        '"parts.first" = "json"',
        '"packets.payload" = "acme.Reading"\n"packets.payload.more" = "acme.Reading"',
        '"packets.payload" = "json"\n"packets.payload.anything" = "json"',
    ],
)
def test_paths_that_exist(types):
    """Repeated fields need no brackets; what JSON and maps contain is open."""
    mapper(types)


@pytest.mark.parametrize(
    ("types", "problem"),
    [
        ('"packets.paylod" = "json"', "types.packets.paylod: acme.Packet has no field 'paylod'; did you mean payload?"),
        ('"packets.payload" = "acme.Redding"', "types.packets.payload: there is no message type 'acme.Redding'"),
        ('"id.more" = "json"', "types.id.more: 'more' follows string, which has no fields"),
        ('"packets.payload" = "acme.Reading"\n"packets.payload.mor" = "json"', "acme.Reading has no field 'mor'"),
    ],
)
def test_paths_and_types_that_do_not(types, problem):
    """A misspelled path or type would open nothing, silently: it is refused with the nearest name."""
    with pytest.raises(MappingError) as raised:
        mapper(types)
    assert problem in str(raised.value)
