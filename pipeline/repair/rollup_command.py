"""Carries out ``tidetable repair --rollups``, and prints what it finds."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.console import print_json_line, progress_bar
from pipeline.core.completion.auditable_windows import COLLECTED, KEPT_NO_LONGER, SkippedWindows
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import format_time
from pipeline.transforms import metrics

if TYPE_CHECKING:  # importing Beam takes seconds, too long for --help
    from pipeline.repair.request import Request
    from pipeline.repair.rollup_run import RollupScope
    from pipeline.repair.run import SliceResult

_MOST_COLUMNS = 3  # in the line of a finding
WHY_OF_ROLLUPS = {
    COLLECTED: "Bigtable may have collected some of the aggregate rows",
    KEPT_NO_LONGER: "Bigtable collects rows of roll-ups of that age",
}


def carry_out_rollups(request: "Request", options: Any, *, as_json: bool) -> "tuple[RollupScope, Counter[str]]":
    """Repairs roll-ups, and prints each wrong row. Returns the scope and the totals of counters."""
    from pipeline.repair.rollup_run import repair_rollups, rollup_scope_of

    scope, sums = rollup_scope_of(request, options), Counter[str]()
    with progress_bar() as progress:
        task = progress.add_task("checking" if request.dry_run else "repairing", total=len(scope.slices))
        for outcome in repair_rollups(request, scope, options):
            sums.update(outcome.counts)
            sums.update(_of_aggregates(outcome.repaired))
            progress.stop()  # a running display redirects what is printed to standard error
            for finding in outcome.findings:
                if as_json:
                    print_json_line(finding)
                else:
                    click.echo(plain(_line(finding)))
            sys.stdout.flush()
            progress.start()
            progress.advance(task)
    return scope, sums


def _of_aggregates(repaired: "Iterable[SliceResult]") -> dict[str, int]:
    found = Counter[str]()
    for each in repaired:
        found.update(windows=each.rewritten, untouched=each.untouched)
    return found


def _line(finding: Mapping[str, Any]) -> str:
    differences = finding["differences"]
    shown = [
        f"{name} {_shown(each['stored'])} -> {_shown(each['merged'])}"
        for name, each in list(differences.items())[:_MOST_COLUMNS]
    ]
    more = len(differences) - len(shown)
    line = " ".join(finding[name] for name in ("rollup", "value", "window", "start", "problem"))
    return line + (f": {', '.join(shown)}" if shown else "") + (f" and {more} more" if more else "")


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value!r}".removesuffix(".0")


def sum_up_rollups(
    request: "Request",
    skipped: Iterable[SkippedWindows],
    lines: Iterable[str],
    sums: Mapping[str, int],
    *,
    as_json: bool,
) -> None:
    """Prints the totals.

    Args:
        request: the request.
        skipped: the windows that were skipped.
        lines: the lines about the skipped windows.
        sums: the totals of counters.
        as_json: whether to print JSON.
    """
    lacking, recomputable = sums[metrics.REPAIR_ROWS_WITHOUT_MEMBER], sums[metrics.REPAIR_ROWS_TO_RECOMPUTE]
    checked, wrong = sums[metrics.REPAIR_ROLLUPS_CHECKED], sums[metrics.REPAIR_ROLLUPS_WRONG]
    contributions = sums[metrics.REPAIR_CONTRIBUTIONS_WRONG]
    if as_json:
        print_json_line(
            {
                "table": str(request.table),
                "rollups": {"checked": checked, "wrong": wrong, "written": sums[metrics.ROLLUP_ROWS]},
                "contributions": {"wrong": contributions},
                "aggregates": {"recomputed": sums["windows"], "to_recompute": recomputable, "without_groups": lacking},
                "dry_run": request.dry_run,
                "skipped": [
                    {
                        "window": each.tier.window.text,
                        "reason": each.reason,
                        "from": format_time(each.start_us),
                        "to": format_time(each.end_us),
                        "windows": each.windows,
                    }
                    for each in skipped
                ],
            }
        )
        return
    what = "nothing written" if request.dry_run else f"{sums[metrics.ROLLUP_ROWS]:,} written"
    right = f"{checked - wrong:,} right, {wrong:,} wrong"
    click.echo(f"{counted(checked, 'row')} of roll-ups checked: {right}, {what}")
    if contributions:
        click.echo(f"{counted(contributions, 'contribution')} of sensors wrong")
    if sums["windows"]:
        click.echo(f"{counted(sums['windows'], 'aggregate row')} computed again from raw rows, which tell the groups")
    if recomputable:
        others = "foreign rows may belong to them, or a job may still write them"
        then = "a repair computes them again first" if request.dry_run else others
        click.echo(f"{counted(recomputable, 'aggregate row')} without the groups that raw rows tell: {then}")
    if lacking:
        click.echo(
            f"{counted(lacking, 'aggregate row')} without the groups, and Bigtable may have collected their raw rows: "
            "roll-ups by metadata that they lack do not count them"
        )
    for line in lines:
        click.echo(line)
