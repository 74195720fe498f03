"""Alerts and their rules, as the API answers and as the page shows them."""

import io
import re
from urllib.parse import quote

import pyarrow
import pytest
from playwright.sync_api import expect

from pipeline.cloud.tables.alert_store import add_families, write_rules_text
from pipeline.core.alerts.alert_rows import alert_row
from pipeline.core.alerts.rules import parse_rules
from pipeline.core.notation.times import format_time
from pipeline.core.schema.toml import parse_schema
from tests.serve.browsing import opened, violations
from tests.serve.serving import EVENTS, MINUTE, NOW, SCHEMA, get, serving, table_of
from tests.support.alerts import in_order
from tests.support.rows import decoded
from tests.support.tables import write

UNITS = SCHEMA + '[metrics.t]\nunit = "µg/m³"\nlabel = "Dust"\n'
RULES = """
[[rule]]
name = "warm"
metric = "t"
above = 10
severity = "page"
[[rule]]
name = "loud"
sensors = "Roof*"
metric = "u"
above = 0
[[rule]]
name = "hot"
sensors = "hall-*"
metadata = { site = "<b>north</b>" }
metric = "t"
outside = [-2, 1000]
[[rule]]
name = "cellar"
metadata = { site = "cellar" }
metric = "t"
above = 11
[[rule]]
name = "mean"
metric = "t"
of = "avg"
tier = "1h"
above = 20
[[rule]]
name = "steep"
metric = "t"
rate_of_change = "minute"
above = 12
[[rule]]
name = "stuck"
metric = "t"
unchanged_for = "1h"
[[rule]]
name = "silent"
silent_for = "1h"
"""
WARM, LOUD = parse_rules(RULES, "", parse_schema(UNITS))[:2]


@pytest.fixture(scope="module")
def address(bigtable):
    """A table with an alert that fires, one that resolved, and two of one sensor."""
    table = table_of(EVENTS, UNITS)
    add_families(table, parse_schema(UNITS))
    write_rules_text(table, RULES)
    for rule, sensor, values in (
        (WARM, "hall-1", (11.5, 12)),
        (WARM, "hall-2", (11.5, 9)),
        (WARM, "Roof&e=1", (9, 20.25)),
        (LOUD, "Roof&e=1", (3,)),
    ):
        found = in_order(rule, {NOW - (60 - minutes) * MINUTE: each for minutes, each in enumerate(values)})
        write(table, [decoded(alert_row(rule, sensor, found))])
    with serving(table) as found:
        yield found


def test_what_fires_now(address):
    """The newest first, with the number of all, and in each form."""
    found = get(f"{address}/api/v1/alerts").json
    assert [(each["rule"], each["sensor_id"]) for each in found["alerts"]] == [
        ("warm", "Roof&e=1"),
        ("loud", "Roof&e=1"),
        ("warm", "hall-1"),
    ]
    first = found["alerts"][0]
    assert 59 * 60 <= first.pop("age_s") < 24 * 3600  # it fired an hour before the tests began
    assert first == {
        "rule": "warm",
        "sensor_id": "Roof&e=1",
        "kind": "firing",
        "event_time": format_time(NOW - 59 * MINUTE),
        "since": format_time(NOW - 59 * MINUTE),
        "value": 20.25,
        "unit": "µg/m³",
        "label": "Dust",
        "severity": "page",
    }
    assert (found["count"], found["more"], found["foreign_rows"]) == (3, False, 0)
    few = get(f"{address}/api/v1/alerts?limit=1&prefix=Roof").json
    assert (len(few["alerts"]), few["count"], few["more"]) == (1, 2, True)
    assert len(get(f"{address}/api/v1/alerts?rule=loud&format=flat").json["rows"]) == 1
    table = pyarrow.ipc.open_stream(io.BytesIO(get(f"{address}/api/v1/alerts?format=arrow").body)).read_all()
    assert table.column("value").to_pylist() == [20.25, 3, 11.5]
    assert table.schema.field("since").type == pyarrow.timestamp("us", tz="UTC")


def test_what_fired(address):
    """A range of time has the transitions in it, the newest first."""
    found = get(f"{address}/api/v1/alerts?start=-1d&prefix=hall").json
    assert [(each["sensor_id"], each["kind"]) for each in found["alerts"]] == [
        ("hall-2", "resolved"),
        ("hall-2", "firing"),
        ("hall-1", "firing"),
    ]
    end = quote(format_time(NOW - 59 * MINUTE))
    assert get(f"{address}/api/v1/alerts?start=-1d&end={end}&prefix=hall").json["count"] == 2


def test_alerts_of_one_sensor(address):
    """They are found without reading those of others."""
    found = get(f"{address}/api/v1/alerts?sensor=hall-1").json
    assert [each["rule"] for each in found["alerts"]] == ["warm"]
    assert found["rows_read"] <= 2  # the rules, and the alert
    assert get(f"{address}/api/v1/alerts?sensor=hall-2&start=-1d").json["count"] == 2
    assert get(f"{address}/api/v1/alerts?sensor=a%23").status == 400


