"""The README's picture of the page: ``python -m tests.picture`` writes it.

It shows a sensor of the fleet that ``tidetable demo --serve`` shows, on a day that is always the same.
"""

import os
from pathlib import Path

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.table_schema import TableSchema
from pipeline.local.emulators import running_emulators
from pipeline.local.fleet import Fleet, simulate
from tests.serve.conftest import running_chromium
from tests.serve.serving import rows_of, serving
from tests.support.lasting import lasting
from tests.support.tables import write

FILE = Path(__file__).parent.parent / "docs/page.png"
TABLE = TableName("tidetable-demo", "demo", "sensors")
DAY = "2026-02-17T00:00:00Z", "2026-02-18T00:00:00Z"
VIEW = "#/chart?sensor=roof-0003&metric=temperature&from=2026-02-17T06:00:00Z&to=2026-02-17T18:00:00Z&zone=UTC"
WIDTH, HEIGHT = 1200, 775


def take(file: Path) -> None:
    """Writes the picture to a file."""
    start_us, end_us = map(parse_time, DAY)
    fleet = Fleet(sensors=12, start_us=start_us, end_us=end_us, interval_us=180_000_000)
    events = [
        Event(each.sensor_id, each.event_time.ToMicroseconds(), dict(each.readings), dict(each.metadata))
        for one in simulate(fleet)
        for each in one.events
    ]
    schema = lasting(TableSchema.for_new_table())
    with running_emulators() as environment:
        os.environ |= environment
        tables.create(TABLE, schema)
        write(TABLE, rows_of(schema, events))
        with serving(TABLE) as address, running_chromium() as browser:
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(f"{address}/{VIEW}", wait_until="networkidle")
            page.get_by_role("img").wait_for()
            page.screenshot(path=file)


if __name__ == "__main__":
    take(FILE)
    print(f"saved as {FILE}")
