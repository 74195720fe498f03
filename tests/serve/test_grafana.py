"""The dashboards for Grafana, with each query sent and read as the Infinity plugin does.

The rules are those of grafana/grafana-infinity-datasource: interpolateQuery in src/interpolate.ts replaces variables in
the URL, in the values of its parameters and in the root selector, not in columns; GetQueryURL in
pkg/infinity/request.go puts the base URL before the path, and encodes the parameters; jsonframer in
grafana/infinity-libs takes selectors as paths, in which a dot goes down.
"""

import json
import re
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
import yaml

from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.schema.toml import parse_schema
from tests.serve.serving import HOUR, MINUTE, START, get, serving, table_of, token_file
from tests.support.rollups import rows_with_rollups
from tests.support.tables import write

FOLDER = Path(__file__).parents[2] / "templates" / "grafana"
DASHBOARDS = {name: json.loads((FOLDER / f"{name}.json").read_text()) for name in ("dashboard", "groups")}
LISTS = {
    (name, each["name"]): each["query"]["infinityQuery"]
    for name, dashboard in DASHBOARDS.items()
    for each in dashboard["templating"]["list"]
    if "refresh" in each
}
PANELS = {
    (name, each["title"]): each["targets"][0] for name, dashboard in DASHBOARDS.items() for each in dashboard["panels"]
}
SCHEMA = """\
latest = "latest"
[tiers]
1h = "hours"
1d = "days"
[rollups]
site = { by = "metadata.site" }
fleet = { by = [], tiers = ["1h"] }
"""
SENSOR, METRIC, SITE = "a+b&c%23=1", "t.max", "Süd/1 & #2"
EVENTS = [
    Event(sensor_id, START + n * 10 * MINUTE, {METRIC: warm + n, "u-1": 0.0}, {"site": site})
    for sensor_id, site, warm in ((SENSOR, SITE, 0.0), ("hall-1", SITE, 0.0), ("roof", "north", 50.0))
    for n in range(24)
] + [Event("old", START - 100 * HOUR, {METRIC: 7.0}, {})]
VARIABLES = {
    "sensor": SENSOR,
    "rollup": "site",
    "group": "S%C3%BCd%2F1%20%26%20%232",
    "metric": METRIC,
    "tier": "1h",
    "__from:date:iso": format_time(START).replace("Z", ".000Z"),  # as Grafana writes times
    "__to:date:iso": format_time(START + 4 * HOUR).replace("Z", ".000Z"),
}
VALUES = {"string": str, "number": (int, float), "timestamp": parse_time}


@pytest.fixture(scope="module")
def server(bigtable, tmp_path_factory):
    path, token = token_file(tmp_path_factory.mktemp("token"))
    table = table_of(EVENTS, SCHEMA)
    write(table, rows_with_rollups(parse_schema(SCHEMA), EVENTS))
    with serving(table, f"--token-file={path}") as at:
        yield at, token


def interpolated(text):
    return re.sub(r"\$\{([^}]+)\}", lambda found: VARIABLES[found[1]], text)


def data_source(address, token):
    """Returns the URL and the headers that the provisioned data source adds."""
    text = (FOLDER / "datasource.yaml").read_text()
    [source] = yaml.safe_load(text.replace("$TIDETABLE_URL", address).replace("$TIDETABLE_TOKEN", token))["datasources"]
    assert source["type"] == "yesoreyeram-infinity-datasource"
    assert source["jsonData"] == {"auth_method": "bearerToken", "allowedHosts": [address]}
    return source["url"], {"Authorization": f"Bearer {source['secureJsonData']['bearerToken']}"}


def frame(server, query):
    """Returns the rows that the plugin makes of an answer: a value for each column."""
    base, headers = data_source(*server)
    url = urlsplit(base + interpolated(query["url"]))
    pairs = parse_qsl(url.query) + [
        (each["key"], interpolated(each["value"])) for each in query["url_options"]["params"]
    ]
    answer = get(url._replace(query=urlencode(sorted(pairs))).geturl(), **headers)
    assert answer.status == 200, answer.body
    assert answer.json.get("next") is None
    rows = selected(answer.json, interpolated(query["root_selector"]))
    return [{each["text"]: value_of(row, each) for each in query["columns"]} for row in rows]


