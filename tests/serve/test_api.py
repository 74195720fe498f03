"""The API, asked over HTTP."""

import io
import time
from datetime import timedelta
from urllib.parse import quote

import pyarrow
import pytest

from pipeline.cloud.reading.reader import SensorTable
from pipeline.cloud.tables.retention_notes import record_added_tiers, record_job
from pipeline.core.events.event import LATEST_US, Event
from pipeline.core.notation.times import format_time
from pipeline.serve.parameters import as_range
from tests.serve.serving import EVENTS, HOUR, MINUTE, START, get, serving, table_of

ARROW = "application/vnd.apache.arrow.stream"

RANGE = f"start={format_time(START)}&end={format_time(START + 4 * HOUR)}"

LOCATED = [
    "{metadata.site}#{sensor_id}#{reverse_us}",
    "{sensor_id}#{metadata.site}#{iso_us}",
    "{metadata.site}#{iso_us}#{sensor_id}",
]


@pytest.fixture(scope="module")
def table(bigtable):
    return table_of(EVENTS)


@pytest.fixture(scope="module")
def api(table):
    with serving(table) as address:
        yield f"{address}/api/v1"


def pages(address, name, root):
    """Returns all records of a list, and the number of pages."""
    found, count = [], 0
    while address:
        answer = get(address)
        assert answer.status == 200, answer.body
        found += answer.json[name]
        count += 1
        assert ("link" in answer.headers) == bool(answer.json["next"])
        address = answer.json["next"] and root.removesuffix("/api/v1") + answer.json["next"]
    return found, count


def test_schema(api, table):
    """The schema is the table's, with its tiers in seconds."""
    found = get(f"{api}/schema").json
    assert (found["table"], found["latest"], found["metadata_in_keys"]) == (table.table, True, [])
    assert found["tiers"] == [{"window": "1h", "zone": "UTC", "seconds": 3600.0}]
    assert found["declared"]["key"] == "{sensor_id}#{reverse_us}"


def test_sensors(api):
    """Sensors come in pages, and can be searched."""
    everything = sorted({event.sensor_id for event in EVENTS})
    assert pages(f"{api}/sensors", "sensors", api) == (everything, 1)
    assert pages(f"{api}/sensors?limit=1", "sensors", api) == (everything, 4)
    assert get(f"{api}/sensors?prefix=hall").json["sensors"] == ["hall-1", "hall-2"]
    assert get(f"{api}/sensors?search=OO").json["sensors"] == ["Roof&e=1"]


