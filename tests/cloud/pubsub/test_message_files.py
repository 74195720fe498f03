"""Mappings and descriptors from files, local and in a bucket."""

from collections.abc import Callable

import pytest

from pipeline.cloud.connection.problems import ServerError
from pipeline.cloud.pubsub.message_files import load_descriptors, load_message_types
from pipeline.core.decoding.mapping.language.model import MappingError
from tests.core.decoding.mapping.protos import descriptor_set
from tests.support.google_cloud import BUCKET, running_storage

REPORT = descriptor_set("package acme; message Report { string serial = 1; int64 at_ms = 2; double celsius = 3; }")
ALARM = descriptor_set("package acme; message Alarm { string serial = 1; int64 at_ms = 2; double level = 3; }")
TEXT = 'message = "acme.Report"\nsensor = "serial"\ntime = {path = "at_ms", unit = "ms"}\nreadings.c = "celsius"\n'
JSON = TEXT.replace("acme.Report", "json")

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path):
    def write(name: str, content: str | bytes) -> str:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(tmp_path / name)

    return write


def test_each_mapping_takes_the_first_descriptors_with_its_type(write: Write):
    """Several types come from several descriptors, in any order; JSON needs none."""
    mappings = [
        write("report.toml", TEXT),
        write("alarm.toml", TEXT.replace("Report", "Alarm").replace("celsius", "level")),
        write("any.toml", JSON),
    ]
    loaded = load_message_types(mappings, load_descriptors([write("a", ALARM), write("b", REPORT), write("c", REPORT)]))
    assert [(mapped.file, mapped.name) for mapped in loaded] == list(
        zip(mappings, ["acme.Report", "acme.Alarm", "json"], strict=True)
    )
    assert [mapped.descriptors for mapped in loaded] == [REPORT, ALARM, b""]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (TEXT.replace('"celsius"', '"celcius"'), ":4: readings.c: celcius: acme.Report has no field 'celcius'; "
         "did you mean celsius?"),
        (TEXT.replace("acme.Report", "acme.v1.Report"), ":1: message: there is no message type 'acme.v1.Report' in the "
         "descriptors; did you mean acme.Report?"),
        ("sensor =", ": it is not TOML: Invalid value (at end of document)"),
        (b"\xff", ": byte 1 is not text in UTF-8; save it as UTF-8"),
        (TEXT + "#" * (1 << 20), ": a mapping has at most 1 MiB"),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_hold(write: Write, content: str | bytes, problem: str):
    """The message names the file, the line and the key."""
    path = write("report.toml", content)
    with pytest.raises(MappingError) as raised:
        load_message_types([path], load_descriptors([write("a", ALARM), write("b", REPORT)]))
    assert str(raised.value) == f"{path}{problem}"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff", "descriptors: they are not a FileDescriptorSet, which protoc --descriptor_set_out writes"),
        (b"\0" * ((16 << 20) + 1), "descriptors: they have more than 16 MiB"),
    ],
)
def test_descriptors_that_do_not_hold(write: Write, content: bytes, problem: str):
    """The message names the file."""
    path = write("report.binpb", content)
    with pytest.raises(MappingError) as raised:
        load_message_types([write("report.toml", TEXT)], load_descriptors([path]))
    assert str(raised.value) == f"{path}: {problem}"


def test_without_descriptors(write: Write):
    """The message says what to pass."""
    path = write("report.toml", TEXT)
    with pytest.raises(MappingError) as raised:
        load_message_types([path], load_descriptors([]))
    assert str(raised.value) == f"{path}:1: message: pass the descriptors that define acme.Report"


def test_two_mappings_of_one_type(write: Write):
    """Two mappings of one type without conditions are an error."""
    first, second = write("a.toml", JSON), write("b.toml", JSON)
    with pytest.raises(MappingError) as raised:
        load_message_types([first, second], load_descriptors([]))
    assert str(raised.value) == f"{second}: {first} maps json too; tell them apart with match"


def test_two_mappings_of_one_type_with_conditions(write: Write):
    """Conditions tell two mappings of one type apart."""
    matched = 'match = {path = "kind", is = "b"}\n' + JSON
    assert len(load_message_types([write("a.toml", JSON), write("b.toml", matched)], load_descriptors([]))) == 2


def test_two_default_types(write: Write):
    """Only one type takes the messages without a type."""
    first, second = write("a.toml", "unmarked = true\n" + JSON), write("b.toml", "unmarked = true\n" + TEXT)
    with pytest.raises(MappingError, match=rf"^{second}: {first} has unmarked = true too"):
        load_message_types([first, second], load_descriptors([write("a", REPORT)]))


def test_files_in_a_bucket(monkeypatch: pytest.MonkeyPatch):
    """Files are read from a bucket; one that is not there is a problem of the server."""
    with running_storage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        storage.write("maps/report.toml", TEXT.encode())
        storage.write("maps/report.binpb", REPORT)
        folder = f"gs://{BUCKET}/maps"
        (mapped,) = load_message_types([f"{folder}/report.toml"], load_descriptors([f"{folder}/report.binpb"]))
        assert (mapped.file, mapped.text, mapped.descriptors) == (f"{folder}/report.toml", TEXT, REPORT)
        with pytest.raises(ServerError, match=rf"^{folder}/alarm.toml does not exist$"):
            load_message_types([f"{folder}/alarm.toml"], load_descriptors([]))


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("absent.toml", "No such file or directory"),
        ("gs://bucket", "it is not the path of an object, like gs://my-bucket/message.toml"),
    ],
)
def test_files_that_are_none(path: str, problem: str):
    """A file that can't be opened is named."""
    with pytest.raises(MappingError) as raised:
        load_message_types([path], load_descriptors([]))
    assert str(raised.value) == f"{path}: {problem}"
