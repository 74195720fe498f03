from datetime import timedelta

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import FixedWindows, TimestampedValue

from pipeline.core.stats import WindowStats
from pipeline.core.windows import DAILY, HOURLY
from pipeline.transforms.aggregate import Firing, RollUp, RollUpFn
from tests.streams import HOUR, MINUTE, NOON

MIDNIGHT = NOON + 12 * HOUR
HOURS = Firing(timedelta(0), timedelta(minutes=5), allowed_lateness=timedelta(hours=2))


def stats_of(*values):
    stats = WindowStats()
    for value in values:
        stats.add({"t": value})
    return stats


@pytest.mark.parametrize(("seconds_late", "days"), [(5 * MINUTE, [("a", 2, 3.0)]), (2 * HOUR, [])])
def test_the_last_pane_of_the_last_hour_of_a_day(seconds_late, days):
    """A throttled late pane that fires after the allowed lateness of its hour still reaches the day."""
    stream = (
        TestStream()
        .advance_watermark_to(MIDNIGHT + 2 * HOUR + seconds_late)
        .add_elements([TimestampedValue(("a", stats_of(1.0, 2.0)), MIDNIGHT - 0.001)])
        .advance_watermark_to_infinity()
    )
    with TestPipeline(options=PipelineOptions(streaming=True), runner="BundleBasedDirectRunner") as pipeline:
        panes = pipeline | stream | beam.WindowInto(FixedWindows(HOUR))
        # With a throttled late trigger of its own, TestStream would end in a stall.
        unthrottled = Firing(timedelta(0), timedelta(0), HOURS.of_longer(HOURLY).allowed_lateness)
        days_of = panes | "RollUp" >> RollUp(DAILY, unthrottled)
        found = days_of.panes | beam.Map(lambda pane: (pane[0], *sums(pane[1])))
        assert_that(found, equal_to(days))


def sums(stats):
    return stats.events, stats.metrics["t"].total


def test_longer_windows_are_kept_longer():
    """Each longer window is kept until after the last pane of the shorter one, for any number of tiers."""
    days = HOURS.of_longer(HOURLY)
    assert days.allowed_lateness >= HOURS.allowed_lateness + HOURS.late
    assert days.of_longer(DAILY).allowed_lateness >= days.allowed_lateness + HOURS.late
    assert (days.early, days.late) == (HOURS.early, HOURS.late)


def test_output_panes_do_not_change():
    """A pane that was output does not change with later inputs."""
    combine = RollUpFn()
    accumulator = combine.add_input(combine.create_accumulator(), (0, stats_of(1.0)))
    pane = combine.extract_output(accumulator)
    combine.add_input(accumulator, (0, stats_of(1.0, 2.0)))
    merged = combine.merge_accumulators(
        [accumulator, combine.add_input(combine.create_accumulator(), (1, stats_of(4.0)))]
    )
    assert (sums(pane.stats), sums(combine.extract_output(accumulator).stats)) == ((1, 1.0), (2, 3.0))
    assert sums(combine.extract_output(merged).stats) == (3, 7.0)
