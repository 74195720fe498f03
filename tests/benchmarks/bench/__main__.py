"""``make bench`` measures; ``make bench-check`` compares the result with the floors."""

import argparse
import importlib.util
import os
import sys
import time
import uuid
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

from rich.console import Console

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import running_emulators
from tests.benchmarks.bench import statistics_job
from tests.benchmarks.bench.check import check
from tests.benchmarks.bench.direct import DIRECT_PROGRAMS, DirectProgram
from tests.benchmarks.bench.direct import run as run_direct
from tests.benchmarks.bench.feed import HOUR_US, HOURS, Feed
from tests.benchmarks.bench.programs import HAND_LOOP, PROGRAMS, Program, Taken, Worker
from tests.benchmarks.bench.report import RESULT, Measured, Run, below_floors, print_table, write_json
from tests.benchmarks.bench.tidetable import refused
from tests.support.lasting import lasting

EVENTS = 180_000
ROUNDS = 5
DIRECT_ROUNDS = 3  # a job takes a while to start, and again until its last panes fire

err = Console(stderr=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULT, help="file of the result")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs of each program")
    parser.add_argument("--events", type=int, default=EVENTS, help="number of events, a multiple of 300")
    parser.add_argument("--only", nargs="*", help="keys of the programs to run, besides the hand loop")
    parser.add_argument("--check", action="store_true", help="only compare an earlier result with the floors")
    arguments = parser.parse_args()
    if arguments.check:
        return _check(arguments.json)
    remarks: list[str] = []
    selected = [
        program
        for program in (*PROGRAMS, *DIRECT_PROGRAMS)
        if program is HAND_LOOP or arguments.only is None or program.key in arguments.only
    ]
    programs = [program for program in selected if not _left_out(program, remarks)]
    # Yesterday's events would be expired or late for the job; all of these are over when it starts.
    start_us = (time.time_ns() // 1000 // HOUR_US - HOURS) * HOUR_US
    began = time.monotonic()
    measured = _measure(programs, Feed(start_us, arguments.events), arguments.rounds)
    remarks.append(f"{arguments.rounds} rounds in {time.monotonic() - began:.0f} s")
    print_table(measured, Console(width=None if sys.stdout.isatty() else 110))
    for remark in remarks:
        print(remark)
    write_json(measured, remarks, arguments.json)
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


def _left_out(program: Program | DirectProgram, remarks: list[str]) -> bool:
    """Returns whether the program can't run; prints each reason once."""
    flags = [flag for flag in program.flags if flag.startswith("--")]
    if flags and (problem := refused(*flags)):
        remark = f"Left out: {' '.join(flags)} ({problem})"
    elif program.key == "bytewax" and not importlib.util.find_spec("bytewax"):
        remark = "Left out: Bytewax is not installed here"
    else:
        return False
    if remark not in remarks:
        remarks.append(remark)
        err.print(remark)
    return True


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
        for variable, address in stack.enter_context(running_emulators()).items():
            os.environ[variable] = address
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
    schema = statistics_job.SCHEMA if worker.program.module == "statistics_job" else TableSchema.default()
    tables.create(name, lasting(schema))
    taken = worker.run(name, first)
    check(name, feed, counters, first)
    tables.delete(name)
    return taken


if __name__ == "__main__":
    sys.exit(main())