def test_rules(address):
    """The rules of a sensor are those whose globs match it, each with its limits and their unit."""
    found = {each["rule"]: each for each in get(f"{address}/api/v1/rules?sensor=hall-1").json["rules"]}
    assert list(found) == ["warm", "hot", "cellar", "mean", "steep", "stuck", "silent"]
    assert found["hot"] == {
        "rule": "hot",
        "condition": "t outside -2 to 1000",
        "severity": "warning",
        "metric": "t",
        "of": None,
        "tier": None,
        "kind": "outside",
        "low": -2,
        "high": 1000,
        "per_s": None,
        "unit": "µg/m³",
        "label": "Dust",
        "metadata": {"site": "<b>north</b>"},
    }
    assert (found["mean"]["of"], found["mean"]["tier"], found["silent"]["low"]) == ("avg", "1h", None)
    assert (found["steep"]["per_s"], found["steep"]["unit"], found["stuck"]["low"]) == (60, "µg/m³/min", None)
    table = pyarrow.ipc.open_stream(io.BytesIO(get(f"{address}/api/v1/rules?format=arrow").body)).read_all()
    assert table.column("low").to_pylist() == [10, 0, -2, 11, 20, 12, None, None]


def test_no_such_rule(address):
    """A name that neither a rule nor an alert has is refused; a rule without alerts is not."""
    refused = get(f"{address}/api/v1/alerts?rule=wram")
    assert refused.status == 400
    names = "warm, loud, hot, cellar, mean, steep, stuck, silent"
    assert refused.json == {"error": f"the table has no rule 'wram' and no alert of one; its rules: {names}"}
    assert get(f"{address}/api/v1/alerts?rule=mean").json["alerts"] == []


def test_limits_in_a_chart(chromium, address):
    """A chart marks the limits of rules on what it shows, names what fires, and keeps its data in view."""
    with opened(chromium, address, "#/chart?sensor=hall-1&metric=t&tier=1h") as page:
        limits = page.locator("[data-legend] li:has(.limit)")
        expect(limits).to_have_text(
            ["warm: above 10 µg/m³", "hot: outside -2 to 1000 µg/m³", "mean: mean above 20 µg/m³"]
        )
        expect(page.locator("[data-chart]")).to_have_attribute("aria-label", re.compile("warm fires above 10 µg/m³"))
        expect(page.locator("[data-firing] li")).to_have_count(1)
        expect(page.locator("[data-firing]")).to_contain_text("warm fires since ")
        expect(page.locator("[data-firing]")).to_contain_text(": Dust 11.5 µg/m³, t above 10")
        page.get_by_role("checkbox", name="mean").uncheck()
        expect(limits).to_have_count(2)  # nothing shows the mean


def test_limits_do_not_squash_the_data(chromium, address):
    """The range of a chart takes in the limits that are near its values, and no others: most of it stays for them."""
    range_with = """async (values) => (await import("/static/limits.js")).rangeWith([{ values }], 0, 9)"""
    with opened(chromium, address) as page:
        for limits, near in (([10, 1000], [10]), ([-4, -7], [-4]), ([13, -4], [13, -4]), ([], []), ([15], [])):
            least, most = page.evaluate(range_with, limits)
            assert [limit for limit in limits if least <= limit <= most] == near
            assert (9 - 0) / (most - least) > 0.4


@pytest.mark.parametrize(
    ("path", "shown"),
    [("#/alerts", "tbody tr"), ("#/chart?sensor=hall-1&sensor=Roof%26e%3D1&metric=t", "[data-firing] li")],
)
def test_what_all_can_read(chromium, address, path, shown):
    """axe-core finds nothing in lists of alerts, and on a phone nothing is wider than the screen."""
    options = {"color_scheme": "dark", "viewport": {"width": 360, "height": 800}, "bypass_csp": True}
    with opened(chromium, address, path, **options) as page:
        expect(page.locator(shown)).to_have_count(3)
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_page(chromium, address):
    """The list of sensors marks those whose alerts fire, and leads to a list of alerts, and from there to a chart."""
    with opened(chromium, address) as page:
        expect(page.locator("tr[data-sensor='Roof&e=1'] .alerting")).to_have_text("warm, loud")
        expect(page.locator(".alerting")).to_have_count(2)
        page.get_by_role("link", name="3 alerts fire").click()
        expect(page.get_by_role("heading", name="Alerts")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(3)
        expect(page.locator("[data-status]")).to_have_text("3 alerts")
        expect(page.locator("tbody tr td.value").first).to_have_text("Dust 20.25 µg/m³")
        expect(page.locator("tbody tr td.since").first).to_have_text(re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"))
        page.get_by_label("Show").select_option("the last 24 hours")
        expect(page.locator("tbody tr")).to_have_count(5)
        assert page.url.endswith("#/alerts?since=-1d")
        page.get_by_role("link", name="hall-2").first.click()
        expect(page.get_by_role("heading", name="hall-2")).to_be_visible()
