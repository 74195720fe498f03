"""Dashboard and alerts use metrics that exist."""

import json
import re
from pathlib import Path

import pytest
from google.cloud.monitoring_v3 import AlertPolicy

from pipeline.core.events.reasons import REFUSALS
from pipeline.transforms import metrics

MONITORING = Path(__file__).parent.parent.parent / "templates/monitoring"
DASHBOARD = MONITORING / "dashboard.json"
ALERTS = sorted(MONITORING.glob("alert-*.json"))

# https://cloud.google.com/monitoring/api/metrics_gcp
GOOGLES_METRICS = {
    "bigtable.googleapis.com/cluster/cpu_load",
    "bigtable.googleapis.com/cluster/cpu_load_hottest_node",
    "bigtable.googleapis.com/cluster/storage_utilization",
    "bigtable.googleapis.com/replication/max_delay",
    "dataflow.googleapis.com/job/aggregated_worker_utilization",
    "dataflow.googleapis.com/job/current_num_vcpus",
    "dataflow.googleapis.com/job/data_watermark_age",
    "dataflow.googleapis.com/job/estimated_timer_backlog_processing_time",
    "dataflow.googleapis.com/job/is_failed",
    "dataflow.googleapis.com/job/max_worker_instances_limit",
    "dataflow.googleapis.com/job/streaming_engine/persistent_state/stored_bytes",
    "dataflow.googleapis.com/job/system_lag",
    "dataflow.googleapis.com/job/target_worker_instances",
    "dataflow.googleapis.com/job/timers_pending_count",
    "dataflow.googleapis.com/job/user_counter",
    "logging.googleapis.com/log_entry_count",
    "pubsub.googleapis.com/subscription/num_undelivered_messages",
    "pubsub.googleapis.com/subscription/oldest_unacked_message_age",
}
# In PromQL, the first slash is a colon, and every other special character an underscore.
GOOGLES_NAMES = {re.sub(r"[^\w:]", "_", name.replace("/", ":", 1)): name for name in GOOGLES_METRICS}
RESOURCES = {
    "bigtable.googleapis.com/cluster": "bigtable_cluster",
    "bigtable.googleapis.com/replication": "bigtable_table",
    "dataflow.googleapis.com/job": "dataflow_job",
    "logging.googleapis.com": "dataflow_step",
    "pubsub.googleapis.com/subscription": "pubsub_subscription",
}


def emitted():
    """Returns the names under which the job's metrics arrive; Dataflow makes four of a distribution."""
    distribution = {f"{metrics.EVENT_DELAY_MS}_{part}" for part in ("COUNT", "MAX", "MEAN", "MIN")}
    others = ("NAMESPACE", "TYPE_CHECKING", "TYPE_COUNTERS", "BULK_", "BACKFILL_", "REPAIR_", "EXPORT")
    totals = {getattr(metrics, name) for name in vars(metrics) if name.isupper() and not name.startswith(others)}
    reasons = {metrics.dead_letters_of(reason) for reason in REFUSALS}
    of_a_type = {metrics.of_type(name, "acme.v1.Report") for name in metrics.TYPE_COUNTERS}
    return (totals - {metrics.EVENT_DELAY_MS}) | distribution | reasons | of_a_type


def strings(value):
    """Returns every string in a document."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, str):
        return [value]
    return [text for each in value for text in strings(each)] if not isinstance(value, int | float) else []


def queries(path):
    """Returns the filters and PromQL queries of a file."""
    return [text for text in strings(json.loads(path.read_text())) if "googleapis" in text]


def metric_types(query):
    """Returns the metrics of a query under Google's names, which PromQL spells differently."""
    of_filters = re.findall(r'metric\.type="([^"]+)"', query)
    of_promql = re.findall(r"\w+_googleapis_com:\w+", query)
    return of_filters + [GOOGLES_NAMES.get(name, name) for name in of_promql]


def named_counters(query):
    """Returns the patterns of metric_name in a query, one for each alternative."""
    return [part for found in re.findall(r'metric_name=~?"([^"]+)"', query) for part in found.split("|")]


everything = pytest.mark.parametrize("path", [DASHBOARD, *ALERTS], ids=lambda path: path.name)
alerts = pytest.mark.parametrize("path", ALERTS, ids=lambda path: path.name)


@everything
def test_only_metrics_that_google_has(path):
    """Every filter and query uses one of Google's metrics, on a resource that has it, and of a name of ours."""
    assert queries(path)
    for query in queries(path):
        assert "tidetable-" in query
        types = metric_types(query)
        assert types, query
        assert set(types) <= GOOGLES_METRICS, query
        for resource in re.findall(r'resource\.type="(\w+)"|monitored_resource="(\w+)"', query):
            assert ["".join(resource)] == [RESOURCES[each] for each in RESOURCES if types[0].startswith(each)], query


@everything
def test_only_counters_that_the_pipeline_emits(path):
    """Every named counter, and each alternative of a pattern, is emitted by the pipeline."""
    for query in queries(path):
        assert ("user_counter" in query) == bool(named_counters(query)), query
        for name in named_counters(query):
            assert any(re.fullmatch(name, counter) for counter in emitted()), name


