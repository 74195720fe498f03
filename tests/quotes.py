"""The blocks of the documentation that quote what code prints: ``python -m tests.quotes`` refreshes them.

A page marks such a block with ``<!-- quoted: NAME -->`` and ``<!-- end -->``.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable
from contextlib import chdir
from functools import cache, partial
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner
from google.protobuf.json_format import MessageToJson

import pipeline
from benchmarks import sizes
from benchmarks.bench import report
from pipeline.cli.root import COMMANDS, main
from pipeline.core.events.event import deserialized
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.results.window_results import PaneResult, batches_of, read_batch
from pipeline.core.results.window_results import message_of as message_of_result
from pipeline.core.rows.aggregate_rows import encoded_aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.job import graph
from pipeline.local.embedded import bigtable, pubsub, tables
from pipeline.local.embedded.bigtable import BigtableData, BigtableTableAdmin
from pipeline.local.embedded.pubsub import SubscriptionsApi, TopicsApi
from pipeline.local.embedded.schemas import Schemas
from tests.support.rows import decoded

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("templates/*.md")])
_BLOCK = re.compile(r"(<!-- quoted: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _graph() -> str:
    """Returns the picture of the graph that the module which builds it has."""
    lines = [line for line in (graph.__doc__ or "").splitlines() if line.startswith("    ")]
    return _fenced(textwrap.dedent("\n".join(lines)))


def _commands() -> str:
    output = CliRunner().invoke(main, ["--help"], terminal_width=110).output
    listed = output[output.index(next(iter(COMMANDS.values())).section) : output.index("  Every option")]
    return _fenced(listed.rstrip())


def _fenced(text: str, language: str = "") -> str:
    return f"```{language}\n{text}\n```"


EVENT = sensor_event("balloon-7", parse_time("2026-02-17T10:30:00.5Z"), {"temperature": 23.5}, {"location": "north"})


def _message() -> str:
    message = message_of([EVENT])
    attributes = [f"{name:<15} {value}" for name, value in message.attributes.items()]
    data = textwrap.fill(message.data.hex(" "), 88, initial_indent="data, in hex    ", subsequent_indent=" " * 16)
    return _fenced("\n".join([*attributes, data]))


def _result_json() -> str:
    """Returns the result of the event's window, as JSON."""
    tier, event = TableSchema.for_new_table().tiers[0], deserialized(EVENT.SerializeToString())
    stats = WindowStats()
    stats.add(event.readings)
    result = PaneResult(0, event.sensor_id, tier.window.start_of(event.event_time_us), stats, "on_time")
    (batch,) = batches_of([result], (tier,), parse_time("2026-02-17T08:00:00Z"), 12)
    (data,) = (message_of_result(each, "json").data for each in read_batch(batch))
    return _fenced(json.dumps(json.loads(data), indent=2), "json")


def rows_of_the_event() -> list[Row]:
    """Returns the rows that the job writes for the event to a new table."""
    schema, event = TableSchema.for_new_table(), deserialized(EVENT.SerializeToString())
    stats, newest, tier = WindowStats(), NewestReadings(), schema.tiers[0]
    stats.add(event.readings)
    newest.add(event.sensor_id, event.event_time_us, event.readings.items())
    start_us = tier.window.start_of(event.event_time_us)
    encoded = encoded_aggregate_row(tier.window, event.sensor_id, start_us, stats, tier.family)
    return [*schema.rows(event), decoded(encoded), *map(decoded, newest.rows(schema.latest))]


def _rows() -> str:
    """Returns the event as JSON, and its rows: keys, columns, values and times of cells."""
    lines = [MessageToJson(EVENT, indent=None).replace(' "readings"', '\n "readings"')]
    for row in rows_of_the_event():
        lines.append(row.key.decode())
        for cell in row.cells:
            column = f"{cell.family}:{cell.qualifier.decode()}"
            lines.append(f"    {column:<25} {cell.value.decode():<7} @ {format_time(cell.timestamp_us)}")
    return _fenced("\n".join(lines))


@cache
def _mapping_outputs() -> dict[str, str]:
    """Returns what the commands of the page on mappings print, by the quoted blocks below them."""
    page = (ROOT / "docs/mappings.md").read_text()
    outputs = {}
    activated = os.environ | {"PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"}
    with TemporaryDirectory() as folder, chdir(folder):
        for part in re.split(r"\n(?=## )", page.partition("## 5.")[0]):
            for name, content in re.findall(r"`([\w.]+)`:\n\n```\w*\n(.*?)^```$", part, re.DOTALL | re.MULTILINE):
                Path(name).write_text(content)
            for commands, quoted in re.findall(
                r"^```sh\n(.*?)^```\n(?:\n<!-- quoted: (\w+) -->)?", part, re.DOTALL | re.MULTILINE
            ):
                for line in commands.splitlines():
                    program, *arguments = shlex.split(line)
                    if program == "tidetable":
                        ran = CliRunner().invoke(main, arguments)
                        assert ran.exit_code == 0, (line, ran.output)
                        printed = ran.stdout
                    else:
                        subprocess.run(["bash", "-c", line], env=activated, check=True)
                if quoted:
                    outputs[quoted] = _fenced("\n".join(line.rstrip() for line in printed.strip().splitlines()))
    return outputs


