import json
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.profiles import OF_ONE_COMMAND
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.flags import TidetableOptions
from pipeline.private_apis.beam_flags import declared_flags
from tests.cli.commands import all_commands
from tests.core.decoding.mapping.protos import descriptor_set
from tests.faults.bigtable_proxy import BigtableProxy
from tests.repair.tables import delete_rows
from tests.support.pubsub import Inbox
from tests.support.tables import created

DAY = ["--from", "2026-02-17", "--to", "2026-02-18"]

_DEEP = ".".join(["a"] * 5000)
_NESTED = "[" * 50_000 + "]" * 50_000
_CONTENTS = {
    "empty": b"",
    "dots": f"key.{_DEEP} = 1\n".encode(),
    "table": f"[{_DEEP}]\n".encode(),
    "arrays": f"key = {_NESTED}\n".encode(),
    "objects": b'{"a":' * 50_000,
    "numbers": f"key = 1e400\nlayout = nan\nmessage = {'9' * 5000}\n".encode(),
    "hexadecimal": f"[[rule]]\nname = 0x{'f' * 5000}\n".encode(),
    "infinite": b'{"sensor_id": "a", "event_time": 1e400, "t": -Infinity, "n": %s}\n' % (b"9" * 5000),
    "twice": b'{"a": 1, "a": 2}\nkey = 1\nkey = 2\n',
    "latin": b'key = "\xff\xfe"\n',
    "mark": "\ufeffkey = 1\n".encode(),
    "utf16": "key = 1\n".encode("utf-16"),
    "nul": b"key = \0\n\0",
    "cr": b"key = 1\rlayout = 2\r",
    "surrogate": b'key = "\\ud800"\n{"a": "\\ud800"}\n',
    "lines": b'"a\\nb\\u001b[31m" = 1\n',
    "long": b'key = "%s"\n' % (b"a" * 500_000),
    "large": b"# large\n" * 300_000,
}
_OTHERS = ("folder", "pipe", "missing", "loop", "below a file")

# Options that write a file, or whose help mentions files.
_NO_INPUT = {
    "demo --chart", "read plot --output", "mapping draft --output", "mapping draft --force", "dead-letters export file",
    "dead-letters export --force", *(f"read {each} --output" for each in ("latest-events", "events")),
    "read latest-readings --output", "read chart-points --output", "read aggregates --output", "read rollups --output",
    "backfill --refused", "backfill --force",
    "mapping try --publish-time", "mapping try --limit", "publish --sensor-column", "backfill --sensor-column",
    "repair --report", "run --temp-location", "run --status-file", "dead-letters export --ack",
}  # fmt: skip
_JSON = 'message = "json"\nsensor = "sensor_id"\ntime = "event_time"\nreadings.t = "t"\n'
_PROTOBUF = 'message = "acme.Report"\nsensor = "serial"\ntime = "$publish_time"\nreadings.c = "celsius"\n'
_REPORT = descriptor_set("package acme; message Report { string serial = 1; double celsius = 3; }")
_RECORDS = ("publish file", "backfill inputs", "mapping draft sample")  # a refused record has a line of its own
_PAYLOAD = "mapping try files"  # shows what a job would make of any content
_SUFFIXES = {
    "publish file": (".ndjson", ".csv", ".avro", ".parquet", ".pb"),
    "backfill inputs": (".csv", ".avro", ".parquet"),  # the others take seconds, a pipeline each
    "mapping draft sample": (".ndjson", ".csv", ".avro", ".parquet", ".json"),
    _PAYLOAD: (".ndjson", ".csv", ".avro", ".parquet", ".pb", ".bin"),
}
# A file without rules removes them, one without messages publishes none, and any line of text may be a column's name.
_VALID = {
    ("alerts apply file", ".toml"): {"empty"},
    ("publish file", ".pb"): {"empty"},
    ("mapping draft sample", ".csv"): set(_CONTENTS),
    ("mapping draft sample", ".ndjson"): {"infinite"},  # what the draft makes of it is shown
    ("mapping draft sample", ".json"): {"infinite"},
    **{(_PAYLOAD, suffix): set(_CONTENTS) for suffix in _SUFFIXES[_PAYLOAD]},
}
_TABLE_OF = ("table", "alerts", "backfill", "serve")
_NEEDED = {
    "plan": ["--sensor-count", "1", "--interval", "1s"],
    "run": ["--dead-letters=drop", "--input-subscription=projects/test-project/subscriptions/sub"],
    "serve": ["--host", "127.0.0.1"],
    "alerts deliver": [
        "--alerts-subscription",
        "projects/test-project/subscriptions/sub",
        "--url",
        "https://127.0.0.1",
    ],
    "dead-letters": ["--subscription", "projects/test-project/subscriptions/sub"],
}