def test_the_dashboard_shows_every_counter():
    """Every counter of the pipeline is on the dashboard."""
    patterns = [name for query in queries(DASHBOARD) for name in named_counters(query)]
    assert {counter for counter in emitted() if not any(re.fullmatch(name, counter) for name in patterns)} == set()


def test_the_dashboard_has_a_line_for_each_reason():
    """One chart has a line for each reason of dead letters, and only for reasons."""
    chart = [query for query in queries(DASHBOARD) if "dead_letters_" in query]
    assert len(chart) == 1
    assert "sum by (metric_name)" in chart[0]
    matched = {counter for counter in emitted() for name in named_counters(chart[0]) if re.fullmatch(name, counter)}
    assert matched == {metrics.dead_letters_of(reason) for reason in REFUSALS}


def test_alerts_on_what_the_job_holds_and_whether_it_lives():
    """Failure, pending timers and stored state are each watched by Google's own metric of it."""
    looked_at = {path.stem: {name for query in queries(path) for name in metric_types(query)} for path in ALERTS}
    job = "dataflow.googleapis.com/job"
    assert looked_at["alert-job-failed"] == {f"{job}/is_failed"}
    assert looked_at["alert-pending-timers"] == {f"{job}/estimated_timer_backlog_processing_time"}
    assert looked_at["alert-stored-state"] == {f"{job}/streaming_engine/persistent_state/stored_bytes"}


def test_a_new_jobs_growing_state_is_no_alert():
    """State grows until the first windows end, so it is compared only if the job of that name ran two days ago."""
    (query,) = queries(MONITORING / "alert-stored-state.json")
    assert " offset 2d) >= 0" in query
    assert "[1d] offset 1d" in query


def test_the_dashboard_shows_the_state_of_the_job():
    """The dashboard has all of Google's metrics for the state of the job."""
    assert {name for query in queries(DASHBOARD) for name in metric_types(query)} == GOOGLES_METRICS


def test_the_dashboard_has_no_overlapping_tiles():
    """Tiles are side by side within the columns, each with a title."""
    layout = json.loads(DASHBOARD.read_text())["mosaicLayout"]
    taken = set()
    for tile in layout["tiles"]:
        x, y = tile.get("xPos", 0), tile.get("yPos", 0)
        cells = {(x + i, y + j) for i in range(tile["width"]) for j in range(tile["height"])}
        assert x + tile["width"] <= layout["columns"]
        assert not taken & cells, tile["widget"]["title"]
        taken |= cells
        assert tile["widget"]["title"]


@alerts
def test_cloud_monitoring_accepts_alerts(path):
    """Google's own message type parses the file without unknown fields; each condition has a known form."""
    policy = AlertPolicy.from_json(path.read_text())
    assert policy.display_name
    assert policy.severity
    assert policy.conditions
    for condition in policy.conditions:
        assert condition.display_name
        kind = AlertPolicy.Condition.pb(condition).WhichOneof("condition")
        assert kind in ("condition_threshold", "condition_prometheus_query_language")


@alerts
def test_an_alert_says_what_to_do(path):
    """Its text has a heading, the reason for the threshold, and numbered steps."""
    text = json.loads(path.read_text())["documentation"]["content"]
    assert text.startswith("## ")
    assert re.search(r"^1\. ", text, re.MULTILINE)
    assert re.search(r"^2\. ", text, re.MULTILINE)
    assert len(text) < 8000  # Cloud Monitoring allows 8 KB


@alerts
def test_commands_name_the_region(path):
    """A command for one job has the job's region, without which gcloud looks in us-central1."""
    text = json.loads(path.read_text())["documentation"]["content"]
    for command in re.findall(r"gcloud dataflow jobs (?!list)[^`]*", text):
        assert "--region=REGION" in command


@alerts
def test_an_alert_has_every_field_that_terraform_reads(path):
    """The Terraform module needs these fields to plan."""
    alert = json.loads(path.read_text())
    assert {"displayName", "combiner", "severity", "documentation", "alertStrategy", "conditions"} == set(alert)
    for condition in alert["conditions"]:
        if threshold := condition.get("conditionThreshold"):
            assert set(threshold) == {"filter", "aggregations", "comparison", "thresholdValue", "duration"}
            for aggregation in threshold["aggregations"]:
                assert set(aggregation) == {
                    "alignmentPeriod", "perSeriesAligner", "crossSeriesReducer", "groupByFields",
                }  # fmt: skip
        else:
            promql = condition["conditionPrometheusQueryLanguage"]
            assert set(promql) == {"query", "duration", "evaluationInterval"}


def test_there_is_an_alert_for_each_emergency():
    """Alerts cover the job's progress, its workers, its windows and dead letters, and Bigtable's limits and copies."""
    assert {path.stem.removeprefix("alert-") for path in ALERTS} == {
        "backlog", "bigtable-cpu", "bigtable-storage", "data-freshness", "dead-letters", "dead-letters-expiring",
        "incomplete-windows", "job-failed", "pending-timers", "recomputed-windows", "replication-delay",
        "stored-state", "system-lag", "worker-errors", "workers-at-maximum",
    }  # fmt: skip
