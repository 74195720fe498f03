"""``make bench`` measures programs, and ``make bench-check`` compares the result with the floors.

--json is the file of the result, --rounds the number of a program's runs, --events the number of events, a multiple of
300. --only selects programs besides the hand loop; --check compares an earlier result.
"""

import sys
import time
import uuid
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from benchmarks.bench.check import check
from benchmarks.bench.direct import DIRECT_PROGRAMS, DirectProgram
from benchmarks.bench.direct import run as run_direct
from benchmarks.bench.feed import HOUR_US, HOURS, Feed
from benchmarks.bench.programs import HAND_LOOP, PROGRAMS, Program, Taken, Worker
from benchmarks.bench.report import RESULT, Measured, Run, below_floors, print_table, write_json
from benchmarks.measuring import arguments, emulators
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.toml import parse_schema
from pipeline.local.emulators import BIGTABLE, PUBSUB
from tests.support.lasting import lasting

EVENTS = 180_000
ROUNDS = 5
DIRECT_ROUNDS = 3  # a job takes a while to start, and again until its last panes fire

err = Console(stderr=True, highlight=False)


def main() -> int:
    programs = {program.key: program for program in (*PROGRAMS, *DIRECT_PROGRAMS)}
    options = arguments(json=RESULT, rounds=ROUNDS, events=EVENTS, only=list(programs), check=False)
    if options.check:
        return _check(options.json)
    selected = [program for key, program in programs.items() if program is HAND_LOOP or key in options.only]
    # Yesterday's events would be expired or late for the job; all of these are over when it starts.
    start_us = (time.time_ns() // 1000 // HOUR_US - HOURS) * HOUR_US
    began = time.monotonic()
    measured = _measure(selected, Feed(start_us, options.events), options.rounds)
    remark = f"{options.rounds} rounds in {time.monotonic() - began:.0f} s"
    print_table(measured, Console(width=None if sys.stdout.isatty() else 110))
    print(remark)
    write_json(measured, [remark], options.json)
    return 0


def _check(path: Path) -> int:
    if not path.exists():
        print(f"bench-check: there is no {path}; run make bench first", file=sys.stderr)
        return 1
    problems = below_floors(path)
    for problem in problems:
        print(f"bench-check: {problem}", file=sys.stderr)
    print(
        f"bench-check: {len(problems)} below their floors" if problems else "bench-check: every ratio holds its floor"
    )
    return 1 if problems else 0


def _measure(programs: list[Program | DirectProgram], feed: Feed, rounds: int) -> list[Measured]:
    measured = {
        program.key: Measured(
            program.key,
            program.name,
            program.batch,
            program.events if isinstance(program, DirectProgram) else program.first(feed),
        )
        for program in programs
    }
    with ExitStack() as stack:
        stack.enter_context(emulators(PUBSUB, BIGTABLE))
        counters = stack.enter_context(ProcessPoolExecutor(2, get_context("spawn")))
        workers = {
            program.key: stack.enter_context(Worker(program, feed))
            for program in programs
            if isinstance(program, Program)
        }
        for number in range(rounds + 1):
            of_hand_loop: Run | None = None
            for program in programs:
                if isinstance(program, Program):
                    first = program.first(feed) if number else program.warming_up(feed)
                    taken = _run(workers[program.key], feed, first, counters)
                    run = Run(first / taken.seconds, taken.cpu_s * 1e6 / first)
                elif 0 < number <= DIRECT_ROUNDS:
                    run = run_direct(program, feed.start_us, counters)
                else:
                    continue
                of_hand_loop = of_hand_loop or run
                what = f"round {number} of {rounds}" if number else "warming up"
                figures = f"{run.rate:,.0f} events/s, {run.cpu_s:.1f} CPU s a million"
                err.print(f"{what}: {program.name}, {program.batch} a message: {figures}")
                if number:
                    measured[program.key].add(run, of_hand_loop)
    return list(measured.values())


def _run(worker: Worker, feed: Feed, first: int, counters: Executor) -> Taken:
    """Returns what a run to a new table took, which is checked and deleted."""
    name = TableName("test-project", "instance", f"t-{uuid.uuid4().hex}")
    tables.create(name, lasting(parse_schema(worker.program.schema)))
    taken = worker.run(name, first)
    check(name, feed, counters, first)
    tables.delete(name)
    return taken


if __name__ == "__main__":
    sys.exit(main())