def test_latest(api):
    """Newest readings come in pages with their age, and silent sensors can be asked for."""
    found, count = pages(f"{api}/latest?limit=2", "sensors", api)
    assert count == 2
    assert [each["sensor_id"] for each in found] == sorted({event.sensor_id for event in EVENTS})
    roof = found[0]
    assert (roof["readings"], roof["event_time"]) == ({"t": 23.0, "u": -1.0}, format_time(START + 230 * MINUTE))
    assert roof["age_s"] == pytest.approx((time.time_ns() // 1000 - START - 230 * MINUTE) / 1e6, abs=60)
    assert [each["sensor_id"] for each in get(f"{api}/latest?silent_for=1d").json["sensors"]] == ["old"]
    assert "old" not in [each["sensor_id"] for each in get(f"{api}/latest?metric=u").json["sensors"]]


def test_the_number_of_silent_sensors(api):
    """An answer about silent sensors has the number of all, however many it shows."""
    found = get(f"{api}/latest?silent_for=1s&limit=1").json
    assert (len(found["sensors"]), found["count"], found["more"]) == (1, 4, True)
    assert get(f"{api}/latest?silent_for=1s&search=HALL&limit=1").json["count"] == 2
    assert get(f"{api}/latest?silent_for=1s&metric=u").json["count"] == 3
    assert get(f"{api}/latest?silent_for=1d&metric=u").json["count"] == 0
    assert "count" not in get(f"{api}/latest").json


def test_a_search_tells_how_far_it_came(api):
    """An answer to a search has the last sensor that it looked at, until it has looked at all; others have none."""
    for path in ("sensors", "latest"):
        first = get(f"{api}/{path}?search=hall&limit=1").json
        assert first["searched_to"] == "hall-1"
        second = get(f"{api}/{path}?search=hall&limit=1&after=hall-1").json
        assert (second["searched_to"], len(second["sensors"])) == ("hall-2", 1)
        assert get(f"{api}/{path}?search=hall").json["searched_to"] is None
        assert "searched_to" not in get(f"{api}/{path}?prefix=hall").json


@pytest.mark.parametrize(
    "path", ["schema", "sensors", "latest", "alerts", "metrics", "places", "range", "aggregates", "points"]
)
def test_unknown_parameters(api, path):
    """A parameter that an address does not have is refused by name, whatever else is wrong with the request."""
    answer = get(f"{api}/{path}?metrics_=t")
    assert answer.status == 400
    assert answer.json["error"].startswith(f"there is no parameter 'metrics_'; /api/v1/{path} takes ")


def test_metrics(api):
    """A sensor's metrics are those of its newest readings."""
    assert get(f"{api}/metrics?sensor=hall-1").json["metrics"] == ["t", "u"]
    assert get(f"{api}/metrics?sensor=hall").json["metrics"] == []


def test_metrics_without_rows_of_newest_readings(bigtable):
    """Without rows of newest readings, the sensors' own rows answer."""
    with serving(table_of(EVENTS, "")) as address:
        assert get(f"{address}/api/v1/metrics?sensor=hall-1").json["metrics"] == ["t", "u"]
        assert len(get(f"{address}/api/v1/latest").json["sensors"]) == 4


def test_range(api):
    """Events come in pages, the newest first."""
    found, count = pages(f"{api}/range?sensor=hall-1&{RANGE}&limit=7", "events", api)
    assert count == 4
    assert [each["readings"]["t"] for each in found] == [float(n) for n in range(23, -1, -1)]
    assert found[0]["metadata"] == {"site": "<b>north</b>"}
    one = get(f"{api}/range?sensor=hall-1&{RANGE}&limit=1").json
    assert one["rows_read"] == 2  # not a page of a thousand
    odd = get(f"{api}/range?sensor={quote('Roof&e=1')}&{RANGE}&metric=u").json["events"]
    assert len(odd) == 24
    assert odd[0] == {
        "sensor_id": "Roof&e=1",
        "event_time": format_time(START + 230 * MINUTE),
        "readings": {"u": -1.0},
        "metadata": {},
    }


def test_events_of_the_same_time_are_not_torn_apart(api):
    """A page ends with all events of its last moment, so that none is lost between two pages."""
    found, count = pages(f"{api}/range?sensor=hall-1&sensor=hall-2&{RANGE}&limit=5", "events", api)
    assert (len(found), count) == (48, 8)


def schema_metadata(address):
    return pyarrow.ipc.open_stream(io.BytesIO(get(address).body)).schema.metadata


def test_aggregates(api):
    """Windows come in pages, with the requested metrics."""
    found, count = pages(f"{api}/aggregates?sensor=hall-1&{RANGE}&limit=3&metric=t", "aggregates", api)
    assert (count, [each["window_start"] for each in found]) == (2, [format_time(START + n * HOUR) for n in range(4)])
    assert found[0]["metrics"] == {
        "t": {"count": 6, "sum": 15.0, "min": 0.0, "max": 5.0, "avg": 2.5, "stddev": pytest.approx(1.7078, abs=1e-4)}
    }


def test_windows_that_lack_data(api):
    """Metrics with too few readings are left out, on every page; a share of readings needs a rate."""
    asked = f"{api}/aggregates?sensor=hall-1&{RANGE}&limit=4&fill=null&min_count="
    assert [[each.get("filled") for each in get(f"{asked}{n}").json["aggregates"]] for n in (6, 7)] == [
        [None] * 4,
        [True] * 4,
    ]
    answer = get(f"{asked}6&min_coverage=0.5")
    assert (answer.status, "the table's schema has no [rate]" in answer.json["error"]) == (400, True)


def test_windows_of_several_sensors_are_read_once(api):
    """Their rows are read ahead, in threads, as soon as they are asked for."""
    answer = get(f"{api}/aggregates?sensor=hall-1&sensor=hall-2&{RANGE}").json
    assert (answer["rows_read"], len(answer["aggregates"])) == (8, 8)


def test_flat(api):
    """A row has one metric of one sensor and time, under names that are the same for all metrics."""
    start = format_time(START)
    event = get(f"{api}/range?sensor=hall-1&{RANGE}&format=flat").json["rows"][-2:]
    assert event == [
        {"time": start, "sensor_id": "hall-1", "metric": metric, "value": value}
        for metric, value in (("t", 0), ("u", -1))
    ]
    windows = get(f"{api}/aggregates?sensor=hall-1&{RANGE}&metric=t&format=flat").json["rows"]
    assert len(windows) == 4
    assert windows[0].items() >= {"time": start, "metric": "t", "window": "1h", "count": 6, "avg": 2.5}.items()
    before = (
        f"{api}/aggregates?sensor=hall-1&metric=t&start={format_time(START - HOUR)}&end={start}&fill=null&format=flat"
    )
    [gap] = get(before).json["rows"]
    assert (gap["metric"], gap["filled"], "avg" in gap) == ("t", True, False)
    newest = get(f"{api}/latest?prefix=hall-1&metric=t&format=flat").json["rows"][0]
    assert newest.keys() == {"time", "sensor_id", "metric", "value", "age_s"}
    points = get(f"{api}/points?sensor=hall-1&{RANGE}&metric=t&format=flat").json
    assert (points["exact"], points["rows"][0]) == (True, event[0])


def test_gaps_and_open_windows(api):
    """Gaps are filled and open windows computed if asked for; gaps come on one page or not at all."""
    gaps = f"{api}/aggregates?sensor=hall-1&start={format_time(START - 2 * HOUR)}&end={format_time(START + 2 * HOUR)}"
    found = get(f"{gaps}&fill=null").json["aggregates"]
    assert [(each["reading_count"], each.get("filled")) for each in found] == [(0, True)] * 2 + [(6, None)] * 2
    refused = get(f"{gaps}&fill=null&limit=3")
    assert refused.status == 400
    assert (
        "more than 3 windows of 1h, too many to fill their gaps; choose a shorter range, or longer"
        in refused.json["error"]
    )
    assert get(f"{gaps}&fill=linear&fresh=true").status == 200


def test_points(api):
    """The points of a line come from raw rows or windows, at most as many as asked for."""
    found = get(f"{api}/points?sensor=hall-1&metric=t&{RANGE}").json
    assert (found["source"], found["exact"], len(found["points"])) == ("raw", True, 24)
    assert found["points"][0] == {"time": format_time(START), "value": 0.0}
    assert len(get(f"{api}/points?sensor=hall-1&metric=t&{RANGE}&max_points=8").json["points"]) <= 8


@pytest.mark.parametrize(
    ("query", "columns", "rows"),
    [
        ("sensors?prefix=hall", ["sensor_id"], 2),
        ("latest?prefix=hall", ["sensor_id", "metric", "event_time", "value"], 4),
        (f"range?sensor=hall-1&metric=t&{RANGE}", ["sensor_id", "event_time", "t"], 24),
        (f"points?sensor=hall-1&metric=t&{RANGE}", ["time", "value"], 24),
    ],
)
def test_arrow(api, query, columns, rows):
    """By the header, or by a parameter."""
    for answer in (get(f"{api}/{query}", accept=ARROW), get(f"{api}/{query}&format=arrow")):
        assert answer.headers["content-type"] == ARROW
        table = pyarrow.ipc.open_stream(io.BytesIO(answer.body)).read_all()
        assert (table.column_names, table.num_rows) == (columns, rows)


def test_arrow_pages(api):
    """Pages of Arrow link to the next one in a header."""
    answer = get(f"{api}/aggregates?sensor=hall-1&{RANGE}&limit=3&format=arrow")
    assert pyarrow.ipc.open_stream(io.BytesIO(answer.body)).read_all().num_rows == 3
    assert 'rel="next"' in answer.headers["link"]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("range", "sensor: Field required"),
        ("range?sensor=a%23b", "'a#b' can't be a sensor's id"),
        ("range?" + "&".join(f"sensor=s{n}" for n in range(51)), "sensor: List should have at most 50 items"),
        ("range?sensor=a&start=tomorrow", "'tomorrow' is not a time"),
        ("range?sensor=a&start=now&end=-1d", "the range is empty"),
        ("range?sensor=a&limit=10001", "limit: Input should be less than or equal to 10000"),
        ("aggregates?sensor=a&tier=5m", "the table has no aggregates of 5m; its tiers: 1h"),
        ("aggregates?sensor=a&fill=spline", "fill: Input should be 'none', 'null', 'previous' or 'linear'"),
        ("points?sensor=a", "metric: Field required"),
        ("points?sensor=a&metric=t&max_points=3", "max_points: Input should be greater than or equal to 4"),
        ("alerts?end=now", "end needs start: without a range, the answer is what fires now"),
        ("latest?search=" + "x" * 301, "search: String should have at most 300 characters"),
    ],
)
def test_what_has_no_answer(api, query, error):
    """A bad query is refused in one line."""
    answer = get(f"{api}/{query}")
    assert answer.status == 400
    assert error in answer.json["error"]
    assert "\n" not in answer.json["error"]


