"""Claims windows of the work list while a repair audits them."""

import secrets
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.completion.work_list import work_row
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.rows.rows import Row
from pipeline.core.schema.table_schema import Tier


class ListedWindow(NamedTuple):
    """A window of the work list."""

    tier: Tier  # the shortest when the window was listed; a tier added since may be shorter
    key: AggregateKey


class Claim:
    """Claims windows of the work list during a repair, and removes them when it succeeds.

    A claim replaces a row's columns with one that is unique to this repair. Removing the claim keeps the columns that
    a job or another repair writes meanwhile.
    """

    def __init__(self, table: TableName, windows: Sequence[ListedWindow]) -> None:
        self._table = table
        self._column = f"repair-{secrets.token_hex(4)}".encode()
        self._rows: dict[str, list[Row]] = {}  # by family
        for window in windows:
            self._rows.setdefault(window.tier.family, []).append(work_row(window.tier, *window.key, self._column))

    def __enter__(self) -> None:
        if self._rows:
            with Rewriter.open(self._table) as rewriter:
                for family, rows in self._rows.items():
                    rewriter.replace(Replacement(row.key, family, tuple(row.cells)) for row in rows)

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if self._rows and failed is None:
            with Rewriter.open(self._table) as rewriter:
                for family, rows in self._rows.items():
                    rewriter.delete_column((row.key for row in rows), family, self._column)


def list_windows(table: TableName, tier: Tier, windows: Iterable[AggregateKey]) -> None:
    """Puts windows of the shortest tier on the work list, for a later repair."""
    rows = [work_row(tier, *window) for window in windows]
    if rows:
        with Rewriter.open(table) as rewriter:
            rewriter.replace(Replacement(row.key, tier.family, tuple(row.cells)) for row in rows)
