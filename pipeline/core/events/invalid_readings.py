"""Readings that are not valid: not finite, outside their metric's range, or left out by a mapping.

An event loses such readings and keeps the others, unless the schema refuses it. Nothing is lost silently: they are
counted, and the first of a message for each metric and reason are kept with their values.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from math import inf, isfinite, nan
from operator import itemgetter
from typing import Any, TypeVar

from pipeline.core.events.message import Message
from pipeline.core.events.reasons import BadData, Reason
from pipeline.core.notation.cell_values import format_value
from pipeline.proto.sensor_event_pb2 import SensorEvent

_INVALID = (Reason.NON_FINITE_VALUE, Reason.OUT_OF_RANGE)
_MAX_FIRST = 1000  # metrics and reasons of a message
_Raw = TypeVar("_Raw")
_Event = TypeVar("_Event")


class Invalid(StrEnum):
    """The fate of an event with a reading that is not valid, as the key ``invalid`` says."""

    DROP_READING = "drop reading"
    """The reading is left out, and counted; the event's other readings are kept."""
    REFUSE_EVENT = "refuse event"
    """The event becomes a dead letter."""


class LeftOut(float):
    """The NaN that stands for a reading which a mapping leaves out, with the problem."""

    problem: BadData

    def __new__(cls, problem: BadData) -> "LeftOut":
        """Returns the stand-in."""
        stand_in = super().__new__(cls, nan)
        stand_in.problem = problem
        return stand_in

    def problem_of(self, metric: str) -> BadData:
        """Returns the problem with the metric's name, which the key of a star lacks."""
        named = self.problem.detail if metric in self.problem.detail else f"{metric}: {self.problem.detail}"
        return BadData(self.problem.reason, named)


def is_left_out(value: Any) -> bool:
    """Returns whether a value of an event is a reading that it loses: NaN, infinite, or a stand-in."""
    return isinstance(value, float) and not isfinite(value)


class InvalidReadings(BadData):
    """Raised for an event with readings that are not valid. ``problems`` has the reasons by metric."""

    def __init__(self, problems: Mapping[str, BadData]) -> None:
        first = next(iter(problems.values()))
        super().__init__(first.reason, first.detail)
        self.problems = dict(problems)

    def refusal(self, invalid: Invalid) -> BadData | None:
        """Returns the problem that refuses the event; None if its other readings are kept."""
        if invalid is Invalid.DROP_READING:
            return None
        problems = self.problems.values()  # a mapping leaves out readings for other reasons
        return next((problem for problem in problems if problem.reason in _INVALID), None)


def not_finite(readings: Mapping[str, float]) -> InvalidReadings | None:
    """Returns the problem of readings that are not finite; None if all are."""
    problems = {
        metric: value.problem_of(metric)
        if isinstance(value, LeftOut)
        else BadData(Reason.NON_FINITE_VALUE, f"reading {metric} is {value}")
        for metric, value in sorted(readings.items(), key=itemgetter(0))  # a map of protobuf has no order
        if not isfinite(value)
    }
    return InvalidReadings(problems) if problems else None


def parse_range(value: object) -> tuple[float, float]:
    """Returns the range that a key ``valid`` declares. Raises ValueError."""
    problem = f"takes the least and the greatest valid number, like [-40, 60], not {value!r:.80}"
    if not isinstance(value, list) or len(value) != 2 or not all(type(bound) in (int, float) for bound in value):
        raise ValueError(problem)
    least, greatest = map(float, value)  # TOML's integers are not beyond a double's range here
    if not (isfinite(least) and isfinite(greatest) and least <= greatest):
        raise ValueError(problem)
    return least, greatest


