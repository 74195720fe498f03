import apache_beam as beam
import pytest
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import IntervalWindow
from apache_beam.utils.windowed_value import PaneInfo, PaneInfoTiming, WindowedValue

from pipeline.core.aggregates import READING_COUNT
from pipeline.core.events import Event
from pipeline.core.schema.table_schema import Tier
from pipeline.core.schema.toml import parse_schema
from pipeline.core.stats import WindowStats
from pipeline.core.windows import HOURLY
from pipeline.transforms import metrics
from pipeline.transforms.rows import FormatAggregateRows, FormatRawRows
from tests.streams import HOUR, NOON


def pane(index, events, sensor_id="a", start=NOON):
    stats = WindowStats()
    for _ in range(events):
        stats.add({"t": 1.0})
    window = IntervalWindow(start, start + HOUR)
    timing = PaneInfoTiming.EARLY if index == 0 else PaneInfoTiming.LATE
    return WindowedValue(
        (sensor_id, stats), window.max_timestamp(), (window,), PaneInfo(index == 0, False, timing, index, 0)
    )


class EmitPanes(beam.DoFn):
    """Panes as a trigger fires them, all in one bundle."""

    def process(self, panes):
        yield from panes


def written(panes):
    pipeline = TestPipeline(runner="FnApiRunner")
    rows = (
        pipeline
        | beam.Create([panes])
        | beam.ParDo(EmitPanes())
        | "FormatAggregateRows" >> FormatAggregateRows(Tier(HOURLY, "stats"))
    )
    return pipeline, rows | beam.Map(
        lambda row: (row.key, {cell.qualifier.decode(): cell.value for cell in row.cells}[READING_COUNT])
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
@pytest.mark.parametrize("numbers", [(0, 1, 2), (0, 0, 0), (2, 1, 0)])
def test_two_panes_of_one_row_in_one_bundle(order, numbers):
    """Of several panes of a window in a bundle, only the one with the most events passes, in any order."""
    panes = [pane(number, events) for number, events in zip(numbers, (1, 3, 7), strict=True)]
    pipeline, rows = written([panes[index] for index in order])
    assert_that(rows, equal_to([(b"agg#hourly#a#2026-02-17T12", b"7")]))
    pipeline.run().wait_until_finish()


def test_other_rows_stay():
    """Another sensor or window is another row, even with equal panes."""
    pipeline, rows = written([pane(0, 1), pane(0, 2, "b"), pane(1, 3, start=NOON + HOUR)])
    assert_that(
        rows,
        equal_to(
            [
                (b"agg#hourly#a#2026-02-17T12", b"1"),
                (b"agg#hourly#b#2026-02-17T12", b"2"),
                (b"agg#hourly#a#2026-02-17T13", b"3"),
            ]
        ),
    )
    pipeline.run().wait_until_finish()


def test_an_event_of_several_rows():
    """Each raw row that the schema formats from an event is output and counted."""
    schema = parse_schema('layout = "tall"\nkey = "{sensor_id}#{metric}#{reverse_us}"')
    event = Event("a", NOON * 1_000_000, {"t": 1.0, "u": 2.0}, {"place": "north"})
    pipeline = TestPipeline(runner="FnApiRunner")
    rows = pipeline | beam.Create([event]) | "FormatRawRows" >> FormatRawRows(schema)
    assert_that(rows, equal_to(schema.rows(event)))
    result = pipeline.run()
    result.wait_until_finish()
    (counter,) = result.metrics().query(MetricsFilter().with_name(metrics.RAW_ROWS))["counters"]
    assert counter.committed == 2
