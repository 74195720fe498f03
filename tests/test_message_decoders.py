"""Installs and runs the decoder of the page on message decoders as it stands."""

import base64
import gzip
import io
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.cloud.tables.tables import create
from pipeline.core.decoding.message_types import Decoded, DecoderFunction
from pipeline.core.events.event import Event
from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.gc_policies import MaxAge
from pipeline.core.schema.table_schema import TableSchema
from pipeline.formats.decoded_files import DecodingMaker, FileDecoder
from pipeline.formats.files import open_records, records_of
from pipeline.formats.lines import Refusal
from pipeline.formats.mapped import MappedMaker, published
from pipeline.formats.values import FileColumns, UnreadableFile
from tests.support.lasting import lasting
from tests.support.tables import unused_name
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
    return decoder.decode(Message(data, {"site": "north"}), LATEST_US)


FRAME = bytes.fromhex(re.findall(r"bytes\.fromhex\(\"(.+?)\"\)", PAGE)[0])


def test_a_frame_becomes_events(decoder):
    """One for each sample; an empty frame has none."""
    decoded = decode(decoder, FRAME + FRAME[4:8] + bytes(4))
    time_us = parse_time("2026-02-17T10:30:00Z")
    assert [event[:4] for event in decoded.events] == [
        ("logger-42", time_us, {"temperature": temperature, "volts": volts}, {"site": "north"})
        for temperature, volts in ((-27.5, 3.3), (0, 0))
    ]
    assert decode(decoder, FRAME[:4])[:5] == (decoder.name, [], [], 0, 0)


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


def meter(suffix: str, unit: str, minutes: int) -> str:
    """Returns a record 200 like that of the page."""
    (record,) = re.findall(r"^200,.*$", PAGE, re.MULTILINE)
    return record.replace("E1,N1", f"{suffix},N1").replace("kWh,30", f"{unit},{minutes}")


def day(count: int, quality: str, *ranges: str, date: str = "20260217") -> str:
    """Returns a record 300 whose values count its intervals, and records 400."""
    values = ",".join(map(str, range(1, count + 1)))
    return "\n".join([f"300,{date},{values},{quality},,,20260218000503,", *(f"400,{one},," for one in ranges)])


@pytest.fixture
def nem12(tmp_path, monkeypatch) -> FileDecoder:
    """The page's decoder of meters."""
    (tmp_path / "nem12.py").write_text(block("python", 4))
    monkeypatch.syspath_prepend(str(tmp_path))
    (name,) = set(re.findall(r"--file-decoder (\S+?:\S+)", PAGE))
    return FileDecoder(name)


def meters(nem12: FileDecoder, *records: str) -> list:
    """Returns the events, or the number and the problem of each refusal, and last why a file has no more."""
    file, found = io.BytesIO("\r\n".join(records).encode()), []
    try:
        with records_of("meters.csv", file, DecodingMaker(nem12, lambda: LATEST_US)) as decoded:
            found.extend(one[:4] if isinstance(one, Event) else one for one in decoded)
    except UnreadableFile as problem:
        found.append(str(problem))
    return found


SCHEMA = lasting(TableSchema.default())
OPTION = ["--file-decoder", "nem12:read_meters"]
HEAD, FOOT = "100,NEM12,202602180030,MDA1,RETAILER1", "900"


def test_registers_and_intervals_of_a_meter(nem12):
    """A day has the intervals that its register has, each at its beginning, in the market's time and unit."""
    for minutes in (5, 15, 30):
        count = 1440 // minutes
        b2b = "500,O,S01009,20260218000000,001123.5"
        first, *_, last = meters(nem12, HEAD, meter("E1", "kWh", minutes), day(count, "A"), b2b, FOOT)
        midnight = parse_time("2026-02-16T14:00:00Z")
        assert first == ("NEM1204062", midnight, {"E1": 1.0}, {"quality.E1": "A"})
        assert last[1:3] == (midnight + (1440 - minutes) * 60_000_000, {"E1": count})
    two = meters(nem12, meter("E1", "WH", 30), day(48, "S14"), meter("Q1", "kVArh", 30), day(48, "A"), day(48, "N"))
    assert len(two) == 96  # those of a day without data are left out
    assert [two[49][2:], two[1][2:]] == [
        ({"Q1": 2.0}, {"quality.Q1": "A"}),
        ({"E1": 0.002}, {"quality.E1": "S14"}),
    ]


