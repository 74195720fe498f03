"""Counts requests to Bigtable that Beam's connector does not send in Beam's own metric, which Dataflow shows.

Relies on, in ``apache-beam``:

- ``ServiceCallMetric.call`` in apache_beam/internal/metrics/metric.py increments a process-wide counter of this URN,
  with the labels of the call and ``STATUS_LABEL``. It counts one call at a time; :class:`ServiceCalls` counts many.
- ``ServiceCallMetric.bigtable_error_code_to_grpc_status_string``, in the same file, returns the text of the status.
- ``_BigTableWriteFn.start_service_call_metrics`` in apache_beam/io/gcp/bigtableio.py chooses the labels.
"""

from apache_beam.internal.metrics.metric import Metrics, ServiceCallMetric
from apache_beam.io.gcp.resource_identifiers import BigtableTable
from apache_beam.metrics import monitoring_infos

from pipeline.cloud.connection.names import TableName


class ServiceCalls:
    """Counts the entries of ``MutateRows`` requests to a table, as Beam's connector does."""

    def __init__(self, name: TableName) -> None:
        self._labels = {
            monitoring_infos.SERVICE_LABEL: "BigTable",
            monitoring_infos.METHOD_LABEL: "google.bigtable.v2.MutateRows",
            monitoring_infos.RESOURCE_LABEL: BigtableTable(name.project, name.instance, name.table),
            monitoring_infos.BIGTABLE_PROJECT_ID_LABEL: name.project,
            monitoring_infos.INSTANCE_ID_LABEL: name.instance,
            monitoring_infos.TABLE_ID_LABEL: name.table,
        }

    def count(self, status: int | None, entries: int) -> None:
        """Counts entries with this gRPC status; None for those without an answer."""
        text = ServiceCallMetric.bigtable_error_code_to_grpc_status_string(status)
        labels = self._labels | {monitoring_infos.STATUS_LABEL: text}
        Metrics.counter(monitoring_infos.API_REQUEST_COUNT_URN, labels, process_wide=True).inc(entries)
