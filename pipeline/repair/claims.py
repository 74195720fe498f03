"""Takes windows off the work list after a repair has audited them."""

import secrets
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.writing.rewriter import Replacement, Rewriter
from pipeline.core.completion.work_list import LATE, listing, listing_time, work_key, work_row
from pipeline.core.rows.aggregate_rows import AggregateKey
from pipeline.core.schema.table_schema import Tier


class ListedWindow(NamedTuple):
    """A window of the work list.

    Attributes:
        tier: the shortest tier when the window was listed; a tier added since may be shorter.
        key: the window.
        columns: the columns of its row, one for each listing.
    """

    tier: Tier
    key: AggregateKey
    columns: tuple[bytes, ...] = ()

    @property
    def needs_claim(self) -> bool:
        """Whether a listing does not tell its time, so that a later one may have the same column."""
        return not (self.columns and all(map(listing_time, self.columns)))

    def may_have_panes(self, since_us: int) -> bool:
        """Returns whether a job listed the window since then, and a pane of it may be on its way."""
        listings = filter(None, map(listing_time, self.columns))
        return any(writer == LATE and time_us >= since_us for writer, time_us in listings)


class Claim:
    """Removes windows from the work list when a repair of them succeeds, unless they are listed again meanwhile.

    It removes the columns that were read before the repair. If one of a row's columns does not tell its time, the row
    is claimed first: a column that is unique to this repair replaces each such column.
    """

    def __init__(self, table: TableName, windows: Sequence[ListedWindow]) -> None:
        self._table = table
        self._windows = windows
        self._column = f"repair-{secrets.token_hex(4)}".encode()

    def __enter__(self) -> None:
        claimed = [each for each in self._windows if each.needs_claim]
        if claimed:
            with Rewriter.open(self._table) as rewriter:
                rewriter.replace(map(self._replacement, claimed))

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        if not self._windows or failed is not None:
            return
        keys: dict[tuple[str, bytes], list[bytes]] = defaultdict(list)
        for each in self._windows:
            for column in self._columns(each):
                keys[each.tier.family, column].append(work_key(each.tier.window, *each.key))
        with Rewriter.open(self._table) as rewriter:
            for (family, column), of_column in keys.items():
                rewriter.delete_column(of_column, family, column)

    def _columns(self, window: ListedWindow) -> list[bytes]:
        """Returns the columns that the row has during the repair."""
        timed = [each for each in window.columns if listing_time(each)]
        return [*timed, self._column] if window.needs_claim else timed

    def _replacement(self, window: ListedWindow) -> Replacement:
        rows = [work_row(window.tier, *window.key, column) for column in self._columns(window)]
        return Replacement(rows[0].key, window.tier.family, tuple(cell for row in rows for cell in row.cells))


def list_windows(table: TableName, tier: Tier, windows: Iterable[AggregateKey], now_us: int) -> None:
    """Puts windows of the shortest tier on the work list, for a later repair."""
    column = listing(LATE, now_us)
    rows = [work_row(tier, *window, column) for window in windows]
    if rows:
        with Rewriter.open(table) as rewriter:
            rewriter.replace(Replacement(row.key, tier.family, tuple(row.cells)) for row in rows)