def selected(record, path):
    assert re.fullmatch(r"[a-z_]+(\.[a-z_]+)*", path), "a path with other characters has a meaning of its own"
    for name in path.split("."):
        record = record.get(name)
    return record


def value_of(row, column):
    value = selected(row, column["selector"])
    kind = VALUES[column["type"]]
    assert isinstance(value, kind) if isinstance(kind, (type, tuple)) else kind(value)
    return value


def test_variables_stand_only_where_the_plugin_replaces_them():
    """A variable elsewhere in a query would be sent as it is written."""
    for query in [*PANELS.values(), *LISTS.values()]:
        replaced = {"url": "", "root_selector": "", "url_options": {}, "datasource": {}}
        assert "$" not in json.dumps(query | replaced)
        assert all("$" not in each["key"] for each in query["url_options"]["params"])
        assert "$" not in query["url"]  # a value there would not be encoded
        assert (query["parser"], query["source"], query["type"]) == ("backend", "url", "json")


@pytest.mark.parametrize(
    ("dashboard", "name", "expected"),
    [
        ("dashboard", "sensor", [SENSOR, "hall-1", "old", "roof"]),
        ("dashboard", "metric", [METRIC, "u-1"]),
        ("dashboard", "tier", ["1h", "1d"]),
        ("groups", "rollup", ["site", "fleet"]),
        ("groups", "group", [VARIABLES["group"], "north"]),
        ("groups", "metric", [METRIC, "u-1"]),
        ("groups", "tier", ["1h", "1d"]),
    ],
)
def test_choices_of_a_variable(server, dashboard, name, expected):
    """Sensors, the metrics of one, the table's windows, its roll-ups, and their groups; Grafana shows each once."""
    rows = frame(server, LISTS[dashboard, name])
    values = [row["__value"] if "__value" in row else next(iter(row.values())) for row in rows]
    assert list(dict.fromkeys(values)) == expected


def test_choices_have_texts(server):
    """A group is shown as people write it."""
    assert {row["__text"] for row in frame(server, LISTS["groups", "group"])} == {SITE, "north"}


@pytest.mark.parametrize(("dashboard", "title"), PANELS)
def test_panel(server, dashboard, title):
    """Each query answers with a value in every column, whatever characters the ids and names have."""
    assert frame(server, PANELS[dashboard, title])


def frames(server, dashboard):
    return (frame(server, query) for (of, _), query in PANELS.items() if of == dashboard)


def test_values(server):
    """The values are the sensor's and the metric's."""
    windows, line, newest, silent, events = frames(server, "dashboard")
    assert [(row["avg"], row["min"], row["max"]) for row in windows] == [(2.5 + n, n, 5.0 + n) for n in (0, 6, 12, 18)]
    assert [row["value"] for row in line] == [float(n) for n in range(24)]
    assert {row["sensor_id"]: row["value"] for row in newest} == {
        SENSOR: 23.0,
        "hall-1": 23.0,
        "old": 7.0,
        "roof": 73.0,
    }
    assert silent[0]["sensor_id"] == "old"
    assert [row["value"] for row in events if row["metric"] == METRIC] == [float(n) for n in range(23, -1, -1)]


def test_values_of_groups(server):
    """The values are the group's and the metric's, of all of its sensors; groups are ranked."""
    windows, contributed, groups, sensors = frames(server, "groups")
    assert [(row["avg"], row["min"], row["max"]) for row in windows] == [(2.5 + n, n, 5.0 + n) for n in (0, 6, 12, 18)]
    assert [row["sensors"] for row in contributed] == [2] * 4
    assert [(row["label"], row["sensors"], row["avg"]) for row in groups] == [("north", 1, 61.5), (SITE, 2, 11.5)]
    assert [row["sensor_id"] for row in sensors] == [SENSOR, "hall-1"]


def test_dashboards_lead_to_each_other():
    """Grafana lists the dashboards with a tag that a link names, except the one that has it."""
    for dashboard in DASHBOARDS.values():
        [link] = dashboard["links"]
        assert all(set(link["tags"]) <= set(each["tags"]) for each in DASHBOARDS.values())
    assert len({each["uid"] for each in DASHBOARDS.values()}) == 2
