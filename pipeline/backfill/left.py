"""Why a backfill leaves windows as they are: the counters of the reasons, and what the summary says about each."""

from collections.abc import Iterator, Mapping

from pipeline.core.notation.text import counted
from pipeline.transforms import metrics

_ADVICE = {
    metrics.LEFT_COLLECTED: "Bigtable may have collected some of their raw rows, so that nobody knows whether the "
    "aggregates still count more",
    metrics.LEFT_TO_JOB: "their aggregates count readings that the raw rows lack, or have with other values, and a job "
    "may still write both; run tidetable repair --listed once these windows are over, or pass --allowed-lateness 0s if "
    "no job runs",
    metrics.LEFT_LARGER: "their aggregates count more than the raw rows, or they have more metrics than a row takes; "
    "tidetable repair --listed makes them equal their raw rows",
    metrics.LEFT_FOREIGN: "a row that another program wrote may belong to them; tidetable repair --listed names it",
}


def why_left(*, is_foreign: bool, is_kept: bool, is_of_job: bool) -> str:
    """Returns the counter of the reason why a window is left.

    Args:
        is_foreign: whether a foreign row may belong to the window.
        is_kept: whether the table certainly has all of its raw rows.
        is_of_job: whether a job may still write it.
    """
    if is_foreign:
        return metrics.LEFT_FOREIGN
    if not is_kept:
        return metrics.LEFT_COLLECTED
    return metrics.LEFT_TO_JOB if is_of_job else metrics.LEFT_LARGER


def left_lines(totals: Mapping[str, int]) -> Iterator[str]:
    """Returns a line of the summary for each reason."""
    for name, advice in _ADVICE.items():
        if left := totals.get(name, 0):
            yield f"{counted(left, 'window')} left unchanged and put on the table's work list: {advice}"