class RangeCheck:
    """Checks events against the ranges of tables: a reading has to be in the range of each.

    ``empty`` is a metric of which no reading is in the ranges of all tables; None without one.
    """

    def __init__(self, ranges: Iterable[Mapping[str, tuple[float, float]]]) -> None:
        self._ranges: dict[str, tuple[float, float]] = {}
        for table_ranges in ranges:
            for metric, (least, greatest) in table_ranges.items():
                before = self._ranges.get(metric, (-inf, inf))
                self._ranges[metric] = max(least, before[0]), min(greatest, before[1])
        self.empty = next((metric for metric, (least, greatest) in self._ranges.items() if least > greatest), None)

    def __bool__(self) -> bool:
        """Whether any metric has a range."""
        return bool(self._ranges)

    def __call__(self, event: Any) -> None:
        """Raises InvalidReadings for an ``Event`` with readings out of their range."""
        ranges = self._ranges
        problems = [
            (metric, out_of_range(f"reading {metric}", value, ranges[metric]))
            for metric, value in event.readings.items()
            if metric in ranges and not ranges[metric][0] <= value <= ranges[metric][1]
        ]
        if problems:
            raise InvalidReadings(dict(sorted(problems, key=itemgetter(0))))


def out_of_range(name: str, value: float, valid: tuple[float, float]) -> BadData:
    """Returns the problem of a reading that is out of its range. ``name`` is the reading in the message."""
    number, least, greatest = (format_value(bound).decode() for bound in (value, *valid))
    return BadData(Reason.OUT_OF_RANGE, f"{name} is {number}, not in [{least}, {greatest}]")


class DroppedReadings:
    """The readings that the events of a message lost.

    Attributes:
        number: the number of readings.
        first: problems by the position of their events, the first of each reason and metric.
    """

    def __init__(self) -> None:
        self.number = 0
        self.first: dict[int, dict[str, BadData]] = {}
        self._seen: set[tuple[Reason, str]] = set()

    def add(self, position: int, problems: Mapping[str, BadData]) -> None:
        """Adds the readings that an event lost."""
        self.number += len(problems)
        for metric, problem in problems.items():
            kind = problem.reason, metric
            if kind not in self._seen and len(self._seen) < _MAX_FIRST:
                self._seen.add(kind)
                self.first.setdefault(position, {})[metric] = problem


def losses_of(
    dropped: DroppedReadings | None, message: Message
) -> tuple[int, list[tuple[Message, dict[str, BadData]]]]:
    """Returns the number of readings that the events of a message lost, and the message with their first problems."""
    if dropped is None:
        return 0, []
    return dropped.number, [
        (message, {metric: why for problems in dropped.first.values() for metric, why in problems.items()})
    ]


def without_invalid(
    event: _Raw, invalid_readings: InvalidReadings, checked: Callable[[_Raw], _Event], invalid: Invalid
) -> tuple[_Event, dict[str, BadData]] | BadData:
    """Returns the valid event that an event is without its invalid readings, and their problems; or why it is refused.

    An event without valid readings, and without metadata that a table keeps, is refused for the first problem.
    ``checked`` returns a valid event, or raises BadData.
    """
    lost: dict[str, BadData] = {}
    problem: BadData = invalid_readings
    while isinstance(problem, InvalidReadings):
        if refusal := problem.refusal(invalid):
            return refusal
        lost |= problem.problems
        event = _without(event, problem.problems)
        try:
            return checked(event), lost  # without readings, the metadata may be an event
        except BadData as error:
            problem = error.with_traceback(None)
            if problem.reason is Reason.NO_READINGS:
                return next(iter(lost.values()))
    return problem


def _without(event: _Raw, metrics: Iterable[str]) -> _Raw:
    """Returns an event without some of its readings: a ``SensorEvent``, or a named tuple with ``readings``."""
    if isinstance(event, SensorEvent):
        copy = type(event)()
        copy.CopyFrom(event)
        for metric in metrics:
            del copy.readings[metric]
        return copy
    lost = set(metrics)
    made: Any = event
    rest = {metric: value for metric, value in made.readings.items() if metric not in lost}
    message = getattr(made, "message", None)
    return made._replace(readings=rest, **({} if message is None else {"message": _without(message, lost)}))
