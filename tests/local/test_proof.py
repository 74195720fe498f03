"""The comparison accepts the right table and finds every kind of difference."""

import pytest

from pipeline.core.events.message import sensor_event
from pipeline.local.proof import Expectation

T = 1_771_324_200_000_000  # 2026-02-17T10:30
KEY = "a#8228675799999999"
HOUR = "agg#hourly#a#2026-02-17T10"
EVENTS = [
    sensor_event("a", T, {"t": 20.0}, {"place": "roof"}),
    sensor_event("a", T + 1, {"t": 23.0, "u": 0.5}, {}),
]


@pytest.fixture
def table():
    """The right table, written by hand."""
    return {
        KEY: {"raw:t": "20", "meta:place": "roof"},
        "a#8228675799999998": {"raw:t": "23", "raw:u": "0.5"},
        HOUR: {
            "stats:reading_count": "2",
            "stats:count_t": "2",
            "stats:sum_t": "43",
            "stats:min_t": "20",
            "stats:max_t": "23",
            "stats:avg_t": "21.5",
            "stats:stddev_t": "1.5",
            "stats:count_u": "1",
            "stats:sum_u": "0.5",
            "stats:min_u": "0.5",
            "stats:max_u": "0.5",
            "stats:avg_u": "0.5",
            "stats:stddev_u": "0",
        },
    }


def test_accepts_the_right_table(table):
    """The right table has no difference and is complete."""
    expectation = Expectation(EVENTS)
    assert expectation.is_complete(table)
    assert list(expectation.differences(table)) == []


def test_tolerates_the_order_of_addition(table):
    """A sum, mean or deviation may differ by 1e-9 · Σ|x|, no more; a count, minimum or maximum not at all."""
    table[HOUR]["stats:sum_t"] = repr(43 + 40e-9)
    assert list(Expectation(EVENTS).differences(table)) == []
    table[HOUR]["stats:sum_t"] = repr(43 + 50e-9)
    assert len(list(Expectation(EVENTS).differences(table))) == 1
    table[HOUR]["stats:sum_t"] = "43"
    table[HOUR]["stats:min_t"] = repr(20 + 1e-12)
    assert len(list(Expectation(EVENTS).differences(table))) == 1


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        (KEY, "raw:t", "20.1"),
        (KEY, "raw:t", None),
        (KEY, "raw:extra", "1"),
        (KEY, "meta:place", "cellar"),
        (HOUR, "stats:reading_count", "3"),
        (HOUR, "stats:stddev_t", "nan"),
        (HOUR, "stats:avg_u", None),
        (HOUR, "stats:count_extra", "1"),
    ],
)
def test_finds_a_wrong_cell(table, row, column, value):
    """A wrong, missing or extra cell is one difference that names the cell."""
    if value is None:
        del table[row][column]
    else:
        table[row][column] = value
    (difference,) = Expectation(EVENTS).differences(table)
    assert difference.startswith(f"{row} {column}: ")


def test_finds_missing_and_extra_rows(table):
    """A missing row is a difference in each of its cells; an extra row is one difference."""
    del table[KEY]
    table["b#8228675799999999"] = {"raw:t": "1"}
    expectation = Expectation(EVENTS)
    assert not expectation.is_complete(table)
    differences = list(expectation.differences(table))
    assert "b#8228675799999999: not published" in differences
    assert len(differences) == 3


def test_not_complete_while_a_window_is_behind(table):
    """A table is incomplete until every aggregate has counted all its events."""
    table[HOUR]["stats:reading_count"] = "1"
    assert not Expectation(EVENTS).is_complete(table)


def test_newest_readings(table):
    """A table with rows of newest readings needs one for each sensor; any reading of the last millisecond may be it."""
    later = sensor_event("a", T + 999, {"t": 24.0}, {})
    table["a#8228675799999000"] = {"raw:t": "24"}
    table[HOUR] |= {"stats:reading_count": "3", "stats:count_t": "3", "stats:sum_t": "67", "stats:max_t": "24"}
    table[HOUR] |= {"stats:avg_t": repr(67 / 3), "stats:stddev_t": repr((26 / 9) ** 0.5)}
    expectation = Expectation([*EVENTS, later], newest=True)
    assert not expectation.is_complete(table)
    assert list(expectation.differences(table)) == [
        "latest#a latest:t: None, published 20.0 or 23.0 or 24.0",
        "latest#a latest:u: None, published 0.5",
    ]
    table["latest#a"] = {"latest:t": "23", "latest:u": "0.5"}
    assert expectation.is_complete(table)
    assert list(expectation.differences(table)) == []
    table["latest#a"]["latest:t"] = "19"
    assert list(expectation.differences(table)) == ["latest#a latest:t: 19, published 20.0 or 23.0 or 24.0"]
    assert len(list(Expectation([*EVENTS, later]).differences(table))) == 1


def test_roll_ups(table):
    """A group's row is computed from all values of the sensors whose newest events name it."""
    rollups = {"site": ["place"], "fleet": []}
    events = [*EVENTS, sensor_event("b", T, {"t": 29.0}, {"place": "roof/2"})]
    table |= {
        "b#8228675799999999": {"raw:t": "29", "meta:place": "roof/2"},
        HOUR.replace("#a#", "#b#"): {
            "stats:reading_count": "1",
            "stats:member": f'[{T},{{"place":"roof/2"}}]',
            **{f"stats:{name}_t": "29" for name in ("sum", "min", "max", "avg")},
            "stats:count_t": "1",
            "stats:stddev_t": "0",
        },
    }
    of_roof = {column.replace("stats", "rollup"): value for column, value in table[HOUR.replace("#a#", "#b#")].items()}
    of_roof["rollup:sensors"] = "1"
    del of_roof["rollup:member"]
    table[HOUR]["stats:member"] = f"[{T + 1},{{}}]"
    table["rollup#hourly#site#roof%2F2#2026-02-17T10"] = of_roof
    table["rollup#hourly#fleet#all#2026-02-17T10"] = {
        "rollup:sensors": "2",
        "rollup:reading_count": "3",
        "rollup:count_t": "3",
        "rollup:sum_t": "72",
        "rollup:min_t": "20",
        "rollup:max_t": "29",
        "rollup:avg_t": "24",
        "rollup:stddev_t": str(14**0.5),
        **{f"rollup:{name}_u": "0.5" for name in ("sum", "min", "max", "avg")},
        "rollup:count_u": "1",
        "rollup:stddev_u": "0",
    }
    expectation = Expectation(events, rollups=rollups)
    assert expectation.is_complete(table)
    assert list(expectation.differences(table)) == []
    of_roof["rollup:avg_t"] = "28"
    assert len(list(expectation.differences(table))) == 1
    table[HOUR]["stats:member"] = f'[{T},{{"place":"roof"}}]'
    assert len(list(expectation.differences(table))) == 2
