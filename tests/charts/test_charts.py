import math
import struct
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from pipeline.charts import charts, png
from pipeline.charts.charts import BandPoint, Chart, PngPath, Reading, Series, common_span_us, drawable, time_ticks
from pipeline.charts.png import save_chart
from pipeline.charts.terminal import terminal_chart
from pipeline.core.notation.times import parse_time
from pipeline.core.windows import parse_window

T = parse_time("2026-02-17")
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
TITLE = "cellar-1: temperature"

EARLIEST, LATEST = parse_time("0001-01-01"), parse_time("9999-12-31T23:59:59.999999")


def band(count: int, window_us: int = HOUR) -> list[BandPoint]:
    return [BandPoint(T + i * window_us, 10.0 + i, 12.0 + i, 15.0 + i) for i in range(count)]


def chart(*points: BandPoint, readings: Sequence[Reading] = (), **more: object) -> Chart:
    return Chart(TITLE, "°C", [Series("cellar-1", points, readings)], **more)


def several(count: int, **more: object) -> Chart:
    """Returns a chart of several sensors: the first have windows and events, the last has events only."""
    series = [
        Series(
            f"cellar-{n}",
            [BandPoint(T + i * HOUR, n + i / 9, n + i / 9 + 0.2, n + i / 9 + 0.5) for i in range(24)] if n else [],
            [Reading(T + i * HOUR, n + i / 9) for i in range(24)],
        )
        for n in range(count)
    ]
    return Chart("cellars: temperature", "temperature (°C)", series[::-1], **more)


def plot_area(text: str) -> list[str]:
    """Returns the lines inside the frame, without the value labels."""
    return [line.partition("│")[2] or line.partition("┤")[2] for line in text.splitlines()[2:-4]]


KINDS = {
    "a window": chart(*band(1)),
    "a day": chart(*band(24)),
    "a day with events": chart(*band(24), readings=[Reading(T + i * MINUTE, 12.0) for i in range(1440)]),
    "a week with a gap": chart(*band(60), *band(168)[90:], requested_us=(T, T + 7 * DAY)),
    "ten minutes": chart(*band(1), readings=[Reading(T + 5 * MINUTE, 11.0)], requested_us=(T, T + 10 * MINUTE)),
    "a year of hours": chart(*band(8760)),
    "years of days": chart(*band(3000, DAY), window_us=DAY),
    "one event": chart(readings=[Reading(T, 94558.0)], requested_us=(T, T + DAY)),
    "events of a moment": chart(readings=[Reading(T + i, 1e22) for i in range(3)], requested_us=(T, T + 3)),
    "all of time": chart(*band(3), requested_us=(parse_time("0001-01-01"), parse_time("9999-12-31"))),
    "one value": chart(*(BandPoint(T + i * HOUR, 94558.0, 94558.0, 94558.0) for i in range(3))),
    "nearly one value": chart(readings=[Reading(T + i * HOUR, 94558000000 + i / 10) for i in range(3)]),
    "nothing but zero": chart(BandPoint(T, 0.0, -0.0, 0.0)),
    "almost nothing": chart(readings=[Reading(T, 1e-300), Reading(T + HOUR, 2e-300)]),
    "the greatest": chart(BandPoint(T, -1.7e308, math.inf, 1.7e308), readings=[Reading(T, 1.7e308)]),
    "a long name": Chart("a$b$" * 60 + ": " + "m" * 128, "m" * 128, [Series(band=band(3))]),
}


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("drawn", KINDS.values(), ids=KINDS)
def test_terminal(drawn: Chart, width: int) -> None:
    """Every chart has the requested size, is plain text, shows data, and keeps its labels apart."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = terminal_chart([drawn], width, height=16)
    lines = text.splitlines()
    assert len(lines) == 16
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text
    assert drawn.title[:30] in lines[0]
    assert lines[-2].strip().endswith("UTC")
    area = "".join(plot_area(text))
    [series] = drawn.series
    for mark, there in (("░", series.band), ("•", series.readings)):
        assert (mark in lines[-1]) == bool(there)
        assert mark not in area or there
    assert set(area) & set("░━•")
    labels = lines[-3].split()
    assert len(labels) >= 2
    assert len({len(label) for label in labels}) <= 2  # two that touch would be one long label


def test_a_terminal_shows_gaps() -> None:
    """Missing windows leave empty columns: no line bridges them."""
    drawn = chart(*band(6), *band(18)[12:], requested_us=(T, T + DAY))
    rows = plot_area(terminal_chart([drawn], width=80))
    columns = ["".join(row[i] for row in rows).strip() for i in range(max(map(len, rows)) - 1)]
    filled = "".join("x" if column else " " for column in columns)
    assert [len(run) for run in filled.split()] == pytest.approx([len(filled) / 4] * 2, abs=2)
    assert filled.strip() != filled.rstrip("x")  # empty columns follow the last one


def test_few_events_cover_the_mean_and_many_do_not() -> None:
    """A single event on the mean is visible; a thousand do not hide the mean."""
    flat = [BandPoint(T, 1.0, 2.0, 3.0)]
    few = terminal_chart([chart(*flat, readings=[Reading(T + 30 * MINUTE, 2.0)])])
    many = terminal_chart([chart(*flat, readings=[Reading(T + i * SECOND, 2.0) for i in range(1000)])])
    assert "•" in "".join(plot_area(few))
    assert "•" not in "".join(plot_area(many))
    assert "━" in "".join(plot_area(many))


@pytest.mark.parametrize("drawn", KINDS.values(), ids=KINDS)
@pytest.mark.slow
def test_png(tmp_path: Path, drawn: Chart) -> None:
    """Every chart becomes a PNG of the expected size, without a warning."""
    path = tmp_path / "band.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_chart([drawn], path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", data[16:24]) == (1350, 630)


def figure_of(monkeypatch: pytest.MonkeyPatch, path: Path, *drawn: Chart) -> Figure:
    """Returns the figure that the PNG was drawn with; the file does not contain it."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    save_chart(drawn, path)
    figures[0].canvas.draw()
    return figures[0]