def test_commands_take_the_route(bigtable, monkeypatch, tmp_path) -> None:
    """Every command that reads or writes rows sends all requests for rows through the app profile."""
    name = TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}", "batch")
    readings = tmp_path / "readings.ndjson"
    event = {"sensor_id": "a", "event_time": "2026-02-17T10:00:00Z", "readings": {"t": 1}}
    readings.write_text(json.dumps(event))
    where = ["--project", name.project, "--instance", name.instance, "--table", name.table, "--app-profile", "batch"]
    for words, methods in (
        (["table", "create", "--gc", "raw=never", "--gc", "stats=never", "--gc", "meta=never"], {"CheckAndMutateRow"}),
        (["table", "diff"], {"ReadRows"}),
        (["backfill", readings], {"ReadRows", "MutateRows"}),
        (["read", "events", "a", *DAY], {"ReadRows"}),
        (["read", "aggregates", "a", *DAY], {"ReadRows"}),
        (["repair", *DAY], {"ReadRows", "MutateRows", "SampleRowKeys"}),
        (["forget", "a", "--yes"], {"ReadRows", "MutateRows"}),
    ):
        if words[0] == "repair":  # which writes what is wrong
            monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", bigtable)
            delete_rows(name, [b"agg#hourly#a#2026-02-17T10"])
        with BigtableProxy(bigtable) as proxy:
            monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", proxy.address)
            ran = CliRunner().invoke(main, [*map(str, words), *where])
        assert ran.exit_code == 0, ran.output
        assert methods <= {*proxy.app_profiles}, words
        assert set().union(*proxy.app_profiles.values()) == {"batch"}, words


def test_an_option_means_one_thing() -> None:
    """An option has one type, one metavar and one meaning, the beginning of its help, in the whole tree.

    ``run`` passes its options on as text, with the help of the job's flags.
    """
    meanings = defaultdict(set)
    for path, command in all_commands():
        for option in command.params if path != "run" else ():
            if isinstance(option, click.Option) and not option.hidden:
                begins = re.split("[.,:;]( |$)", option.help or "")[0]
                meanings[option.opts[-1]].add((option.type.name, option.metavar, begins))
    meanings.pop("--sensor")  # a dead letter may have an id that no sensor can have
    differing = {name for name, found in meanings.items() if len(found) > 1}
    # A profile has to name the command for these: a chart is a PNG, a new table's tier has a family.
    assert differing <= {f"--{name}" for name in OF_ONE_COMMAND}, {name: meanings[name] for name in differing}


def test_options_are_written_with_hyphens() -> None:
    """So are the options that help mentions, and each begins with a capital and ends with a full stop."""
    for path, command in all_commands():
        for option in command.params:
            if isinstance(option, click.Option) and option.help:
                assert not re.search(r"(?<!protoc )--(?!descriptor)[a-z]+_", " ".join([*option.opts, option.help])), (
                    path,
                    option.opts,
                )
                assert option.help[0].isupper(), (path, option.opts)
                assert re.sub(r" \[default: .*\]$", "", option.help)[-1] == ".", (path, option.opts)
        assert not re.search(r"--[a-z]+_", command.help or ""), path


def test_not_a_number() -> None:
    """No option in a range takes NaN, which is neither below nor above its limits."""
    options = {
        f"{path} {param.opts[0]}": param.type
        for path, each in all_commands()
        for param in each.params
        if isinstance(param.type, click.FloatRange)
    }
    assert "plan --late" in options
    for type_ in options.values():
        with pytest.raises(click.BadParameter, match="'nan' is not a number"):
            type_.convert("nan", None, None)


class _Taker(NamedTuple):
    """A parameter that takes a file, by the command's words and the parameter's last name."""

    path: str
    name: str
    param: click.Parameter

    @property
    def id(self) -> str:
        return f"{self.path} {self.name}"


def _takers() -> Iterator[_Taker]:
    for path, command in all_commands():
        for param in command.params:
            text = f"{param.metavar or ''} {getattr(param, 'help', '') or ''}".lower()
            takes = isinstance(param.type, (click.Path, click.File)) or param.type.name == "filename"
            found = _Taker(path, param.opts[-1], param)
            takes = takes or "file" in text.replace("profile", "") or (path, param.name) == ("backfill", "inputs")
            if takes and found.id not in _NO_INPUT:
                yield found


_TAKERS = list(_takers())


def test_flags_of_the_job_are_among_them() -> None:
    """Whatever names a file to the job is an option of tidetable run, which is tried here."""
    flags = {flag.name.replace("_", "-") for flag in declared_flags(TidetableOptions) if flag.metavar == "FILE"}
    assert {flag for flag in flags if f"run {flag}" not in _NO_INPUT} == {
        taker.name for taker in _TAKERS if taker.path == "run"
    }


