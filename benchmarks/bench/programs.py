"""The programs of the comparison, each in a process of its own that writes one table after another."""

import gc
import importlib
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks.bench.feed import Feed
from pipeline.cloud.connection.names import TableName
from pipeline.core.schema.toml import parse_schema


@dataclass(frozen=True)
class Program:
    """A program of the comparison.

    Args:
        key: its name in the floors.
        name: its name in tables.
        module: its module in this package.
        batch: events per message.
        share: share of the events that it writes; less for slow programs, which still take longest.
        flags: flags for Tidetable.
        schema: the table's schema, in TOML.
        builds: whether it builds something for each table before it runs.
    """

    key: str
    name: str
    module: str
    batch: int
    share: float = 1.0
    flags: tuple[str, ...] = ()
    schema: str = ""
    builds: bool = False

    def first(self, feed: Feed) -> int:
        """Returns how many of the feed's first events it writes."""
        return int(feed.events * self.share)

    def warming_up(self, feed: Feed) -> int:
        """Returns the number of warm-up events, in whole messages: enough to run all of its code."""
        first = self.first(feed)
        return min(first, max(first // 10 // self.batch, 1) * self.batch)


_HALF, _PART = 1 / 2, 1 / 9
_BULK = ("--bigtable_writer=bulk",)
HAND_LOOP = Program("hand_loop", "(1) hand loop", "hand_loop", 100)
PROGRAMS = (
    HAND_LOOP,
    Program("hand_loop_single", "(1) hand loop", "hand_loop", 1, _HALF),
    Program("batcher", "(2) data client, mutations_batcher", "batcher", 100, _PART),
    Program("plain_beam", "(3) plain Beam, WriteToBigTable", "plain_beam", 100, _PART, builds=True),
    Program("connector", "(4) Tidetable, connector", "tidetable", 100, _PART, builds=True),
    Program("connector_single", "(4) Tidetable, connector", "tidetable", 1, _PART, builds=True),
    Program("bulk", "(5) Tidetable, bulk", "tidetable", 100, flags=_BULK, builds=True),
    Program("bulk_single", "(5) Tidetable, bulk", "tidetable", 1, _HALF, flags=_BULK, builds=True),
    Program("mapped", "(6) Tidetable, bulk, mapped protobuf", "mapped", 100, flags=("protobuf", *_BULK), builds=True),
    Program(
        "mapped_json", "(7) Tidetable, bulk, mapped JSON", "mapped", 100, _HALF, flags=("json", *_BULK), builds=True
    ),
    Program(
        "statistics",
        "(8) Tidetable, bulk, more statistics",
        "tidetable",
        100,
        flags=_BULK,
        builds=True,
        schema='[statistics]\nother = ["p50", "p95", "p99", "first", "last", "increase"]',
    ),
)


class Taken(NamedTuple):
    """What a run took.

    Attributes:
        seconds: of the clock.
        cpu_s: of the processors: user and system time of all threads of the program's process.
    """

    seconds: float
    cpu_s: float


class Worker:
    """A program in its own process, for the duration of the ``with`` block."""

    def __init__(self, program: Program, feed: Feed) -> None:
        self.program = program
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.bench.programs",
                program.key,
                str(feed.start_us),
                str(feed.events),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: TableName, first: int) -> Taken:
        """Writes the first events to this table; returns what it took."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([name.project, name.instance, name.table, first]), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.program.name} ended with exit code {self._process.wait()}")
        return Taken(*json.loads(answer))

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def serve(program: Program, feed: Feed) -> None:
    """Reads tables' names and numbers of events from standard input, writes the events and prints what it took."""
    sys.stdout, answers = sys.stderr, sys.stdout  # keeps a program's output apart from the answers
    logging.disable(logging.WARNING)
    beam = program.module in ("plain_beam", "tidetable", "mapped")
    first = program.first(feed)
    messages = feed.pubsub_messages(program.batch, first) if beam else feed.messages(program.batch, first)
    module: Any = importlib.import_module(f"benchmarks.bench.{program.module}")
    gc.collect()
    gc.freeze()  # keeps the garbage collector from scanning the messages
    for line in sys.stdin:
        *names, events = json.loads(line)
        name = TableName(*names)
        some = messages[: -(-events // program.batch)]
        more = {"schema": parse_schema(program.schema)} if program.schema else {}
        prepared: Callable[[TableName], Any] = module.prepare(some, *program.flags, **more)
        run = prepared(name) if program.builds else partial(prepared, name)
        gc.collect()
        begin, cpu_begin = time.perf_counter(), time.process_time()
        run()
        taken = Taken(time.perf_counter() - begin, time.process_time() - cpu_begin)
        print(json.dumps(taken), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    _key, _start_us, _events = sys.argv[1:]
    serve(next(program for program in PROGRAMS if program.key == _key), Feed(int(_start_us), int(_events)))
