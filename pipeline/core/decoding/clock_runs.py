"""Distinguishes the two runs through an hour that clocks show twice, by the order of a file's records.

In autumn a logger writes 02:50, then 02:00 again: where a sensor's times go back within such an hour, its second run
begins. Times that appear again are of the second run too if one of their metrics appears again: hourly readings have
02:00 twice, and the rows of one time may have a metric each.
"""

from typing import Literal, NamedTuple, get_args

Run = Literal["first", "second"]
RUNS: tuple[Run, ...] = get_args(Run)
CLOCK_RUN = "clock_run"
"""The attribute of a message from a file with its run; ``unknown`` if the order decides for none."""

UNKNOWN = "unknown"


class _Latest(NamedTuple):
    """A sensor's latest record: its time as of the first run, its run, and the metrics at this time in this run.

    The run is empty outside such an hour.
    """

    time_us: int
    run: str
    metrics: frozenset[str]


class ClockRuns:
    """The runs of the records of a file, whose oldest record of each sensor is first."""

    def __init__(self) -> None:
        self._latest: dict[str, _Latest] = {}

    def pass_by(self, sensor_id: str, time_us: int) -> None:
        """Notes a record whose time clocks show once."""
        self._latest[sensor_id] = _Latest(time_us, "", frozenset())

    def run_of(self, sensor_id: str, first_us: int, second_us: int, metrics: frozenset[str]) -> str:
        """Returns the run of a record, ``first`` or ``second``; ``unknown`` if it follows a later one.

        The event times are as of the first run and of the second. ``metrics`` are the metrics of its readings.
        """
        latest = self._latest.get(sensor_id)
        run = "first"
        if latest is not None:
            gone_us = first_us - latest.time_us
            if not latest.run or abs(gone_us) >= second_us - first_us:  # the first record of this hour
                run = UNKNOWN if gone_us < 0 else "first"
            elif gone_us > 0 or (gone_us == 0 and latest.metrics.isdisjoint(metrics)):
                run = latest.run
                metrics = metrics if gone_us else metrics | latest.metrics
            else:
                run = "second" if latest.run == "first" else UNKNOWN
        self._latest[sensor_id] = _Latest(first_us, run, metrics)
        return run
