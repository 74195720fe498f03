"""A table with readings, and the server in a process of its own, as people start it."""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import requests

from pipeline.cloud.connection.names import TableName
from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.events.event import Event
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.toml import parse_schema
from tests.support.preloaded import TIDETABLE
from tests.support.rows import decoded
from tests.support.tables import created, write

SCHEMA = 'latest = "latest"\n'
MINUTE, HOUR = 60_000_000, 3_600_000_000
NOW = time.time_ns() // 1000
START = NOW - NOW % HOUR - 5 * HOUR
EVENTS = [
    Event(sensor_id, START + n * 10 * MINUTE, {"t": float(n), "u": -1.0}, {"site": "<b>north</b>"})
    for sensor_id in ("hall-1", "hall-2", "Roof&e=1")
    for n in range(24)
] + [Event("old", START - 100 * HOUR, {"t": 7.0}, {})]


def table_of(events: Iterable[Event], text: str = SCHEMA) -> TableName:
    """Returns a table with all rows of these events."""
    schema = parse_schema(text)
    name = created(schema)
    if rows := rows_of(schema, events):
        write(name, rows)
    return name


def rows_of(schema: TableSchema, events: Iterable[Event]) -> list[Row]:
    """Returns the raw rows of events, the aggregate rows of their windows, and those of newest readings."""
    newest, windows, rows = NewestReadings(), {}, []
    for event in events:
        newest.add(event.sensor_id, event.event_time_us, event.readings.items())
        rows += schema.rows(event)
        for tier in schema.tiers:
            key = tier, event.sensor_id, tier.window.start_of(event.event_time_us)
            windows.setdefault(key, WindowReadings()).add(event.event_time_us, event.readings)
    for (tier, sensor_id, start_us), readings in windows.items():
        stats = readings.pane(tier.statistics).stats
        rows.append(aggregate_row(tier.window, sensor_id, start_us, stats, tier.family, tier.statistics))
    if schema.latest:
        rows += map(decoded, newest.rows(schema.latest))
    return rows


@contextmanager
def serving(
    name: TableName,
    *options: str,
    port: int = 0,
    environment: dict[str, str] | None = None,
    started: Callable[[subprocess.Popen], object] = lambda _: None,
) -> Iterator[str]:
    """Runs ``tidetable serve`` until the block ends, and yields its address without a slash at the end."""
    command = [*TIDETABLE, "serve", f"--port={port}"]
    table = [f"--project={name.project}", f"--instance={name.instance}", f"--table={name.table}"]
    process = subprocess.Popen(
        [*command, *table, *options], stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})}
    )
    started(process)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"at (http://\S+)/ until Ctrl-C", line)
        assert found, line + process.stderr.read()
        yield found[1]
    finally:
        process.terminate()
        printed = process.stderr.read() if process.stderr else ""
        assert process.wait(20) in (0, -15), printed
        assert printed == ""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # in any case
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(address: str, method: str = "GET", **headers: str) -> Answer:
    """Sends a request."""
    answer = requests.request(method, address, headers=headers, timeout=30)
    return Answer(answer.status_code, answer.headers, answer.content)


def token_file(folder: Path) -> tuple[Path, str]:
    path, token = folder / "token", "0123456789abcdef0123"
    path.write_text(token + "\n")
    return path, token
