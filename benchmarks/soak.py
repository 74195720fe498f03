"""Writes at full speed for a while, and checks that memory stays flat.

Exits with 1 if memory grows by more than --percent after the warm-up. Of --seconds, a fifth is written through a proxy
that makes some of the requests fail, as in tests/faults.
"""

import gc
import itertools
import os
import sys
import time
import uuid

from grpc import StatusCode

from benchmarks.measuring import Lines, arguments, emulators, resident_mb
from pipeline.cloud.connection.names import TableName
from pipeline.cloud.scanning.row_reader import RowReader
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.bulk_writer import BulkWriter
from pipeline.core.rows.rows import Cell, KeyRange, Row
from pipeline.core.schema.gc_policies import Never
from pipeline.local.emulators import BIGTABLE
from tests.faults.bigtable_proxy import BigtableProxy, MutationsFault, breaking, failing, refusing

_BUNDLE_ROWS = 25_000
_KEYS = 50_000  # written repeatedly, to keep the emulator's memory flat as well
_BEGAN_US = 1_771_329_600_000_000
_WARM = 0.2  # share of the time
_METRICS = (b"temperature", b"humidity", b"pressure")


def main(seconds: float, percent: float) -> None:
    failed, address = False, os.environ[BIGTABLE.variable]
    with BigtableProxy(address) as proxy:
        proxy.mutations = _now_and_then()
        for what, server, share in (("at full speed", address, 0.8), ("with failures", proxy.address, 0.2)):
            name = TableName("test-project", "test-instance", f"soak-{uuid.uuid4().hex[:12]}")
            os.environ[BIGTABLE.variable] = server
            tables.create_bare(name, {"raw": Never()})
            print(f"{what}: {share * seconds:.0f} s", flush=True)
            warm, last = _soak(name, share * seconds)
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
    warm, lines = 0.0, Lines("time", "memory in MB", "rows written", "a second", "requests", "rows again")
    with BulkWriter.open(name) as writer:
        for bundle in itertools.cycle(range(0, _KEYS, _BUNDLE_ROWS)):
            writer.add_all(rows[bundle : bundle + _BUNDLE_ROWS])
            if refused := writer.finish():
                sys.exit(f"refused: {refused[0]}")
            tally = writer.take_tally()
            written, requests = written + tally.rows, requests + tally.requests
            retries += tally.retries.total()
            now = time.monotonic()
            if not warm and now - began > _WARM * seconds:
                warm = _memory_mb()
            if now - reported > seconds / 30 or now - began > seconds:
                reported, rate = now, written / (now - began)
                figures = f"{now - began:.0f} s", f"{_memory_mb():.1f}", f"{written:,}", f"{rate:,.0f}"
                lines.add(*figures, f"{requests:,}", f"{retries:,}")
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
    gc.collect()
    return resident_mb()


if __name__ == "__main__":
    options = arguments(seconds=300.0, percent=5.0)
    with emulators():
        main(options.seconds, options.percent)