def _hostile(folder: Path, suffix: str) -> Iterator[tuple[str, Path]]:
    for name, content in _CONTENTS.items():
        path = folder / f"{name}{suffix}"
        path.write_bytes(content)
        yield name, path
    paths = {name: folder / f"{name}{suffix}" for name in _OTHERS}
    paths["folder"].mkdir()
    os.mkfifo(paths["pipe"])
    paths["loop"].symlink_to(paths["loop"])
    paths["below a file"] = folder / f"empty{suffix}" / f"x{suffix}"
    yield from paths.items()


@pytest.fixture
def arguments(bigtable: str, pubsub: str, tmp_path: Path) -> Callable[[_Taker, Path], list[str]]:
    """Returns what to type for a parameter's file, with all else that its command needs."""
    table, inbox = created(TableSchema.for_new_table()), Inbox()
    where = ["--project", table.project, "--instance", table.instance, "--table", table.table]
    good = {name: tmp_path / name for name in ("json.toml", "protobuf.toml", "report", "good.ndjson")}
    good["json.toml"].write_text(_JSON)
    good["protobuf.toml"].write_text(_PROTOBUF)
    good["report"].write_bytes(_REPORT)
    good["good.ndjson"].write_text(json.dumps({"sensor_id": "a", "event_time": "2026-02-17T10:00:00Z", "t": 1}))

    def typed(taker: _Taker, file: Path) -> list[str]:
        path, name, param = taker
        first = path if path in _NEEDED else path.split()[0]
        words = [*path.split(), *_NEEDED.get(first, []), *(where if first in _TABLE_OF else [])]
        if path in ("mapping check", "mapping draft"):
            words = path.split()
        if first == "run":
            words += ["--bigtable-project", table.project, "--instance", table.instance, "--table", table.table]
        if name == "--message-descriptors":
            if path == "mapping draft":
                words += ["--message", "acme.Report"]
            else:
                words += ["--message-mapping", str(good["protobuf.toml"])]
        if path == "mapping try" and name == "files":
            words += ["--message-mapping", str(good["json.toml"])]
        if path in ("publish", "backfill", "mapping try") and name.startswith("--"):
            words.append(str(good["good.ndjson"]))
        given = [str(file)] if isinstance(param, click.Argument) else [name, str(file)]
        if path in ("publish", "simulate", "dead-letters replay"):
            words += ["--topic", inbox.topic]
        if path == "dead-letters export":
            words.append(str(tmp_path / "exported.ndjson"))
        return [*words[: len(path.split())], *given, *words[len(path.split()) :]]

    return typed


@pytest.mark.slow
@pytest.mark.parametrize("taker", _TAKERS, ids=[taker.id for taker in _TAKERS])
def test_hostile_files(taker: _Taker, arguments: Callable[[_Taker, Path], list[str]], tmp_path: Path) -> None:
    """The command says in one line which file it can't use, does nothing, and its exit code tells."""
    folder = tmp_path / "hostile"
    folder.mkdir()
    for suffix in _SUFFIXES.get(taker.id, (".toml",)):
        for name, path in _hostile(folder / suffix[1:] if not (folder / suffix[1:]).mkdir() else folder, suffix):
            ran = CliRunner().invoke(main, arguments(taker, path))
            about = f"{name}{suffix}: {ran.stderr}"
            assert ran.exception is None or isinstance(ran.exception, SystemExit), about
            assert "Traceback" not in ran.output, about
            if name in _VALID.get((taker.id, suffix), ()):
                continue
            assert ran.exit_code in (1, 2), about
            assert path.name in ran.stderr.replace("\n", " "), about
            if taker.id not in _RECORDS:
                lines = [line for line in ran.stderr.splitlines() if not line.startswith(("Usage: ", "Try ")) and line]
                assert len(lines) == 1, about
                assert len(lines[0]) < 1000, about
                assert lines[0].isprintable(), about


@pytest.mark.parametrize("name", [*_CONTENTS, *_OTHERS])
def test_hostile_profiles(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of profiles is such a file, for every command."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = dict(_hostile(tmp_path, ""))[name]
    (tmp_path / "tidetable").mkdir()
    (tmp_path / "tidetable/config.toml").symlink_to(path)
    ran = CliRunner().invoke(main, ["--profile", "default", "read", "sensors"])
    assert (ran.exit_code, type(ran.exception)) == (2, SystemExit)
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert last.isprintable()
    assert str(tmp_path / "tidetable/config.toml") in last
