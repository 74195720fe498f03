"""The metrics that jobs report to Cloud Monitoring: few enough, whatever the tables and windows.

Dataflow keeps a hundred metrics ``custom.googleapis.com/dataflow/NAME`` for a project, and says so in a job's log:
"Your project already contains 100 Dataflow-created metric descriptors, so new user metrics of the form
custom.googleapis.com/* will not be created. However, all user metrics are also available in the metric
dataflow.googleapis.com/job/user_counter" (github.com/google/weather-tools/issues/244). Steps and jobs are labels of a
metric. A distribution is four metrics.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import apache_beam as beam
import grpc
import pytest
from apache_beam.metrics.metric import Metrics
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from pipeline.core.events.dead_letter import ROW_REFUSED
from pipeline.core.events.reasons import REFUSALS
from pipeline.core.schema.toml import parse_schema
from pipeline.job.graph import assemble
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.transforms import metrics
from tests.support.streams import flags

MOST = 100
ONE_TABLE = ("",)
HOURS_AND_DAYS = '[tiers]\n1h = "hours"\n1d = "days"'
TWO_BY_TWO = (HOURS_AND_DAYS, HOURS_AND_DAYS)
DISTRIBUTIONS = {metrics.EVENT_DELAY_MS, metrics.BULK_LATENCY_MS, metrics.BULK_ROWS_IN_FLIGHT}


def reported_as(name: str, *, distribution: bool) -> list[str]:
    return [f"{name}_{part}" for part in ("COUNT", "MAX", "MEAN", "MIN")] if distribution else [name]


def metrics_in(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yields every counter and distribution that an object refers to."""
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Metrics.DelegatingCounter | Metrics.DelegatingDistribution):
        yield value
    elif isinstance(value, dict | list | tuple | set):
        for part in value.values() if isinstance(value, dict) else value:
            yield from metrics_in(part, seen)
    elif hasattr(value, "__dict__"):
        yield from metrics_in(vars(value), seen)


class _Collector(PipelineVisitor):
    def __init__(self) -> None:
        self.found: set[tuple[str, str]] = set()

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        for metric in metrics_in(getattr(transform_node.transform, "fn", None), set()):
            distribution = isinstance(metric, Metrics.DelegatingDistribution)
            for name in reported_as(metric.metric_name.name, distribution=distribution):
                self.found.add((transform_node.full_label, name))


@cache
def of_job(writer: str, *schemas: str) -> set[tuple[str, str]]:
    """Returns the step and name of each metric that the DoFns of a job with these tables can report."""
    tables = ",".join(f"t{index}" for index in range(len(schemas)))
    options = parse_flags(flags(bigtable_table=tables, bigtable_writer=writer))
    settings = settings_of(options)
    pipeline = beam.Pipeline(options=options)
    targets = [Target(name, parse_schema(schema)) for name, schema in zip(settings.tables, schemas, strict=True)]
    assemble(pipeline, targets, settings, began_us=0)
    collector = _Collector()
    pipeline.visit(collector)
    return collector.found


def names_of(found: set[tuple[str, str]]) -> set[str]:
    return {name for _, name in found}


def declared(*, others: bool) -> set[str]:
    """Returns the names in the module of metrics, of the streaming job or of ``backfill`` and ``repair``."""
    constants = {key: value for key, value in vars(metrics).items() if key.isupper() and isinstance(value, str)}
    return {
        name
        for key, value in constants.items()
        if key != "NAMESPACE" and key.startswith(("BACKFILL_", "REPAIR_", "EXPORT")) == others
        for name in reported_as(value, distribution=value in DISTRIBUTIONS)
    }


def retries() -> set[str]:
    """Returns the names of retries, which the writer makes when a status first causes one: at most one a status."""
    return {metrics.bulk_retries_of(code.name) for code in grpc.StatusCode if code is not grpc.StatusCode.OK}


def test_the_count_is_complete():
    """The DoFns of a job hold every metric of the streaming job that is declared."""
    reasons = {metrics.dead_letters_of(reason) for reason in (*REFUSALS, ROW_REFUSED)}
    assert names_of(of_job("bulk", *TWO_BY_TWO)) == declared(others=False) | reasons


def test_all_jobs_of_a_project():
    """Two tables with two tiers, both writers, backfill and repair: all of them stay below Dataflow's hundred, and are
    as many as the page says."""
    connector = names_of(of_job("connector", *TWO_BY_TWO))
    bulk = (names_of(of_job("bulk", *TWO_BY_TWO)) | retries()) - connector
    others = declared(others=True) - connector - bulk
    total = len(connector | bulk | others)
    assert total <= MOST - len(metrics.TYPE_COUNTERS)  # which a mapped type adds
    page = " ".join((Path(__file__).parents[2] / "docs/metrics.md").read_text().split())
    assert f"has {total} names at most: {len(connector)} of a streaming job with Beam's writer" in page
    assert f"{len(bulk)} more with the bulk writer, and {len(others)} of repair and backfill" in page


@pytest.mark.parametrize("writer", ["connector", "bulk"])
def test_tables_and_tiers_add_no_metrics(writer):
    """Further tables and tiers report under the same names."""
    assert names_of(of_job(writer, *TWO_BY_TWO)) == names_of(of_job(writer, *ONE_TABLE))


def test_time_series():
    """Even counted by step, a job with two tables of two tiers reports fewer than a hundred."""
    assert len(of_job("connector", *TWO_BY_TWO)) <= MOST
