"""Messages of other types through the whole job: exact rows, dead letters and counts; and what the launch refuses."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main as toolbox
from pipeline.cloud.tables import tables
from pipeline.core.events.message import Message, message_of
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.checks import read_types
from pipeline.job.flags import BadFlag
from pipeline.job.launch import main
from pipeline.job.settings import MessageFlags
from tests.faults.judge import differences
from tests.job import foreign
from tests.job.running import running_job
from tests.support import streams
from tests.support.lasting import lasting
from tests.support.records import delimited_messages
from tests.support.waiting import eventually

HOUR_US = 3_600_000_000


def test_foreign_and_built_in_messages_on_one_topic(resources, tmp_path):
    """With duplicates and late events, raw rows and aggregates are those of the events that the messages contain."""
    chance = random.Random(15)
    now_us = time.time_ns() // 1000
    # From hours whose windows are closed, and from this one; each time once, so no two events are at the same time.
    times_us = [now_us - chance.randrange(5 * HOUR_US) // 1000 * 1000 - index for index in range(400)]
    reports = foreign.report_events(chance, times_us[:100])
    single = foreign.gateway_events(chance, times_us[100:200])
    in_lines = foreign.line_events(chance, times_us[200:300])
    own = foreign.gateway_events(chance, times_us[300:])
    messages = {
        "plant.v1.Report": [foreign.report_of(reports[i : i + 5]) for i in range(0, 100, 5)],
        "json": [foreign.gateway_of(event) for event in single],
        "tests.job.foreign.read_lines": [foreign.lines_of(in_lines[i : i + 10]) for i in range(0, 100, 10)],
        "built-in": [message_of(own[i : i + 10]) for i in range(0, 100, 10)],
    }
    refused = {
        b"\xff": ("UNPARSEABLE", {"message_type": foreign.REPORT, "site": "north"}),
        b"{}": ("MISSING_SENSOR_ID", {"source": "gateway"}),
        b"?": ("REFUSED_BY_DECODER", {"message_type": "riddle"}),
        b"no line": ("DECODER_FAILED", {"message_type": "lines"}),
    }
    published = [message for of_type in messages.values() for message in of_type]
    published += chance.choices(published, k=40)
    chance.shuffle(published)
    published += [Message(data, attributes) for data, (_, attributes) in refused.items()]
    resources.table = resources.table_of(lasting(TableSchema.for_new_table()))
    with running_job(resources.flags(**foreign.flags(tmp_path)), tmp_path / "job.log") as job:
        resources.publish(published)
        letters = resources.dead_letters(len(refused))
        expected = [*reports, *single, *in_lines, *own]
        eventually(lambda: not differences(resources.table, expected), seconds=60)
        assert job.stop() == 0
    assert differences(resources.table, expected) == []
    for letter in letters:
        reason, attributes = refused[letter.data]
        assert letter.attributes["dead_letter_reason"] == reason
        assert attributes.items() <= dict(letter.attributes).items()
    counters = job.counters()
    assert counters["messages"] == len(published)
    assert counters["dead_letters"] == len(refused)
    sizes = {"plant.v1.Report": 5, "json": 1, "tests.job.foreign.read_lines": 10}
    for name, size in sizes.items():
        count = sum(message in messages[name] for message in published)
        n_refused = 2 if name.endswith("lines") else 1
        assert counters[f"messages_of_{name}"] == count + n_refused
        assert counters[f"events_of_{name}"] == size * count
        assert counters[f"refused_of_{name}"] == n_refused
    assert counters["skipped_of_plant.v1.Report"] == counters["messages_of_plant.v1.Report"] - 1

    # A backfill of the same payloads, from files, makes the same rows in another table.
    other = replace(resources.table, table=f"{resources.table.table}-2")
    tables.create(other, lasting(TableSchema.for_new_table()))
    payloads = [message.data for message in messages["plant.v1.Report"]]
    (tmp_path / "reports.pb").write_bytes(delimited_messages(*payloads))
    (tmp_path / "gateway.ndjson").write_bytes(b"".join(message.data + b"\n" for message in messages["json"]))
    options = ["--project", other.project, "--instance", other.instance, "--table", other.table]
    options += ["--allowed-lateness", "0s", "--message-descriptors", str(tmp_path / "types.binpb")]
    for file, mapping, attribute in (
        ("reports.pb", "report.toml", "site=north"),
        ("gateway.ndjson", "gateway.toml", "source=gateway"),
    ):
        of_type = ["--message-mapping", str(tmp_path / mapping), "--attribute", attribute]
        result = CliRunner().invoke(toolbox, ["backfill", str(tmp_path / file), *options, *of_type])
        assert result.exit_code == 0, result.output
    assert differences(other, [*reports, *single]) == []


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"message_mapping": "{folder}/typo.toml"},
            "--message-mapping: {folder}/typo.toml:8: readings.temperature: .centi_celcius: plant.v1.Report.Sample has "
            "no field 'centi_celcius'; did you mean centi_celsius?",
        ),
        ({"message_mapping": "{folder}/no.toml"}, "--message-mapping: {folder}/no.toml: No such file or directory"),
        (
            {"message_descriptors": "{folder}/typo.toml"},
            "--message-descriptors: {folder}/typo.toml: descriptors: they are not a FileDescriptorSet, which protoc "
            "--descriptor_set_out writes",
        ),
        (
            {"message_descriptors": "{folder}/no.binpb"},
            "--message-descriptors: {folder}/no.binpb: No such file or directory",
        ),
        (
            {"message_decoder": "tests.job.foreign:nothing"},
            "--message-decoder: 'tests.job.foreign:nothing' is not a function of this environment, as module:function: "
            "AttributeError: module 'tests.job.foreign' has no attribute 'nothing'",
        ),
        (
            {"default_message_type": "plant.v2.Report"},
            "--default-message-type: plant.v2.Report can't be the default type: it is none of "
            "tidetable.v1.SensorEvent, tidetable.v1.SensorEventBatch, plant.v1.Report",
        ),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else "",
)
def test_what_the_launch_refuses(tmp_path, capsys, changes, line):
    """Mappings, decoder and default type are checked before a server is asked: one line and exit code 2."""
    known = foreign.flags(tmp_path)
    (tmp_path / "typo.toml").write_text(foreign.REPORT_MAPPING.replace("celsius", "celcius"))
    filled = {name: value.format(folder=tmp_path) for name, value in changes.items()}
    assert main(streams.flags(**known | filled)) == 2
    assert capsys.readouterr().err == f"tidetable: {line.format(folder=tmp_path)}\n"


def test_a_mapping_that_needs_the_name_of_a_file(tmp_path: Path) -> None:
    """Messages have no file, so a launch refuses it, and says what can read it."""
    path = tmp_path / "stem.toml"
    path.write_text('message = "json"\nsensor = "s/{$file.stem}"\ntime = "t"\nreadings.t = "t"\n')
    with pytest.raises(BadFlag) as refused:
        read_types(MessageFlags((str(path),)))
    assert str(refused.value) == (
        f"--message-mapping: {path}: $file.stem: messages have no file; backfill reads files by this mapping, and "
        "publish sends the events that it makes"
    )


def test_a_mapping_that_needs_the_order_of_a_file(tmp_path: Path) -> None:
    """Messages have none, so a launch refuses it."""
    path = tmp_path / "order.toml"
    time = '{ path = "t", time_zone = "Europe/Berlin", ambiguous = "order" }'
    path.write_text(f'message = "json"\nsensor = "id"\ntime = {time}\nreadings.t = "t"\n')
    with pytest.raises(BadFlag, match=r'order\.toml: time\.ambiguous: "order" is for the records of files'):
        read_types(MessageFlags((str(path),)))