def _mapping_output(name: str) -> str:
    return _mapping_outputs()[name]


def _reasons() -> str:
    """Returns the reasons of dead letters as a table, with the text below each in the code."""
    source = (ROOT / "pipeline/core/events/reasons.py").read_text()
    rows = re.findall(r'^    [A-Z_]+ = "(\w+)"\n    """(.+?)\."""$', source, re.MULTILINE)
    return "\n".join(
        ["| reason | meaning |", "|---|---|", *(f"| `{reason}` | {meaning} |" for reason, meaning in rows)]
    )


def _packages() -> str:
    """Returns the list of packages from the docstring of ``pipeline``."""
    (listed,) = re.findall(r"(?:^    .+\n)+", pipeline.__doc__, re.MULTILINE)
    return _fenced(textwrap.dedent(listed).rstrip())


def _rooms(package: str) -> str:
    """Draws the rooms of a package as floors, as import-linter holds them, each with its docstring's first sentence."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [package])
    rule, lines = "─" * 109, []
    for rooms in (layer.split(" | ") for layer in layers):
        width = (110 - 3 * len(rooms)) // len(rooms)
        texts = [[room, *textwrap.wrap(_summary(f"{package}.{room}"), width)] for room in rooms]
        rows = (" │ ".join(f"{line:<{width}}" for line in row) for row in zip_longest(*texts, fillvalue=""))
        lines += [f"├{rule}┤", *(f"│ {row:<107} │" for row in rows)]
    return _fenced("\n".join([f"┌{rule}┐", *lines[1:], f"└{rule}┘"]))


def _summary(module: str) -> str:
    return import_module(module).__doc__.partition("\n\n")[0]


def _emulated_methods() -> str:
    """Returns the built-in emulator's services with their methods."""
    services = [BigtableData, BigtableTableAdmin, TopicsApi, SubscriptionsApi, Schemas]
    lines = []
    for service in services:
        methods = sorted(name for name in dir(service) if hasattr(getattr(service, name), "handler_of"))
        lines += [
            f"{service.name}",
            textwrap.fill(", ".join(methods), 100, initial_indent="    ", subsequent_indent="    "),
        ]
    return _fenced("\n".join(lines))


def _emulated_limits() -> str:
    """Returns the built-in emulator's limits."""
    limits = {
        "a row key": f"{tables.MAX_KEY_BYTES >> 10} KiB",
        "a column qualifier": f"{tables.MAX_QUALIFIER_BYTES >> 10} KiB",
        "a cell": f"{tables.MAX_CELL_BYTES >> 20} MiB",
        "a row": f"{tables.MAX_ROW_BYTES >> 20} MiB",
        "mutations of a request": f"{bigtable.MAX_MUTATIONS:,}",
        "messages of a request": f"{pubsub.MAX_MESSAGES:,}",
        "a request that publishes": f"{pubsub.MAX_REQUEST_BYTES // 1_000_000} MB",
        "attributes of a message": str(pubsub.MAX_ATTRIBUTES),
        "an attribute's key and value": f"{pubsub.MAX_KEY_BYTES} and {pubsub.MAX_VALUE_BYTES:,} bytes",
        "an ordering key": f"{pubsub.MAX_ORDERING_KEY_BYTES:,} bytes",
    }
    return "\n".join(["| limit | at most |", "|---|---|", *(f"| {name} | {limit} |" for name, limit in limits.items())])


QUOTES: dict[str, Callable[[], str]] = {
    "graph": _graph,
    "commands": _commands,
    **{
        name: partial(_mapping_output, name)
        for name in ("mapping_json", "mapping_draft", "mapping_check", "mapping_try")
    },
    "emulated_limits": _emulated_limits,
    "emulated_methods": _emulated_methods,
    "message": _message,
    "message_json": lambda: _fenced(MessageToJson(EVENT, indent=2), "json"),
    "packages": _packages,
    "reasons": _reasons,
    "rooms_of_cloud": lambda: _rooms("pipeline.cloud"),
    "rooms_of_mapping": lambda: _rooms("pipeline.core.decoding.mapping"),
    "rooms_of_core": lambda: _rooms("pipeline.core"),
    "result_json": _result_json,
    "rows": _rows,
    "sizes": lambda: _fenced("\n".join(sizes.lines())),
    "one_machine": lambda: "\n".join(report.one_machine_lines(report.RESULT)),
    "speed": lambda: "\n".join(report.quoted_lines(report.RESULT)),
    "state_size": lambda: _fenced("\n".join(sizes.state_lines())),
}


def refreshed(page: str) -> str:
    """Returns the page with every quoted block as it is printed now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{QUOTES[block[2]]()}\n{block[3]}", page)


def quoted_names(page: str) -> list[str]:
    """Returns the names of the page's quoted blocks."""
    return [name for _, name, _ in _BLOCK.findall(page)]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text()))
