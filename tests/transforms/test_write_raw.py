import apache_beam as beam
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to

from pipeline.core.events.event import Event
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import metrics
from pipeline.transforms.write import FormatRawRows
from tests.support.streams import NOON


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
