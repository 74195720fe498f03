"""The query parameters of the API, with their bounds, as FastAPI checks and documents them."""

import time
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Header, Query, Request

from pipeline.core.answers.gaps import Fill
from pipeline.core.answers.read_arguments import within_keys
from pipeline.core.notation.text import parse_pair
from pipeline.core.notation.times import UTC_ZONE, parse_moment

MAX_SENSORS = 50
MAX_RECORDS = 10_000
_MAX_NAMES = 100
_DAY_US = 86_400_000_000
_MAX_TEXT = 300  # longer than any sensor id
ARROW = "application/vnd.apache.arrow.stream"


class Format(StrEnum):
    """The format of an answer."""

    JSON = "json"
    FLAT = "flat"
    ARROW = "arrow"


def _text(description: str, **more: Any) -> Any:
    return Query(max_length=_MAX_TEXT, description=description, **more)


Text = Annotated[str, Query(max_length=_MAX_TEXT)]
OptionalText = Annotated[str | None, Query(max_length=_MAX_TEXT)]  # where an empty text is one
SensorId = Annotated[str, _text("The sensor's id.", alias="sensor")]
SensorIds = Annotated[
    list[Text], Query(alias="sensor", min_length=1, max_length=MAX_SENSORS, description="A sensor's id. Repeatable.")
]
Metric = Annotated[str, _text("The metric's name.")]
Metrics = Annotated[
    list[Text],
    Query(
        alias="metric",
        default_factory=list,
        max_length=_MAX_NAMES,
        description="A metric to return, instead of all. Repeatable.",
    ),
]
Metadata = Annotated[
    list[Text],
    Query(
        default_factory=list,
        max_length=_MAX_NAMES,
        description="Metadata that locates sensors, such as location=us-west2, if row keys contain it. Repeatable.",
    ),
]
_TIME = "ISO 8601, in time_zone unless it has an offset; now, today or yesterday; or a duration before now, like -2h."
Start = Annotated[str, _text(f"The start of the range, inclusive: {_TIME} By default, a day long.")]
End = Annotated[str, _text(f"The end of the range, exclusive: {_TIME}")]
Tier = Annotated[
    str, _text("The length of the windows, like 15m, 1d or 1d@Europe/Berlin. By default the table's shortest.")
]
TimeZone = Annotated[
    str,
    _text(
        "The time zone of times without an offset, like Europe/Berlin. By default that of the tier, if one is named, "
        "and else UTC."
    ),
]
SilentFor = Annotated[str, _text("Only sensors that have sent nothing for this time, such as 1h.")]
Prefix = Annotated[str, _text("Only sensors whose ids begin with this.")]
Search = Annotated[str, _text("Only sensors whose ids contain this, in any case.")]
After = Annotated[str, _text("Only sensors after this one, in the table's order.")]
Limit = Annotated[int, Query(ge=1, le=MAX_RECORDS, description="The number of records on a page.")]
MaxPoints = Annotated[int, Query(ge=4, le=20_000, description="The most points: four for each column of pixels.")]
Filling = Annotated[
    Fill,
    Query(
        description="The answer for windows without a row: nothing, no statistics (null), averages and extremes of the "
        "window before (previous), or values between those of the windows around (linear)."
    ),
]
MinCoverage = Annotated[
    float,
    Query(
        ge=0,
        le=1,
        description="The least share of the readings that the schema's [rate] expects. Metrics with less are left out "
        "of a window, and windows without any metric left count as windows without a row.",
    ),
]
MinCount = Annotated[int, Query(ge=0, description="The least number of readings, likewise.")]
Fresh = Annotated[bool, Query(description="Whether to compute windows that are still open from their raw rows.")]
AskedFormat = Annotated[
    Format | None,
    Query(
        alias="format",
        description="flat is JSON with the list rows, one object for each sensor, metric and time, whose names do not "
        f"depend on metrics. By default, arrow if Accept asks for {ARROW}, else json.",
    ),
]
Accept = Annotated[str, Header(include_in_schema=False)]


def format_of(asked: AskedFormat = None, accept: Accept = "") -> Format:
    """Returns the format that the parameter, or without one the header, asks for."""
    return asked or (Format.ARROW if ARROW in accept else Format.JSON)


def parameters_of(request: Request) -> list[str]:
    """Returns the names of the parameters that the API's documentation lists for this address."""
    documented = request.app.openapi()["paths"][request.scope["route"].path]["get"].get("parameters", [])
    return [each["name"] for each in documented if each["in"] == "query"]


def only_known(request: Request) -> None:
    """Raises ValueError for a parameter that the API's documentation does not list for this address."""
    route, known = request.scope["route"].path, parameters_of(request)
    for name in request.query_params:
        if name not in known:
            raise ValueError(f"there is no parameter {name!r}; {route} takes {', '.join(known) or 'none'}")


def as_mapping(metadata: list[str]) -> dict[str, str]:
    """Returns fields ``name=value`` as a mapping. Raises ValueError for other text."""
    return dict(map(parse_pair, metadata))


def as_range(start: str, end: str, zone: str = UTC_ZONE) -> tuple[int, int]:
    """Returns a range of time in microseconds, within the times of row keys; without a start, it is a day long.

    Raises ValueError if it does not end after it starts, or for text that is no time.
    """
    now_us = time.time_ns() // 1000
    end_us = parse_moment(end, now_us, zone)
    return within_keys(parse_moment(start, now_us, zone) if start else end_us - _DAY_US, end_us)
