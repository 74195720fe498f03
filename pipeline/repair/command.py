"""``tidetable repair``: recomputes aggregates from their raw rows, and rewrites or reports those that differ."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.console import err, print_json_line, progress_bar, report_foreign_rows
from pipeline.cli.options import (
    AskedRange,
    Parsed,
    allowed_lateness_option,
    asked_range_options,
    dry_run_option,
    json_option,
    late_firing_option,
    table_options,
)
from pipeline.cloud.connection.names import TableName
from pipeline.core.completion.audit import (
    COLLECTED,
    COLLECTED_ROWS,
    FOREIGN,
    KEPT_NO_LONGER,
    OPEN,
    TOO_WIDE,
    UNSURE,
    SkippedWindows,
)
from pipeline.core.events.event import LATEST_US, checked_sensor_id
from pipeline.core.notation.durations import format_duration
from pipeline.core.notation.text import counted, plain
from pipeline.core.notation.times import format_time
from pipeline.core.rows.aggregate_rows import READING_COUNT
from pipeline.transforms import metrics

if TYPE_CHECKING:  # importing Beam takes seconds, too long for --help
    from pipeline.repair.rollups import RollupScope
    from pipeline.repair.run import SliceResult
    from pipeline.repair.scope import RepairScope, Request

_MOST_STATISTICS = 3  # in the line of a finding
_WHY = {
    COLLECTED: "Bigtable may have collected some of their raw rows",
    KEPT_NO_LONGER: "Bigtable collects aggregate rows of that age",
    OPEN: "a running job may still write them; pass its --allowed-lateness and --late-firing, or 0s if none is running",
}
_WHY_OF_ROLLUPS = {
    COLLECTED: "Bigtable may have collected some of the aggregate rows",
    KEPT_NO_LONGER: "Bigtable collects rows of roll-ups of that age",
}
_SAID_EVERY_S = 30.0  # how often a log has a line on progress
_NOT_OVER = "they have not ended yet; --include-unsettled includes them"


@click.command()
@table_options
@asked_range_options
@click.option("--rollups", is_flag=True, help="Repair the rows of roll-ups, from the aggregate rows of all sensors.")
@click.option("--listed", is_flag=True, help="Repair the windows of the table's work list instead of a time range.")
@click.option(
    "--sensor",
    "sensors",
    type=Parsed("sensor", checked_sensor_id),
    multiple=True,
    metavar="SENSOR",
    help="Only this sensor. Repeatable.",
)
@dry_run_option
@click.option(
    "--include-unsettled",
    "force",
    is_flag=True,
    help="Include windows that may be partly collected, or that a job may still write.",
)
@allowed_lateness_option
@late_firing_option
@click.option("--report", help="Write all findings to files in this folder, local or gs://…; required on Dataflow.")
@json_option
@click.argument("beam_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- BEAM_FLAGS...]")
@click.pass_context
def repair(
    ctx: click.Context,
    table: TableName,
    asked: AskedRange,
    rollups: bool,
    listed: bool,
    sensors: tuple[str, ...],
    dry_run: bool,
    force: bool,
    allowed_lateness: timedelta,
    late_firing: timedelta,
    report: str | None,
    as_json: bool,
    beam_flags: tuple[str, ...],
) -> None:
    """Recompute aggregates from their raw rows, and rewrite those that differ.

    Audits every window, of every tier, that lies entirely between --from and --to. Recomputes its aggregate from its
    raw rows, and replaces the aggregate row if it differs by more than rounding. Deletes an aggregate row that has no
    raw rows. A second run changes nothing. Skips and reports windows whose raw rows may be partly collected, and
    windows that a running job may still write.

    Reports foreign rows, which the schema never writes. Leaves a foreign raw row as it is, and puts the windows that it
    may belong to on the work list instead of repairing them. Rewrites a foreign aggregate row.

    Longer windows around those that are rewritten follow, and then the roll-ups of all; so do those around listed
    windows that are audited. Rows of newest readings get the newest readings that raw rows have. With --rollups,
    audits the rows of roll-ups instead: computes them from the aggregate rows of all sensors, and rewrites those that
    differ. This also computes the past of a roll-up that was added to a table with data: aggregate rows that do not
    tell the metadata of its groups are computed again from their raw rows first. Those whose raw rows may be collected
    are counted, and belong to none of its groups.

    The work list contains the windows whose aggregates may lack something, for example because some of their raw rows
    may be collected. A repair removes the windows that it settles, with --listed as well as with --from and --to.

    Runs in this process. Pass Beam's flags after "--" to run on Dataflow:
    -- --runner=DataflowRunner --region=europe-west4 --temp-location=gs://… --sdk-container-image=…

    \b
    Exit code:
      0    every audited row is right now
      1    with --dry-run, some differ or none was checked; the table has foreign rows; or the table or a server has a
           problem
      2    wrong usage
      130  Ctrl-C: repaired windows stay repaired, and a dry run has written nothing; run the same command again for
           the rest
    """  # noqa: D301 (\b is click's mark for a paragraph with fixed line breaks)
    from pipeline.job.bounded import beam_options
    from pipeline.job.flags import BadFlag
    from pipeline.repair.scope import Request, scope_of

    if rollups and (listed or sensors):
        unwanted = "--listed, which settles roll-ups too" if listed else "--sensor"
        raise click.UsageError(f"--rollups merges the rows of all sensors; omit {unwanted}")
    between = _between(*asked.us(), listed=listed)
    of_sensors = frozenset(sensors) or None
    request = Request(table, *between, of_sensors, listed, dry_run, force, allowed_lateness, late_firing, report)
    try:
        options = beam_options(beam_flags, table.project)
        if rollups:
            ctx.exit(_repair_rollups(request, options, as_json=as_json))
        scope = scope_of(request, options)
        sums = _carry_out(request, scope, options, as_json=as_json)
    except BadFlag as problem:
        raise click.UsageError(str(problem)) from problem
    except KeyboardInterrupt:
        done = "nothing was written" if dry_run else "repaired windows stay repaired"
        click.echo(f"Interrupted: {done}; run the same command again for the rest", err=True)
        ctx.exit(130)
    _sum_up(request, scope, sums, as_json=as_json)
    nothing = _checked_nothing(request, scope, sums)
    ctx.exit(1 if nothing or (dry_run and (sums["wrong"] or sums["newest"])) or sums["foreign"] else 0)


def _repair_rollups(request: "Request", options: Any, *, as_json: bool) -> int:
    """Repairs roll-ups, and prints each wrong row and the totals. Returns the exit code."""
    from pipeline.repair.rollups import repair_rollups, rollup_scope_of

    scope, sums = rollup_scope_of(request, options), Counter[str]()
    with progress_bar() as progress:
        task = progress.add_task("checking" if request.dry_run else "repairing", total=len(scope.slices))
        for outcome in repair_rollups(request, scope, options):
            sums.update(outcome.counts)
            sums["windows"] += sum(each.rewritten for each in outcome.repaired)
            progress.stop()  # a running display redirects what is printed to standard error
            for finding in outcome.findings:
                if as_json:
                    print_json_line(finding)
                else:
                    where = " ".join(finding[name] for name in ("rollup", "value", "window", "start", "problem"))
                    click.echo(plain(_with_differences(where, finding["differences"], "merged")))
            sys.stdout.flush()
            progress.start()
            progress.advance(task)
    _sum_up_rollups(request, scope, sums, as_json=as_json)
    checked = sums[metrics.REPAIR_ROLLUPS_CHECKED]
    if request.dry_run and not checked:
        why = "all windows of the range were skipped" if scope.skipped else "no sensor has rows in these windows"
        click.echo(f"nothing was checked: {why}", err=True)
    wrong = (metrics.REPAIR_ROLLUPS_WRONG, metrics.REPAIR_CONTRIBUTIONS_WRONG, metrics.REPAIR_ROWS_TO_RECOMPUTE)
    return 1 if request.dry_run and (not checked or any(sums[name] for name in wrong)) else 0


def _between(start_us: int | None, end_us: int | None, *, listed: bool) -> tuple[int, int]:
    if listed:
        if start_us is not None or end_us is not None:
            raise click.UsageError("--listed repairs the windows of the work list; omit --from and --to")
        return 0, LATEST_US + 1
    if start_us is None or end_us is None:
        raise click.UsageError("choose the windows: pass --from and --to, or --listed")
    start_us, end_us = (min(max(time_us, 0), LATEST_US + 1) for time_us in (start_us, end_us))
    if start_us >= end_us:
        raise click.UsageError(f"--from {format_time(start_us)} is not before --to {format_time(end_us)}")
    return start_us, end_us


def _carry_out(request: "Request", scope: "RepairScope", options: Any, *, as_json: bool) -> dict[str, int]:
    from pipeline.repair.report import shown_row
    from pipeline.repair.run import carry_out

    names = "checked", "wrong", "rewritten", "settled", "listed", "untouched", "unnamed", "newest"
    sums = dict.fromkeys(names, 0)
    behind, longer = 0, dict[tuple[str, ...], bool]()  # whether a longer window stays as it is
    foreign = {shown_row(key): line for key, line in scope.foreign.messages.items()}
    with progress_bar() as progress:
        doing = "checking" if request.dry_run else "repairing"
        task, said_s = progress.add_task(doing, total=None), time.monotonic()
        for done, outcome in enumerate(carry_out(request, scope, options), 1):
            for name in sums:
                sums[name] += getattr(outcome, name)
            foreign |= outcome.foreign
            progress.stop()  # a running display redirects what is printed to standard error
            behind += _print_findings(outcome, longer, as_json=as_json)
            progress.start()
            progress.update(task, completed=done, total=done + outcome.left)
            if not err.is_terminal and time.monotonic() > said_s + _SAID_EVERY_S:
                said_s = time.monotonic()
                click.echo(f"{doing}: {done} of {done + outcome.left} parts", err=True)
    sums |= {"behind": behind, "longer": len(longer), "longer_left": sum(longer.values())}
    sums["foreign"] = len(foreign) + scope.foreign.count - len(scope.foreign.messages) + sums["unnamed"]
    report_foreign_rows(foreign.values(), sums["foreign"], "left alone")
    return sums


def _print_findings(outcome: "SliceResult", longer: dict[tuple[str, ...], bool], *, as_json: bool) -> int:
    """Prints the findings. Returns the number of windows whose row counts fewer events than their raw rows.

    Args:
        outcome: the findings of a slice.
        longer: the longer windows around wrong ones so far, each of which is printed once: several slices may have it.
        as_json: whether to print JSON.
    """
    from pipeline.repair.report import is_around, is_left

    behind = 0
    for finding in outcome.findings:
        if is_around(finding):
            window = finding["sensor_id"], finding["window"], finding["start"]
            if window in longer:
                continue
            longer[window] = is_left(finding)
        if as_json:
            print_json_line(finding)
        else:
            click.echo(plain(_line(finding)))
        behind += not is_around(finding) and _is_behind(finding)
    sys.stdout.flush()
    return behind


def _is_behind(finding: Mapping[str, Any]) -> bool:
    """Whether the aggregate row counts fewer events than the raw rows, or is missing."""
    count = finding["differences"].get(READING_COUNT)
    if count is None or isinstance(count["stored"], str):  # it is right, or another program's
        return False
    return (count["recomputed"] or 0) > (count["stored"] or 0)


def _line(finding: Mapping[str, Any]) -> str:
    line = f"{finding['sensor_id']} {finding['window']} {finding['start']} {finding['problem']}"
    if finding["problem"] in (FOREIGN, TOO_WIDE, OPEN, COLLECTED_ROWS, UNSURE):
        return f"{line}: left as it is"
    if finding["problem"] == "no raw rows":
        return line
    return _with_differences(line, finding["differences"], "recomputed")


def _with_differences(line: str, differences: Mapping[str, Any], right: str) -> str:
    """Returns a line with the first differences; ``right`` names the field of their right value."""
    shown = [
        f"{name} {_shown(each['stored'])} -> {_shown(each[right])}"
        for name, each in list(differences.items())[:_MOST_STATISTICS]
    ]
    more = len(differences) - len(shown)
    return line + (f": {', '.join(shown)}" if shown else "") + (f" and {more} more" if more else "")


def _shown(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    return value if isinstance(value, str) else f"{value!r}".removesuffix(".0")


def _sum_up(request: "Request", scope: "RepairScope", sums: dict[str, int], *, as_json: bool) -> None:
    left = len(scope.listed) - sums["settled"] + sums["listed"]
    longer = sums["longer"] - sums["longer_left"]
    if as_json:
        print_json_line(
            {
                "table": str(request.table),
                **{name: sums[name] for name in ("checked", "wrong", "behind", "rewritten")},
                "longer": {
                    "differ": longer,
                    "rewritten": 0 if request.dry_run else longer,
                    "left": sums["longer_left"],
                },
                "newest": {"differ": sums["newest"], "rewritten": 0 if request.dry_run else sums["newest"]},
                "dry_run": request.dry_run,
                "foreign": {"rows": sums["foreign"], "windows": sums["untouched"]},
                "skipped": [_skipped_record(each) for each in scope.skipped],
                "work_list": {"settled": sums["settled"], "left": left},
            }
        )
        return
    what = "nothing written" if request.dry_run else f"{sums['rewritten']:,} rewritten"
    click.echo(f"{counted(sums['checked'], 'window')} checked, {sums['wrong']:,} wrong, {what}")
    if longer:
        click.echo(f"{counted(longer, 'longer window')} around them {'would be ' * request.dry_run}rewritten")
    if sums["newest"]:
        rewritten = f"{'would be ' * request.dry_run}rewritten"
        click.echo(f"{counted(sums['newest'], 'row')} of newest readings {rewritten}")
    if sums["longer_left"]:
        click.echo(
            f"{counted(sums['longer_left'], 'longer window')} around them unchanged, and listed: a job may still write "
            "them, or the shorter windows in them may be collected or lack something"
        )
    if sums["behind"] and request.dry_run:
        click.echo(
            f"{sums['behind']:,} of the wrong windows count fewer events than their raw rows: a running job may still "
            f"add events that came within its late firing interval ({format_duration(request.late_firing)}) or since a "
            "restart; audit again later"
        )
    if sums["foreign"]:
        click.echo(
            f"{counted(sums['foreign'], 'foreign row')}; {counted(sums['untouched'], 'window')} unchanged, since "
            "foreign rows may belong to them"
        )
    elif sums["untouched"]:
        click.echo(f"{counted(sums['untouched'], 'window')} unchanged, with more metrics than fit in a row")
    for line in _skipped_lines(request, scope.skipped):
        click.echo(line)
    if scope.listed or sums["listed"]:
        click.echo(f"work list: {counted(sums['settled'], 'window')} settled, {left:,} left")
    if ends := scope.open_ends():
        click.echo(
            f"a running job may still write {counted(len(ends), 'listed window')}, or a longer one around it, until "
            f"{format_time(max(ends))} and its allowed lateness: repair again then, or pass --allowed-lateness 0s if "
            "no job runs"
        )
    if waiting := sum(each.may_have_panes(scope.in_flight_from_us) for each in scope.listed):
        click.echo(
            f"{counted(waiting, 'window')} listed by a job in the last 20 minutes: a row may be on its way, so repair "
            "again later"
        )


def _sum_up_rollups(request: "Request", scope: "RollupScope", sums: Mapping[str, int], *, as_json: bool) -> None:
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
                "skipped": [_skipped_record(each) for each in scope.skipped],
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
    for line in _skipped_lines(request, scope.skipped, _WHY | _WHY_OF_ROLLUPS, "for each group"):
        click.echo(line)


def _skipped_record(skipped: SkippedWindows) -> dict[str, Any]:
    return {
        "window": skipped.tier.window.text,
        "reason": skipped.reason,
        "from": format_time(skipped.start_us),
        "to": format_time(skipped.end_us),
        "windows": skipped.windows,
    }


def _skipped_lines(
    request: "Request",
    skipped: Iterable[SkippedWindows],
    reasons: Mapping[str, str] = _WHY,
    of: str = "for each sensor",
) -> Iterable[str]:
    for each in skipped:
        # With an allowed lateness of zero, only a window in progress is open.
        why = _NOT_OVER if each.reason == OPEN and not request.allowed_lateness else reasons[each.reason]
        yield (
            f"skipped, {of}: {counted(each.windows, 'window')} of {each.tier.window.text} from "
            f"{format_time(each.start_us)} to {format_time(each.end_us)}, {each.reason}: {why}"
        )


def _checked_nothing(request: "Request", scope: "RepairScope", sums: Mapping[str, int]) -> bool:
    """Returns whether a dry run checked none of the requested windows, and prints why."""
    if not request.dry_run or sums["checked"] or (request.listed and len(scope.listed) == len(scope.expired)):
        return False
    if scope.skipped:
        why = "all windows of the range were skipped"
    elif request.listed:
        why = (
            f"a running job may still write the listed windows, or {_WHY[COLLECTED]}; --include-unsettled includes them"
        )
    else:
        why = "no window that lies entirely between --from and --to has rows"
    click.echo(f"nothing was checked: {why}", err=True)
    return True
