"""Writes at full speed for a while, and checks that memory stays flat.

Run with ``.venv/bin/python -m tests.benchmarks.soak [SECONDS] [PERCENT]``: 300 seconds by default, and 5 percent that
memory may grow after the warm-up. Some of the requests fail on purpose, as in tests/faults.
"""

import gc
import itertools
import os
import sys
import time
import uuid
from pathlib import Path

from grpc import StatusCode

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.gc_policies import Never
from pipeline.local.emulators import BIGTABLE, running_emulator
from tests.faults.bigtable_proxy import BigtableProxy, MutationsFault, breaking, failing, refusing

_BUNDLE_ROWS = 25_000
_KEYS = 50_000  # written repeatedly, to keep the emulator's memory flat as well
_BEGAN_US = 1_771_329_600_000_000
_WARM = 0.2  # share of the time
_METRICS = (b"temperature", b"humidity", b"pressure")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints a line every few seconds; exits with 1 if memory has grown."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    percent = float(sys.argv[2]) if len(sys.argv) > 2 else 5.0
    with running_emulator(BIGTABLE) as address, BigtableProxy(address) as proxy:
        proxy.mutations = _now_and_then()
        names = {}
        for server in (address, proxy.address):
            os.environ[BIGTABLE.variable] = server
            names[server] = TableName("test-project", "test-instance", f"soak-{uuid.uuid4().hex[:12]}")
            tables.create_bare(names[server], {"raw": Never()})
        failed = False
        for what, server, share in (("at full speed", address, 0.8), ("with failures", proxy.address, 0.2)):
            os.environ[BIGTABLE.variable] = server
            print(f"{what}: {share * seconds:.0f} s", flush=True)
            warm, last = _soak(names[server], share * seconds)
            grown = 100 * (last / warm - 1)
            print(f"{what}: memory went from {warm:.1f} to {last:.1f} MB, {grown:+.1f} %", flush=True)
            failed |= grown > percent
        if failed:
            sys.exit(f"memory grew by more than {percent:g} %")


def _soak(name: TableName, seconds: float) -> tuple[float, float]:
    """Returns memory in MB after the warm-up and at the end."""
    rows = [_row(number) for number in range(_KEYS)]
    began = reported = time.monotonic()
    written = requests = retries = 0
    warm = 0.0
    with BulkWriter.open(name) as writer:
        for bundle in itertools.cycle(range(0, _KEYS, _BUNDLE_ROWS)):
            writer.add_all(rows[bundle : bundle + _BUNDLE_ROWS])
            if refused := writer.finish():
                sys.exit(f"refused: {refused[0]}")
            tally = writer.take_tally()
            written, requests, retries = (
                written + tally.rows,
                requests + tally.requests,
                retries + tally.retries.total(),
            )
            now = time.monotonic()
            if not warm and now - began > _WARM * seconds:
                warm = _memory_mb()
            if now - reported > seconds / 30 or now - began > seconds:
                reported = now
                rate = written / (now - began)
                print(
                    f"{now - began:6.0f} s  {_memory_mb():7.1f} MB  {written:10,} rows  {rate:8,.0f} rows/s  "
                    f"{requests:7,} requests  {retries:7,} rows again",
                    flush=True,
                )
            if now - began > seconds:
                break
        last = _memory_mb()
    with RowReader.open(name) as reader:
        stored = sum(1 for _ in reader.read(KeyRange(b"", b"")))
    if stored != min(written, _KEYS):
        sys.exit(f"the table has {stored} rows instead of {min(written, _KEYS)}")
    return warm, last


def _row(number: int) -> Row:
    cells = [Cell("raw", metric, _BEGAN_US + number * 1000, b"%d" % number) for metric in _METRICS]
    return Row(b"sensor-%04d#%016d" % (number % 1000, number), cells)


def _now_and_then() -> MutationsFault:
    """Refuses some entries, breaks off a call and fails a call, in turn."""
    faults = itertools.cycle(
        (refusing(StatusCode.UNAVAILABLE, share=0.1), breaking(StatusCode.UNAVAILABLE), failing(StatusCode.ABORTED))
    )
    requests = itertools.count()
    return lambda entries: next(faults)(entries) if next(requests) % 10 == 0 else None


def _memory_mb() -> float:
    """Returns this process's resident memory."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * _PAGE / 1e6


if __name__ == "__main__":
    main()
