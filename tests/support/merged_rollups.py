"""What the rows of roll-ups have to be: the merge of their sensors' aggregate rows, computed on its own."""

import math
from collections import defaultdict

from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.aggregate_rows import aggregate_key, parse_window_stats
from pipeline.core.rows.rollup_rows import FAMILY, groups_range, parse_rollup_row
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.core.statistics.member import member_fields


def expected_rollups(schema, rows, member_of):
    """Returns the columns of each group's row, by window length, roll-up, value and start.

    Args:
        schema: the table's schema.
        rows: the columns of each aggregate row, by window length, sensor and start.
        member_of: returns the metadata of the newest event of a sensor's window; None without any event.
    """
    groups = defaultdict(list)
    for (text, sensor_id, start_us), row in rows.items():
        for rollup in schema.rollups:
            value = rollup.value_of(member_of(text, sensor_id, start_us) or {})
            if value is not None and text in (rollup.tiers or [text]):
                wanted = {name: number for name, number in row.items() if _is_wanted(rollup, name)}
                groups[text, rollup.name, value, start_us].append(wanted)
    return {key: _merged(rows) for key, rows in groups.items()}


def found_rollups(schema, read):
    """Returns the columns of each group's row that a table has, as :func:`expected_rollups` does."""
    found = {}
    for tier in schema.tiers:
        for rollup in schema.rollups:
            selection = RowSelection(groups_range(tier.window, rollup.name), CellSelection((FAMILY,)))
            for row in read(selection):
                record = parse_rollup_row(tier.window, row)
                if record is not None:
                    columns = {"sensors": record.sensors, "reading_count": record.reading_count}
                    for metric, summary in record.metrics.items():
                        columns |= {f"{name}_{metric}": value for name, value in summary.statistics().items()}
                    found[tier.window.text, rollup.name, record.group.text, record.start_us] = columns
    return found


def member_in(schema, read, text, sensor_id, start_us):
    """Returns the metadata that an aggregate row tells of its sensor; None if it does not."""
    tier = next(tier for tier in schema.tiers if tier.window.text == text)
    key = aggregate_key(tier.window, sensor_id, start_us)
    selection = RowSelection(KeyRange(key, key + b"\x00"), CellSelection((tier.family,), versions=1))
    rows = [parse_window_stats(tier.window, row, tier.statistics)[1] for row in read(selection)]
    return dict(member_fields(rows[0].member.text)) if rows and rows[0].member is not None else None


def differences(found, expected):
    """Returns what differs: the group's key, what was found and what was expected."""
    return [
        (key, found.get(key), expected.get(key))
        for key in sorted(found.keys() | expected.keys())
        if not _same(found.get(key), expected.get(key))
    ]


def _is_wanted(rollup, column):
    return column == "reading_count" or rollup.merges(column.partition("_")[2])


def _merged(rows):
    merged = {"sensors": len(rows), "reading_count": sum(row["reading_count"] for row in rows)}
    for metric in sorted({name.removeprefix("count_") for row in rows for name in row if name.startswith("count_")}):
        of_metric = [row for row in rows if f"count_{metric}" in row]
        counts, averages, deviations = (
            [row[f"{name}_{metric}"] for row in of_metric] for name in ("count", "avg", "stddev")
        )
        count, total = sum(counts), math.fsum(row[f"sum_{metric}"] for row in of_metric)
        average = total / count
        squares = [n * (d * d + (a - average) ** 2) for n, a, d in zip(counts, averages, deviations, strict=True)]
        merged |= {
            f"count_{metric}": count,
            f"sum_{metric}": total,
            f"min_{metric}": min(row[f"min_{metric}"] for row in of_metric),
            f"max_{metric}": max(row[f"max_{metric}"] for row in of_metric),
            f"avg_{metric}": average,
            f"stddev_{metric}": math.sqrt(math.fsum(squares) / count),
        }
        if all(f"increase_{metric}" in row for row in of_metric):
            merged[f"increase_{metric}"] = math.fsum(row[f"increase_{metric}"] for row in of_metric)
    return merged


def _same(found, expected):
    return (
        found is not None
        and expected is not None
        and found.keys() == expected.keys()
        and all(math.isclose(found[name], expected[name], rel_tol=1e-9, abs_tol=1e-6) for name in expected)
    )