def test_other_paths(api):
    """Any other path is not found, in JSON."""
    assert (get(f"{api}/nothing").status, get(f"{api}/nothing").json) == (404, {"error": "Not Found"})


def test_the_documentation_page_works_without_a_network(api):
    """The page of the API's documentation loads nothing from other hosts."""
    root = api.removesuffix("/v1")
    page = get(f"{root}/docs").body.decode()
    assert "http://" not in page
    assert "https://" not in page
    for address in ("docs/static/swagger-ui-bundle.js", "docs/static/swagger-ui.css", "docs/openapi.json"):
        assert address in page or "openapi" in address
        assert get(f"{root}/{address}").status == 200
    paths = get(f"{root}/docs/openapi.json").json["paths"]
    assert sorted(paths) == [
        f"/api/v1/{name}"
        for name in (
            *("aggregates", "alerts", "latest", "metrics", "places", "points", "range"),
            *(
                "rollups",
                "rollups/groups",
                "rollups/of",
                "rollups/sensors",
                "rollups/windows",
                "rules",
                "schema",
                "sensors",
            ),
        )
    ]
    assert all(list(methods) == ["get"] for methods in paths.values())
    assert all(len(methods["get"]["summary"].split()) > 2 for methods in paths.values())


def test_units_and_labels(bigtable):
    """They stand beside the records whose metrics have them; in Arrow, with the columns."""
    text = 'latest = "latest"\n[metrics.t]\nunit = "µg/m³"\nlabel = "Dust"\n[metrics.other]\nunit = "V"\n'
    facts = {"units": {"t": "µg/m³"}, "labels": {"t": "Dust"}}
    with serving(table_of(EVENTS, text + "[rollups]\nfleet = { by = [] }\n")) as address:
        root = f"{address}/api/v1"
        assert (
            get(f"{root}/schema").json.items()
            >= {"labels": {"t": "Dust"}, "units": {"t": "µg/m³", "other": "V"}}.items()
        )
        for path in (
            "latest",
            "metrics?sensor=old",
            "range?sensor=old&start=2020-01-01",
            f"aggregates?sensor=hall-1&{RANGE}",
        ):
            assert get(f"{root}/{path}").json.items() >= facts.items(), path
        point = get(f"{root}/points?sensor=hall-1&metric=t&{RANGE}").json
        assert (point["unit"], point["label"]) == ("µg/m³", "Dust")
        assert get(f"{root}/rollups/windows?rollup=fleet&{RANGE}").json["units"] == {}
        table = pyarrow.ipc.open_stream(get(f"{root}/aggregates?sensor=hall-1&{RANGE}&format=arrow").body).read_all()
        assert table.schema.field("avg_t").metadata[b"unit"].decode() == "µg/m³"
        table = pyarrow.ipc.open_stream(get(f"{root}/latest?format=arrow").body).read_all()
        assert {(row["metric"], row["unit"], row["label"]) for row in table.to_pylist()} == {
            ("t", "µg/m³", "Dust"), ("u", None, None),
        }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "",
        'key = "{salt:4}#{sensor_id}#{reverse_us}"',
        'key = "{salt:4}#{sensor_id}#{reverse_us}"\ntiers = {}',
        'key = "{iso_us}#{sensor_id}"',
        'key = "{sensor_id}#{metric}#{reverse_us}"\nlayout = "tall"',
    ],
)
def test_sensors_behind_another(bigtable, text):
    """Without rows of newest readings, in every order of keys."""
    sensors = ["a", "a!", "a-1", "ab", "b"]
    name = table_of([Event(sensor, START + n * MINUTE, {"t": 1.0}, {}) for sensor in sensors for n in range(3)], text)
    with SensorTable.open(name.project, name.instance, name.table) as table:
        every = list(table.sensors())
        assert sorted(every) == sorted(sensors)
        for place, sensor in enumerate(every):
            assert list(table.sensors(after=sensor)) == every[place + 1 :]
            assert [each.sensor_id for each in table.latest_readings(after=sensor)] == every[place + 1 :]
            assert list(table.heard_sensors(after=sensor)) == every[place + 1 :]
        silent = [each.sensor_id for each in table.silent(timedelta(0), "a")]
        assert sorted(silent) == sorted(sensor for sensor in sensors if sensor.startswith("a"))
        assert [each.sensor_id for each in table.latest_readings_of(["b", "nobody", "a!"])] == ["b", "a!"]


