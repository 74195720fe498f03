"""Names the columns of flat events, in files and in Arrow tables.

A reading's column is its metric. Columns of metadata begin with ``metadata.``, so that metadata such as a serial number
is not taken for a reading. A metric whose name would collide with another column, ``event_time`` or
``metadata.location``, becomes ``reading.event_time``.
"""

SENSOR_ID, EVENT_TIME, EVENT_ID = "sensor_id", "event_time", "event_id"
METADATA, READING = "metadata.", "reading."

_OWN = frozenset({SENSOR_ID, EVENT_TIME, EVENT_ID})


def metadata_column(name: str) -> str:
    """Returns the column of a metadata entry."""
    return f"{METADATA}{name}"


def reading_column(metric: str) -> str:
    """Returns the column of a metric. It depends only on the name: every file and table uses the same column."""
    return f"{READING}{metric}" if metric in _OWN or metric.startswith((METADATA, READING)) else metric
