"""The dashboard for Grafana, with each query sent and read as the Infinity plugin does.

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
from tests.serve.serving import HOUR, MINUTE, START, get, serving, table_of, token_file

FOLDER = Path(__file__).parents[2] / "templates" / "grafana"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
LISTS = {each["name"]: each["query"]["infinityQuery"] for each in DASHBOARD["templating"]["list"] if "refresh" in each}
PANELS = {each["title"]: each["targets"][0] for each in DASHBOARD["panels"]}
SENSOR, METRIC = "a+b&c%23=1", "t.max"
EVENTS = [
    Event(sensor_id, START + n * 10 * MINUTE, {METRIC: float(n), "u-1": 0.0}, {})
    for sensor_id in (SENSOR, "hall-1")
    for n in range(24)
] + [Event("old", START - 100 * HOUR, {METRIC: 7.0}, {})]
VARIABLES = {
    "sensor": SENSOR,
    "metric": METRIC,
    "tier": "1h",
    "__from:date:iso": format_time(START).replace("Z", ".000Z"),  # as Grafana writes times
    "__to:date:iso": format_time(START + 4 * HOUR).replace("Z", ".000Z"),
}
VALUES = {"string": str, "number": (int, float), "timestamp": parse_time}


@pytest.fixture(scope="module")
def server(bigtable, tmp_path_factory):
    path, token = token_file(tmp_path_factory.mktemp("token"))
    with serving(
        table_of(EVENTS, 'latest = "latest"\n[tiers]\n1h = "hours"\n1d = "days"\n'), f"--token-file={path}"
    ) as at:
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
    ("name", "expected"), [("sensor", [SENSOR, "hall-1", "old"]), ("metric", [METRIC, "u-1"]), ("tier", ["1h", "1d"])]
)
def test_choices_of_a_variable(server, name, expected):
    """Sensors, the metrics of one, and the table's windows."""
    assert [next(iter(row.values())) for row in frame(server, LISTS[name])] == expected


@pytest.mark.parametrize("title", PANELS)
def test_panel(server, title):
    """Each query answers with a value in every column, whatever characters the ids and names have."""
    assert frame(server, PANELS[title])


def test_values(server):
    """The values are the sensor's and the metric's."""
    windows, line, newest, silent, events = (frame(server, query) for query in PANELS.values())
    assert [(row["avg"], row["min"], row["max"]) for row in windows] == [(2.5 + n, n, 5.0 + n) for n in (0, 6, 12, 18)]
    assert [row["value"] for row in line] == [float(n) for n in range(24)]
    assert {row["sensor_id"]: row["value"] for row in newest} == {SENSOR: 23.0, "hall-1": 23.0, "old": 7.0}
    assert silent[0]["sensor_id"] == "old"
    assert [row["value"] for row in events if row["metric"] == METRIC] == [float(n) for n in range(23, -1, -1)]
