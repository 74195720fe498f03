"""What a consumer of results keeps: of each window, the result with the greatest id."""

from google.protobuf import json_format

from pipeline.core.notation.times import parse_time
from pipeline.core.rows.aggregate_rows import parse_aggregate_key
from pipeline.core.windows import HOURLY
from pipeline.proto.window_result_pb2 import WindowResult


def decoded(message):
    """Returns the result that a message contains, in either encoding."""
    is_json = message.data.startswith(b"{")
    result = json_format.Parse(message.data, WindowResult()) if is_json else WindowResult.FromString(message.data)
    assert message.attributes["event_id"] == result.event_id
    return result


def columns(rows):
    """Returns the columns of the hourly rows among these, as :func:`newest_columns` returns results."""
    return {
        (HOURLY.text, *parse_aggregate_key(HOURLY, key.encode())): {
            column.partition(":")[2]: float(value) for column, value in row.items()
        }
        for key, row in rows.items()
        if key.startswith("agg#")
    }


def newest_of(results):
    """Returns the newest result of each window, by tier, sensor and start: events, and each metric's statistics."""
    newest = {}
    for result in results:
        window = result.tier, result.sensor_id, parse_time(result.window_start)
        if window not in newest or newest[window].event_id < result.event_id:
            newest[window] = result
    return {
        window: (
            result.reading_count,
            {
                each.metric: {"count": each.count} | {one.name: one.value for one in each.statistics}
                for each in result.metrics
            },
        )
        for window, result in newest.items()
    }


def newest_columns(results):
    """Returns the newest result of each window as the columns of its row."""
    return {
        window: {"reading_count": events}
        | {f"{name}_{metric}": value for metric, of_metric in metrics.items() for name, value in of_metric.items()}
        for window, (events, metrics) in newest_of(results).items()
    }
