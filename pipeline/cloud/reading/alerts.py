"""Reads alerts: what fires now, and what fired."""

from collections.abc import Iterator

from pipeline.cloud.reading.reader import SensorTable
from pipeline.core.alerts.alert_rows import HISTORY, LATELY, AlertRecord, alert_range, parse_alert_row
from pipeline.core.queries.reads import ForeignRow, RowSelection


def alert_records(table: SensorTable, rule: str | None = None, *, lately: bool = False) -> Iterator[AlertRecord]:
    """Yields the alerts of a rule, or of all rules, by rule and sensor, whether they fire now or not.

    With ``lately``, only their last transitions are read, some hundred: enough to tell what fires now.
    Foreign rows are left out and counted by the table. Raises ServerProblem if the server refuses or is out of reach.
    """
    for row in table.rows.read_selection(RowSelection(alert_range(rule), LATELY if lately else HISTORY)):
        try:
            yield parse_alert_row(row)
        except ValueError as error:
            table.foreign.add(ForeignRow(row, error))
