"""Installs and runs the decoder of the page on message decoders as it stands."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.core.decoding.message_types import Decoded, DecoderFunction
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from pipeline.formats.files import open_records, records_of
from pipeline.formats.mapped import MappedMaker, published
from pipeline.formats.values import FileColumns
from tests.templates.dockerfile import DOCKERFILE, ROOT

PAGE = (ROOT / "docs/message-decoders.md").read_text()
LATEST_US = parse_time("2027-01-01")


def block(language: str, index: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[index]


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """A folder into which the page's package is installed, with the command of the page's layer."""
    checkout, installed = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("installed")
    package = checkout / "logger_frames"
    package.mkdir()
    (package / "logger_frames.py").write_text(block("python"))
    (package / "pyproject.toml").write_text(block("toml"))
    copy, install = block("dockerfile").splitlines()
    assert copy == "COPY logger_frames /logger_frames"
    options = re.fullmatch(r"RUN pip install (.+) /logger_frames", install)[1].split()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--target", installed]
    subprocess.run([*pip, *options, package], check=True)
    return installed


@pytest.fixture
def decoder(environment, monkeypatch) -> DecoderFunction:
    """The function, by the name that the page gives to the job."""
    monkeypatch.syspath_prepend(str(environment))
    (name,) = set(re.findall(r"message[_-]decoder[= ](\S+?)[`\n]", PAGE))
    return DecoderFunction(name)


def decode(decoder: DecoderFunction, data: bytes) -> Decoded:
    return decoder.decode(Message(data, {"site": "north"}), LATEST_US, [])


FRAME = bytes.fromhex(re.findall(r"bytes\.fromhex\(\"(.+?)\"\)", PAGE)[0])


def test_a_frame_becomes_events(decoder):
    """One for each sample; an empty frame has none."""
    decoded = decode(decoder, FRAME + FRAME[4:8] + bytes(4))
    time_us = parse_time("2026-02-17T10:30:00Z")
    assert [event[:4] for event in decoded.events] == [
        ("logger-42", time_us, {"temperature": temperature, "volts": volts}, {"site": "north"})
        for temperature, volts in ((-27.5, 3.3), (0, 0))
    ]
    assert decode(decoder, FRAME[:4]) == (decoder.name, [], [], 0, 0)


def test_a_refused_frame(decoder):
    """It is a dead letter with the reason and the text that the page names, and none of its events is written."""
    assert "reason `REFUSED_BY_DECODER`" in " ".join(PAGE.split())
    with pytest.raises(BadData, match="a frame has 4 bytes and 8 for each sample, not 11") as raised:
        decode(decoder, FRAME[:-1])
    assert raised.value.reason is Reason.REFUSED_BY_DECODER


def test_an_invalid_event(decoder):
    """The others are written, and the message is a dead letter with the reason of the first."""
    decoded = decode(decoder, FRAME + bytes(8))
    assert [event.sensor_id for event in decoded.events] == ["logger-42"]
    ((message, problem),) = decoded.refused
    assert (message.data, problem.reason) == (FRAME + bytes(8), Reason.EVENT_TIME_TOO_EARLY)


def test_any_other_exception_is_a_bug(decoder, caplog):
    """It refuses its message, with the line at which it was raised, and is logged."""
    assert "reason `DECODER_FAILED`" in " ".join(PAGE.split())
    with pytest.raises(BadData, match=r"DECODER_FAILED: logger_frames.py:\d+: TypeError: object of type") as raised:
        decode(decoder, None)
    assert raised.value.reason is Reason.DECODER_FAILED
    assert "Traceback" in caplog.text


def test_commands_take_it(environment, tmp_path, monkeypatch):
    """check calls it by its signature; try, publish and backfill read files with it."""
    monkeypatch.syspath_prepend(str(environment))
    (file := tmp_path / "frame.bin").write_bytes(FRAME)
    option = ["--message-decoder", "logger_frames:read_frame"]
    checked = CliRunner().invoke(main, ["mapping", "check", *option])
    assert (checked.exit_code, checked.stdout.strip()) == (
        0,
        "logger_frames:read_frame takes a payload and its attributes",
    )
    tried = CliRunner().invoke(
        main, ["mapping", "try", str(file), *option, "--attribute", "site=north", "--format=json"]
    )
    assert json.loads(tried.stdout)["events"][0]["readings"] == {"temperature": -27.5, "volts": 3.3}
    frames = bytes([len(FRAME)]) + FRAME
    maker = MappedMaker([], attributes={"site": "north"}, decoder=DecoderFunction(option[1]))
    with records_of("frames.pb", io.BytesIO(frames), maker) as records:
        (original,) = published(records, maker, lambda: LATEST_US)
    assert original.message.data == FRAME
    assert [event.sensor_id for event in original.events] == ["logger-42"]
    (file := tmp_path / "frames.pb").write_bytes(frames)
    opened = open_records(file, FileColumns(), attributes={"site": "north"}, decoder=DecoderFunction(option[1]))
    with opened as records:
        assert [one.message.data for one in records] == [FRAME]


def events_of(index: int, payload: bytes, monkeypatch, tmp_path):
    """Returns the events that a decoder of the page makes of a payload."""
    name = f"decoder_{index}"
    (tmp_path / f"{name}.py").write_text(block("python", index))
    monkeypatch.syspath_prepend(str(tmp_path))
    (function,) = re.findall(r"^def (\w+)\(data", block("python", index), re.MULTILINE)
    decoded = decode(DecoderFunction(f"{name}:{function}"), payload)
    return [event[:3] for event in decoded.events]


def test_values_that_later_elements_inherit(monkeypatch, tmp_path):
    """Names and times are the base's and the record's together."""
    time_us, sensor = parse_time("2026-02-17T10:30:00Z"), "urn:dev:mac:0024befffe804ff1"
    payload = block("json", 0).encode()
    assert events_of(2, payload, monkeypatch, tmp_path) == [
        (sensor, time_us, {"temp": 21.5}), (sensor, time_us - 60_000_000, {"hum": 48})
    ]  # fmt: skip
    with pytest.raises(BadData, match="REFUSED_BY_DECODER: the time -60 counts from the arrival"):
        events_of(2, b'[{"n": "a:b", "v": 1, "t": -60}]', monkeypatch, tmp_path)


def test_parallel_arrays(monkeypatch, tmp_path):
    """A value stands where its time and its name do."""
    time_us = parse_time("2026-02-17T10:30:00Z")
    payload = block("json", 1).encode()
    assert events_of(3, payload, monkeypatch, tmp_path) == [
        ("root.plant.d1", time_us, {"temp": 21.5, "level": 3}), ("root.plant.d1", time_us + 60_000_000, {"temp": 21.75})
    ]  # fmt: skip
    with pytest.raises(BadData, match="the arrays have different lengths"):
        events_of(3, payload.replace(b", [21.75, null]", b""), monkeypatch, tmp_path)


def test_the_program_that_tries_it(environment):
    """It prints the frame's event."""
    printed = subprocess.run(
        [sys.executable, "-c", block("python", 1)],
        env={"PYTHONPATH": f"{environment}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert 'sensor_id: "logger-42"' in printed
    assert "-27.5" in printed


def test_the_layer(tmp_path):
    """Hadolint finds nothing in the Dockerfile with it, and the build's context has what it copies."""
    before, entry = DOCKERFILE.read_text().split("ENTRYPOINT")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"{before}{block('dockerfile')}\nENTRYPOINT{entry}")
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([hadolint, dockerfile], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    assert f"\n```\n!{block('dockerfile').split()[1]}\n```\n" in PAGE