def axes_of(monkeypatch: pytest.MonkeyPatch, path: Path, drawn: Chart) -> Any:
    return figure_of(monkeypatch, path, drawn).axes[0]


@pytest.mark.parametrize("length", [MINUTE, 10 * MINUTE, HOUR, DAY, 7 * DAY, 365 * DAY])
def test_a_png_has_times_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Wherever the time axis begins, it has at least four labels that do not touch."""
    start = T + 10 * HOUR + 7 * MINUTE + 13 * SECOND
    drawn = chart(readings=[Reading(start, 1.0), Reading(start + length, 2.0)])
    labels = axes_of(monkeypatch, tmp_path / "band.png", drawn).get_xticklabels()
    assert len(labels) >= 4
    boxes = [label.get_window_extent() for label in labels]
    assert all(one.x1 + 5 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("least", "most", "labelled"), [(0.0, 9000.0, "8000"), (4000.0, 10_500.0, "9,000"), (94_000.0, 96_000.0, "94,000")]
)
def test_long_values_are_written_with_commas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, most: float, labelled: str
) -> None:
    """If an axis reaches ten thousand, all its labels have thousands separators, in a PNG and in a terminal."""
    drawn = chart(readings=[Reading(T, least), Reading(T + HOUR, most)])
    axes = axes_of(monkeypatch, tmp_path / "band.png", drawn)
    assert labelled in [label.get_text() for label in axes.get_yticklabels()]
    assert f"{labelled}┤" in terminal_chart([drawn])


def test_steps_end_where_a_window_is_missing() -> None:
    """A line ends with the last window before a gap and starts again with the next window."""
    steps = list(png._interrupted([*band(2), *band(5)[4:]], lambda start_us: start_us + HOUR))
    assert [(step.start_us - T) // HOUR for step in steps] == [0, 1, 2, 2, 4, 5, 5]
    assert [math.isnan(step.mean) for step in steps] == [False, False, False, True, False, False, True]


def test_days_of_a_time_zone() -> None:
    """Days of 23 and 25 hours follow each other without a gap; the legend names the zone. Too many are merged."""
    days = parse_window("1d@Europe/Berlin")
    starts = list(days.starts(*map(parse_time, ("2026-03-27T22:00Z", "2026-04-02"))))
    points = [BandPoint(start_us, 0.0, 1.0, 2.0) for start_us in starts]
    drawn = chart(*points, window_us=24 * HOUR, calendar=days)
    [series] = drawable(drawn, common_span_us([drawn]), max_steps=60).series
    assert series.band == points
    assert common_span_us([drawn]) == (starts[0], days.end_of(starts[-1]))
    assert drawn.by == "1d@Europe/Berlin"
    steps = list(png._interrupted(points, drawn.end_of))
    assert [math.isnan(step.mean) for step in steps] == [False] * (len(points) + 1) + [True]
    merged = drawable(drawn, common_span_us([drawn]), max_steps=3)
    assert (merged.by, merged.calendar, len(merged.series[0].band)) == ("2d", None, 4)


def test_too_many_windows_are_merged() -> None:
    """A step has the extremes of its windows and the mean of their means; a step without windows is left out."""
    drawn = chart(*band(10), *band(30)[20:], requested_us=(T, T + 30 * HOUR))
    merged = drawable(drawn, common_span_us([drawn]), max_steps=6)
    [before], [series] = drawn.series, merged.series
    assert merged.window_us == 5 * HOUR
    assert all(step.start_us % merged.window_us == 0 for step in series.band)
    assert all(later.start_us > earlier.start_us for earlier, later in pairwise(series.band))
    [inner] = [step for step in series.band if step.start_us <= T + 5 * HOUR < step.start_us + 5 * HOUR]
    inside = [point for point in before.band if inner.start_us <= point.start_us < inner.start_us + 5 * HOUR]
    assert inner.minimum == inside[0].minimum
    assert inner.maximum == inside[-1].maximum
    assert inner.mean == sum(point.mean for point in inside) / len(inside)
    assert not [step for step in series.band if T + 10 * HOUR <= step.start_us < T + 15 * HOUR]


@pytest.mark.parametrize(
    ("drawn", "span"),
    [
        (chart(*band(3)), (0, 3 * HOUR)),
        (chart(*band(3), requested_us=(T - HOUR, T + DAY)), (-HOUR, DAY)),
        (chart(*band(1), requested_us=(T, T + 10 * MINUTE)), (0, 10 * MINUTE)),
        (chart(*band(1), requested_us=(T - 1000 * DAY, T + DAY)), (-HOUR // 50, HOUR + HOUR // 50)),
        (chart(readings=[Reading(T, 1.0)]), (-SECOND // 2, SECOND // 2)),
    ],
    ids=["extent of the data", "requested range", "part of a window", "far too long a range", "one instant"],
)
def test_the_time_axis(drawn: Chart, span: tuple[int, int]) -> None:
    """The time axis is the requested range, unless nearly all of that would be empty."""
    assert tuple(end - T for end in common_span_us([drawn])) == span


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("2026-02-17T10:00:00.123456", "2026-02-18T10:00:00.123456", "2026-02-17 10:00 to 2026-02-18 10:00, UTC"),
        ("2026-02-17T10:00:00.25", "2026-02-17T10:00:59.5", "2026-02-17 10:00:00.250 to 2026-02-17 10:00:59.500, UTC"),
    ],
)
def test_captions(start: str, end: str, text: str) -> None:
    """The caption has fractions of a second only if the axis is shorter than a minute."""
    assert charts.span_text(parse_time(start), parse_time(end)) == text


def test_png_path(tmp_path: Path) -> None:
    """A path that cannot be written is rejected."""
    where = PngPath()
    assert where.convert(str(tmp_path / "a.png"), None, None) == tmp_path / "a.png"
    (tmp_path / "folder.png").mkdir()
    for path in (tmp_path / "a.jpg", tmp_path / "nowhere" / "a.png", tmp_path / "folder.png", "-"):
        with pytest.raises(click.BadParameter):
            where.convert(str(path), None, None)


def test_several_series_in_a_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each series has a colour of its own, the same in every chart, and the legend names it once."""
    figure = figure_of(monkeypatch, tmp_path / "several.png", several(3), several(2))
    above, below = figure.axes
    assert [axes.get_title(loc="left") for axes in (above, below)] == ["cellars: temperature"] * 2
    assert above.get_ylabel() == "temperature (°C)"
    assert above.get_xlim() == below.get_xlim()
    [legend] = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["cellar-2", "cellar-1", "cellar-0", "mean of 1h", "minimum to maximum of 1h", "event"]
    shown = dict(zip(names, (patch.get_facecolor() for patch in legend.get_patches()), strict=False))
    means = [to_rgba(line.get_color()) for line in above.lines if line.get_linestyle() == "-"]
    assert means == [shown["cellar-2"], shown["cellar-1"]]
    assert len({*(to_rgba(line.get_color()) for line in above.lines)}) == 3
    assert {to_rgba(line.get_color()) for line in below.lines} == {shown["cellar-1"], shown["cellar-0"]}