def test_qualities_that_vary_within_a_day(nem12):
    """Each interval has the quality of its range; one without data is left out."""
    found = meters(nem12, meter("E1", "kWh", 30), day(48, "V", "1,20,A", "21,40,S14,32", "41,48,N"), day(48, "F14"))
    assert [next(iter(event[3].values())) for event in found] == ["A"] * 20 + ["S14"] * 20 + ["F14"] * 48


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([meter("E1", "kWh", 30), day(96, "A")], "no quality follows 48 values"),
        ([meter("E1", "kWh", 15), day(48, "A")], "no quality follows 96 values"),
        ([meter("E1", "kWh", 30), day(48, "A").replace(",7,", ",,")], "could not convert string to float: ''"),
        ([meter("E1", "kWh", 30), day(48, "V", "1,20,A", "22,48,A")], "interval 21 has no quality"),
        ([meter("E1", "kWh", 30), day(48, "V", "1,49,A")], "intervals 1 to 49 do not exist"),
        ([meter("E1", "pf", 30), day(48, "A")], "the unit 'pf', or intervals of '30' minutes, are unknown"),
        (["", day(48, "A")], "not enough values to unpack (expected at least 9, got 1)"),
    ],
)
def test_a_day_that_is_refused(nem12, records, problem):
    """It is refused as a whole, and its record is a file that can be mended; the next day is read."""
    good = [meter("B1", "kWh", 30), day(48, "A")]
    refused, *events = meters(nem12, *records, *good)
    assert refused == Refusal(1, f"line 2: {problem}", None, Reason.REFUSED_BY_DECODER, "\n".join(records).encode())
    assert len(events) == 48
    assert meters(nem12, refused.record.decode())[0].reason.endswith(problem)


def test_a_record_out_of_place(nem12):
    """It is refused alone."""
    refused, *events = meters(nem12, meter("E1", "kWh", 30), "400,1,48,A,,", day(48, "A"))
    assert (refused.reason, refused.record) == ("line 2: a record '400' can't stand here", b"400,1,48,A,,")
    assert len(events) == 48


def test_meters_in_a_table(nem12, bigtable, tmp_path):
    """A file that is cut off ends no other, even if old events are counted first; a mended record follows."""
    name = unused_name()
    create(name, replace(SCHEMA, policies={**SCHEMA.policies, "raw": MaxAge(timedelta(days=36_500))}))
    where = [f"--project={name.project}", f"--instance={name.instance}", f"--table={name.table}", *OPTION]
    cut = "\n".join([HEAD, meter("E1", "kWh", 30), day(48, "A"), day(47, "A", date="20260218")])
    (tmp_path / "a.csv").write_text(cut)
    whole = "\n".join([HEAD, meter("B1", "kWh", 30), day(48, "A"), FOOT])
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(whole.encode()))
    files, letters = [str(tmp_path / file) for file in ("a.csv", "b.csv.gz")], tmp_path / "refused.ndjson"
    found = CliRunner().invoke(main, ["backfill", *files, "--refused", str(letters), *where])
    assert found.stderr.splitlines() == [
        f"{files[0]}: the decoder nem12:read_meters read nothing beyond record 49",
        f"{files[0]}:49: line 4: no quality follows 48 values",
        f"{files[0]}:50: it ends without its record 900",
        "Error: 1 file could not be read to the end",
    ]
    assert found.stdout.startswith("2 files, 98 records, 96 events: 96 raw rows and 24 aggregate rows written")
    lines = [json.loads(line) for line in letters.read_text().splitlines()]
    assert [(line["reason"], line["attributes"]) for line in lines] == [
        ("REFUSED_BY_DECODER", {"file": files[0], "line": number}) for number in ("49", "50")
    ]
    mended = base64.b64decode(lines[0]["data"]).decode().replace(",47,A", ",47,48,A")
    (tmp_path / "mended.csv").write_text(mended)
    found = CliRunner().invoke(main, ["backfill", str(tmp_path / "mended.csv"), *where])
    assert (found.exit_code, found.stderr) == (0, "")
    assert found.stdout.startswith("1 file, 48 records, 48 events: 48 raw rows and 24 aggregate rows written")


def test_commands_that_try_a_decoder_of_files(nem12, tmp_path):
    """check looks at its arguments; try shows its first records, and why it read no more."""
    checked = CliRunner().invoke(main, ["mapping", "check", *OPTION])
    assert checked.stdout.strip() == "nem12:read_meters takes a file and its name"
    (tmp_path / "a.csv").write_text("\n".join([HEAD, meter("E1", "kWh", 30), day(47, "A")]))
    tried = CliRunner().invoke(main, ["mapping", "try", str(tmp_path / "a.csv"), *OPTION])
    assert tried.stdout.splitlines()[1].strip() == meter("E1", "kWh", 30)
    assert "1 refused" in tried.stdout
    assert "REFUSED_BY_DECODER: it ends without its record 900" in tried.stdout
    assert tried.stderr.endswith(
        "Error: " + str(tmp_path / "a.csv") + ": the decoder nem12:read_meters read nothing beyond record 1\n"
    )
    both = CliRunner().invoke(main, ["mapping", "try", "a.csv", *OPTION, "--message-decoder", "posixpath:join"])
    assert both.exit_code == 2
    wrong = CliRunner().invoke(main, ["mapping", "check", "--file-decoder", "nem12:read_day"])
    assert "does not take a file and its name, as f(file, name): missing a required argument: 'at'" in wrong.stderr
