"""Installs and runs the decoder of the page on message decoders as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.core.decoding.decoded import Decoded
from pipeline.core.decoding.message_types import DecoderFunction
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
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


def test_any_other_exception_is_a_bug(decoder):
    """It is not caught."""
    with pytest.raises(TypeError):
        decode(decoder, None)


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