def test_several_series_in_a_terminal() -> None:
    """Each series has a mark of its own, which the legend explains; charts are below each other on one time axis."""
    text = terminal_chart([several(3), several(2)])
    first, second = text.split("\n\n")
    assert first.count("mean of 1h") == 2
    for mark, name in (("•", "cellar-2, mean"), ("x", "cellar-1, mean"), ("+", "cellar-0, events")):
        assert f"{mark} {name}" in first
        assert mark in "".join(plot_area(first))
    assert "cellar-2" not in second
    assert max(map(len, text.splitlines())) <= 80
    spans = {line.strip() for line in text.splitlines() if line.endswith("UTC")}
    assert len(spans) == 1


def test_the_limits_of_the_value_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit replaces the end that the data determine; a value outside is not drawn."""
    drawn = chart(*band(24), readings=[Reading(T, 10.0)], limits=(12.0, 20.0))
    axes = axes_of(monkeypatch, tmp_path / "limits.png", drawn)
    assert axes.get_ylim() == (12.0, 20.0)
    [dot] = [line for line in axes.lines if line.get_marker() == "."]
    assert dot.get_clip_on()
    text = terminal_chart([drawn])
    assert "• event" not in text
    assert "19.5┤" in text
    assert "21" not in text
    assert charts.value_axis(chart(*band(24), limits=(None, 20.0)))[0] < 10.0


def test_nothing_within_the_limits() -> None:
    """A chart shows something if a band reaches into the limits, or a reading is within."""
    assert chart(*band(1), limits=(14.0, 15.0)).shows_something()
    assert not chart(*band(1), limits=(15.1, None)).shows_something()
    assert not chart(readings=[Reading(T, 1.0)], limits=(None, 0.9)).shows_something()


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-02-17", "2026-02-18", "02-17 04:00 08:00 12:00 16:00 20:00 02-18"),
        ("2026-02-17T10:05", "2026-02-17T10:15", "10:06 10:08 10:10 10:12 10:14"),
        ("2026-02-17T10:05:00", "2026-02-17T10:05:20", "10:05:00 10:05:05 10:05:10 10:05:15 10:05:20"),
        ("2026-02-17T10:05:00", "2026-02-17T10:05:01", "10:05:00.0 10:05:00.5 10:05:01.0"),
        ("2026-02-17", "2026-02-24", "02-17 02-18 02-19 02-20 02-21 02-22 02-23 02-24"),
        ("2025-12-31", "2026-08-01", "2026-01 2026-03 2026-05 2026-07"),
        ("2024-01-01", "2030-06-01", "2024 2025 2026 2027 2028 2029 2030"),
        ("0001-01-01", "9999-12-31", "1000 2000 3000 4000 5000 6000 7000 8000 9000"),
    ],
)
def test_labels(start, end, labels):
    """A label shows what changes between ticks, and at midnight the new day."""
    assert " ".join(time_ticks(parse_time(start), parse_time(end), 80).values()) == labels


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        ("2026-10-24", "2026-10-28", "10-24 10-25 10-26 10-27 10-28"),
        ("2026-10-25", "2026-10-26", "10-25 04:00 08:00 12:00 16:00 20:00 10-26"),  # 25 hours
        ("2026-10-25T01:00", "2026-10-25T05:00", "01:00 02:00 02:00 03:00 04:00 05:00"),
        ("2026-03-29T01:00", "2026-03-29T05:00", "01:00 01:30 03:00 03:30 04:00 04:30 05:00"),
        ("2025-12-31", "2026-08-01", "2026-01 2026-03 2026-05 2026-07"),
    ],
)
def test_labels_of_a_zone(start, end, labels):
    """Ticks are where the zone's clocks show whole hours, days and months, also after they changed."""
    ends = (parse_time(each, "Europe/Berlin") for each in (start, end))
    assert " ".join(time_ticks(*ends, 80, "Europe/Berlin").values()) == labels


