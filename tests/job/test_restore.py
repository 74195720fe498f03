"""What a job restores: the real graph on a scripted stream, with a table that an earlier job wrote."""

import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.events.event import validate
from pipeline.core.events.message import sensor_event
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.schema.gc_policies import parse_policy
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.core.statistics.window_stats import WindowStats
from tests.job.running import PROJECT
from tests.support.lasting import lasting
from tests.support.streams import HOUR, NOON, Script, event_at

BEGAN = 4 * HOUR  # long after the windows of these tests
STORED = [sensor_event("a", (NOON + 60 * i) * 1_000_000, {"t": 1.0}, {"place": "north"}) for i in range(10)]
DEFAULT = lasting(parse_schema(""))


def left_behind(table, schema, events=STORED, tiers=None, counted=None):
    """Fills a table as an earlier job left it: raw rows, and aggregate rows of the given tiers or of all."""
    name = TableName(PROJECT, "instance", table)
    tables.create(name, lasting(schema))
    valid = [validate(event, 10**16) for event in events]
    rows = [row for event in valid for row in schema.rows(event)]
    for tier in schema.tiers if tiers is None else tiers:
        rows += left_rows(schema, events[:counted], tier)
    write(name, rows)
    return name


def write(name, rows):
    families = {}
    for row in rows:
        for cell in row.cells:
            families.setdefault((row.key, cell.family), []).append(cell)
    with Rewriter.open(name) as rewriter:
        rewriter.replace(Replacement(key, family, tuple(cells)) for (key, family), cells in families.items())


def rows_of(label, *counts, table=""):
    return [(f"{table}agg#{label}#a#2026-02-17{'T12' if label == 'hourly' else ''}", str(n), str(n)) for n in counts]


def new(seconds=1800):
    event = event_at(seconds)
    event.metadata["place"] = "north"
    return event


@pytest.fixture
def table(bigtable, request):
    """A table name that no other test uses."""
    return f"t{abs(hash(request.node.nodeid))}"


def test_redelivered(table):
    """A redelivered event that the table already stores counts once."""
    left_behind(table, DEFAULT)
    Script().watermark(2 * HOUR).arrive(*STORED, new()).run(
        aggregates=rows_of("hourly", 11), schemas={table: DEFAULT}, began=BEGAN
    )


@pytest.mark.parametrize("key", ["{metadata.place}#{sensor_id}#{reverse_us}", "{iso_us}#{sensor_id}"])
def test_keys_that_do_not_find_a_sensor(table, key):
    """The aggregate row is restored. It may lack events after its last pane, so the window is listed."""
    schema = lasting(parse_schema(f'key = "{key}"'))
    left_behind(table, schema, counted=8)
    Script().watermark(2 * HOUR).arrive(new()).run(
        aggregates=rows_of("hourly", 9),
        late=["repair#hourly#a#2026-02-17T12"],
        schemas={table: schema},
        began=BEGAN,
    )


@pytest.mark.parametrize("first", [True, False], ids=["named first", "named second"])
def test_a_table_that_is_new(table, first):
    """Each table's aggregates match its own raw rows, whichever table is named first."""
    left_behind(table, DEFAULT)
    left_behind(f"{table}x", DEFAULT, events=[])
    names = [f"{table}x", table] if first else [table, f"{table}x"]
    Script().watermark(2 * HOUR).arrive(new()).run(
        aggregates=[*rows_of("hourly", 11, table=f"{table}: "), *rows_of("hourly", 1, table=f"{table}x: ")],
        schemas=dict.fromkeys(names, DEFAULT),
        began=BEGAN,
    )


def test_tables_of_different_grain(table):
    """A table with coarser times distinguishes fewer readings than the job: its raw rows are not used."""
    fine = lasting(parse_schema('key = "{iso_us}#{sensor_id}"'))
    coarse = lasting(parse_schema('key = "{sensor_id}#{reverse_ms}"'))
    odd = [sensor_event("a", (NOON + 60 * i) * 1_000_000 + 123, {"t": 1.0}, {}) for i in range(10)]
    left_behind(table, coarse, events=odd)
    left_behind(f"{table}x", fine, events=odd)
    names = {table: coarse, f"{table}x": fine}
    Script().watermark(2 * HOUR).arrive(new()).run(
        aggregates=[row for name in names for row in rows_of("hourly", 11, table=f"{name}: ")],
        schemas=names,
        began=BEGAN,
    )


SHORT = {"raw": parse_policy("maxage=6h")}
HOURS_AND_DAYS = lasting(parse_schema('[tiers]\n1h = "hours"\n1d = "days"'))


@pytest.mark.parametrize(
    "retention",
    [
        Retention.of(DEFAULT, DEFAULT.policies, SHORT),
        Retention.of(DEFAULT, since={"raw": (NOON + HOUR) * 1_000_000}),
        Retention.unknown(DEFAULT),
    ],
    ids=["shorter than the schema's", "shorter once", "unknown"],
)
def test_policies_of_the_table_itself(table, retention):
    """If raw rows may be gone, whatever the schema says, the aggregate row is restored and the window listed."""
    left_behind(table, DEFAULT, tiers=())
    (row,) = left_rows(DEFAULT, STORED * 3)
    write(TableName(PROJECT, "instance", table), [row])
    Script().watermark(2 * HOUR).arrive(new()).run(
        aggregates=rows_of("hourly", 31),
        late=["repair#hourly#a#2026-02-17T12"],
        schemas={table: DEFAULT},
        retention=retention,
        began=BEGAN,
    )


def test_tables_of_different_tiers(table):
    """A day is computed from the hours of its own table, whatever windows another table has."""
    names = {table: HOURS_AND_DAYS, f"{table}x": lasting(parse_schema('[tiers]\n90m = "nineties"'))}
    for name, schema in names.items():
        left_behind(name, schema, events=[])
    late = Script().arrive(event_at(HOUR + 300)).watermark(4 * HOUR).arrive(event_at(HOUR + 600))
    late.run(
        aggregates=[
            (f"{table}: agg#hourly#a#2026-02-17T13", "1", "1"),
            (f"{table}: agg#hourly#a#2026-02-17T13", "2", "2"),
            (f"{table}: agg#daily#a#2026-02-17", "2", "2"),
            (f"{table}x: agg#90m#a#2026-02-17T12:00:00", "1", "1"),
            (f"{table}x: agg#90m#a#2026-02-17T12:00:00", "2", "2"),  # closed: computed from raw rows
        ],
        schemas=names,
        late=[],
        written=True,
        allowed_lateness="145m",
    )


def left_rows(schema, events, tier=None):
    """Returns the aggregate rows that a job wrote for these events, each as often as it was written."""
    tier = tier or schema.tiers[0]
    windows = {}
    for event in (validate(event, 10**16) for event in events):
        windows.setdefault(tier.window.start_of(event.event_time_us), WindowStats()).add(event.readings)
    return [aggregate_row(tier.window, "a", start_us, stats, tier.family) for start_us, stats in windows.items()]