@pytest.mark.parametrize("key", LOCATED)
def test_places(bigtable, key):
    """They find the events of a sensor that moved, and only its own."""
    sites = [("a", "north"), ("a", "south"), ("ab", "west")]
    name = table_of((Event(sensor, START, {"t": 1.0}, {"site": site}) for sensor, site in sites), f'key = "{key}"')
    with serving(name) as address:
        api = f"{address}/api/v1"
        assert get(f"{api}/schema").json["metadata_in_keys"] == ["site"]
        for sensor, expected in (("a", ["north", "south"]), ("ab", ["west"]), ("b", [])):
            assert get(f"{api}/places?sensor={sensor}").json["places"] == [{"site": site} for site in expected]
        assert get(f"{api}/places?sensor=a%23").status == 400


@pytest.mark.parametrize("key", LOCATED)
def test_newest_readings_of_sensors_that_metadata_locates(bigtable, key):
    """Without rows of newest readings; a sensor that moved says what it said last."""
    sites = {"a": ["north", "south"], "ab": ["north"], "b": ["west"]}
    events = [
        Event(sensor, START + n * MINUTE, {"t": float(n)}, {"site": site})
        for sensor, of_sensor in sites.items()
        for n, site in enumerate(of_sensor)
    ]
    name = table_of(events, f'key = "{key}"')
    with SensorTable.open(name.project, name.instance, name.table) as table:
        found = {each.sensor_id: each.readings["t"].value for each in table.latest_readings()}
        assert found == {"a": 1.0, "ab": 0.0, "b": 0.0}
        assert [each.sensor_id for each in table.latest_readings("a", limit=1)] == ["a"]


def test_what_may_be_missing(bigtable):
    """Answers tell from when on a tier has rows, if it was added to the table later."""
    name = table_of(EVENTS, '[tiers]\n1m = "minutes"\n1h = "stats"\n')
    record_added_tiers(name, ["minutes"])
    record_job(name, START + HOUR)
    with serving(name) as address:
        asked = f"{address}/api/v1/aggregates?sensor=hall-1&{RANGE}"
        added = format_time(START + HOUR)
        assert get(f"{asked}&tier=1m").json["incomplete_before"] == added
        assert get(f"{asked}&tier=1h").json["incomplete_before"] is None
        assert schema_metadata(f"{asked}&tier=1m&format=arrow") == {
            b"incomplete_before": added.encode(),
            b"time_zone": b"UTC",
        }
        points = f"{address}/api/v1/points?sensor=hall-1&{RANGE}&metric=t"
        assert get(points).json["incomplete_before"] is None
        assert schema_metadata(f"{points}&format=arrow")[b"exact"] == b"True"


def test_a_range_beyond_all_row_keys():
    """It is limited to them: months before the year 1, or after 9999, can't be counted."""
    assert as_range("0001-01-01", "9999-12-31T23:59:59Z") == (0, LATEST_US + 1)
