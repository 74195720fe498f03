"""The step that aggregates, without a server: it reads nothing of windows that begin with the job."""

import apache_beam as beam
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.cloud.connection.names import TableName
from pipeline.core.events.event import Event
from pipeline.core.panes.firing import Aggregation, FiringRules
from pipeline.core.panes.grouped_readings import GroupedReadings
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.retention import Retention
from pipeline.core.schema.toml import parse_schema
from pipeline.transforms import aggregate
from pipeline.transforms.metrics import totals_of

T = 1_771_329_600_000_000
SCHEMA = parse_schema("")


class Nowhere(beam.DoFn):
    """Writes rows nowhere."""

    def process(self, _):
        return ()

    def finish_bundle(self):
        return ()


@pytest.mark.parametrize(("limit", "found"), [(4000, True), (4_000_000, False)])
def test_a_large_group_is_counted_and_logged_once_a_minute(monkeypatch, caplog, limit, found):
    """Each firing that commits more than a quarter of the limit counts; the log names one of them in a minute."""
    monkeypatch.setattr(aggregate, "MAX_COMMIT_BYTES", limit)
    window = SCHEMA.tiers[0].window
    readings = GroupedReadings(window, groups=8)
    readings.add([Event(f"s{number}", T + number, {"t": 1.0, "u": 2.0}, {}) for number in range(100)])
    parts = [(each.group, each.data) for each in readings.take_groups()]
    table = TableName("project", "instance", "table"), SCHEMA, Retention.of(SCHEMA)
    settings = Aggregation(SCHEMA.tiers, FiringRules(window, 0, 0, 600_000_000), results=ResultRules(T, early=True))
    pipeline = beam.Pipeline(FnApiRunner())
    elements = pipeline | beam.Create(parts, reshuffle=False).with_output_types(beam.typehints.KV[int, bytes])
    _ = elements | aggregate.AggregateWindows(table, settings, Nowhere(), lambda: T / 1_000_000 + 60)
    result = pipeline.run()
    result.wait_until_finish()
    assert (totals_of(result).get("large_groups", 0) >= 8) == found
    logged = [record.getMessage() for record in caplog.records if "of sensors commits" in record.getMessage()]
    assert len(logged) == found