@given(
    start=st.integers(EARLIEST, LATEST - 1_000_000),
    length=st.floats(6, 17.5).map(lambda exponent: int(10**exponent)),
    width=st.integers(60, 200),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns"]),
)
def test_room(start, length, width, zone):
    """Every axis has at least two labels, in order, within the axis, and apart from each other."""
    if zone != "UTC":
        start = max(start, parse_time("1970-01-01"))  # earlier, clocks changed at any second
    end = min(start + length, LATEST - (zone != "UTC") * 86_400_000_000)
    start = min(start, end - 1_000_000)
    ticks = time_ticks(start, end, width, zone)
    assert len(ticks) >= 2
    assert list(ticks) == sorted(ticks)
    assert start <= min(ticks)
    assert max(ticks) <= end
    for (one, label), (next_one, _) in pairwise(ticks.items()):
        assert (next_one - one) / (end - start) * width >= len(label) + 1


def test_a_day_without_midnight():
    """Where clocks skip midnight, the day has a tick at its first instant."""
    start, end = parse_time("2026-04-23", "Africa/Cairo"), parse_time("2026-04-26", "Africa/Cairo")
    ticks = time_ticks(start, end, 80, "Africa/Cairo")
    assert list(ticks.values()) == ["04-23", "12:00", "04-24", "12:00", "04-25", "12:00", "04-26"]
    assert parse_time("2026-04-24T01:00+03:00") in ticks
