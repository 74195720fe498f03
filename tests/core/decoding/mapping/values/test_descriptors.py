import contextlib
import pickle

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.decoding.mapping.values.descriptors import MAX_DESCRIPTOR_BYTES, Descriptors


def _set(*files):
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def _file(name="a.proto", *imports, message="M", package="p"):
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)
    file.message_type.add(name=message)
    return file


def test_types_by_name(types):
    """Types are found by their full names, without the entries of maps."""
    assert types.descriptor("fleet.Vehicle").fields_by_name["position"].message_type.full_name == "fleet.Position"
    assert types.message_class("industrial.Old")(id="a").id == "a"
    assert types.has("industrial.Old.Body")
    assert not types.has("industrial.Old.LabelsEntry.x")
    assert {"fleet.Vehicle", "industrial.Old.Body"} <= set(types.names())
    assert not any(name.endswith("Entry") for name in types.names())


@pytest.mark.parametrize(
    ("name", "near"),
    [("fleet.Vehicel", "fleet.Vehicle"), ("acme.Vehicle", "fleet.Vehicle"), ("x", "pass the descriptors")],
)
def test_a_type_that_there_is_not(types, name, near):
    """An unknown type is refused with a similar name."""
    with pytest.raises(MappingError, match=near):
        types.message_class(name)


def test_it_pickles(types):
    """Descriptors are sent to workers as pickles."""
    assert pickle.loads(pickle.dumps(types)).names() == types.names()  # noqa: S301


def test_files_in_any_order_and_without_well_known_ones():
    """Files may come in any order, and without those that protobuf brings."""
    user = _file("b.proto", "a.proto", "google/protobuf/timestamp.proto", message="N")
    user.message_type[0].field.add(name="at", number=1, label=1, type=11, type_name=".google.protobuf.Timestamp")
    user.message_type[0].field.add(name="m", number=2, label=1, type=11, type_name=".p.M")
    message = Descriptors(_set(user, _file())).message_class("p.N")(at={"seconds": 1})
    assert message.at.SerializeToString() == timestamp_pb2.Timestamp(seconds=1).SerializeToString()


@pytest.mark.parametrize(
    ("serialized", "problem"),
    [
        (b"\xff", "not a FileDescriptorSet"),
        (b"\x00" * (MAX_DESCRIPTOR_BYTES + 1), "more than 16 MiB"),
        (_set(_file("a.proto", "b.proto")), "lack b.proto, which another file imports"),
        (_set(_file("a.proto", "a.proto")), "a.proto can't be loaded"),
        (_set(_file("a.proto", "b.proto"), _file("b.proto", "a.proto", message="N")), "can't be loaded"),
        (_set(_file(), _file("b.proto")), "b.proto can't be loaded"),
        (_set(_file(message="1")), "a.proto can't be loaded"),
    ],
)
def test_bytes_that_are_no_descriptors(serialized, problem):
    """Bytes that are no descriptors are refused in one line with the problem."""
    with pytest.raises(MappingError) as error:
        Descriptors(serialized)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_long_chain_of_imports():
    """Thousands of files that import each other do not exhaust the stack."""
    files = [_file(f"{index}.proto", f"{index + 1}.proto", message=f"M{index}") for index in range(2000)]
    assert len(Descriptors(_set(*files, _file("2000.proto"))).names()) == 2001


_bytes = _set(_file("b.proto", "a.proto", message="N"), _file())


@given(st.binary(max_size=60))
def test_any_bytes_are_descriptors_or_a_mapping_error(data):
    """Any bytes are read, or refused with a MappingError."""
    with contextlib.suppress(MappingError):
        Descriptors(data).names()


@given(st.integers(0, len(_bytes) - 1), st.binary(max_size=3))
def test_damaged_descriptors_are_a_mapping_error(at, data):
    """Damaged descriptors are read, or refused with a MappingError."""
    with contextlib.suppress(MappingError):
        types = Descriptors(_bytes[:at] + data + _bytes[at + len(data) :])
        types.names()
        types.message_class("p.M")
