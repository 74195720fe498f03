"""Alerts in the API and on the page, from rows as a job writes them."""

import io
from urllib.parse import quote

import pyarrow
import pytest
from playwright.sync_api import expect

from pipeline.cloud.tables.alert_store import add_families
from pipeline.core.alerts.alert_rows import alert_row
from pipeline.core.alerts.conditions import AlertCondition
from pipeline.core.alerts.machine import NEVER_US, Track, Value
from pipeline.core.alerts.rules import Rule
from pipeline.core.notation.times import format_time
from pipeline.core.schema.toml import parse_schema
from tests.serve.browsing import opened, violations
from tests.serve.serving import EVENTS, MINUTE, NOW, SCHEMA, get, serving, table_of
from tests.support.rows import decoded
from tests.support.tables import write

WARM = Rule("warm", metric="t", condition=AlertCondition("above", 10, 10), severity="page")
LOUD = Rule("loud", metric="u", condition=AlertCondition("above", 0, 0))


@pytest.fixture(scope="module")
def address(bigtable):
    """A table with an alert that fires, one that resolved, and two of one sensor."""
    table = table_of(EVENTS)
    add_families(table, parse_schema(SCHEMA))
    for rule, sensor, values in (
        (WARM, "hall-1", (11.5, 12)),
        (WARM, "hall-2", (11.5, 9)),
        (WARM, "Roof&e=1", (9, 20.25)),
        (LOUD, "Roof&e=1", (3,)),
    ):
        track = Track()
        found = [Value(NOW - (60 - minutes) * MINUTE, each) for minutes, each in enumerate(values)]
        changes = track.update(rule, found, NEVER_US, 1)
        write(table, [decoded(alert_row(rule, sensor, changes.added, changes.withdrawn, track))])
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


def test_a_list_that_all_can_read(chromium, address):
    """axe-core finds nothing in the list of alerts, and on a phone nothing is wider than the screen."""
    options = {"color_scheme": "dark", "viewport": {"width": 360, "height": 800}, "bypass_csp": True}
    with opened(chromium, address, "#/alerts", **options) as page:
        expect(page.locator("tbody tr")).to_have_count(3)
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
        expect(page.locator("tbody tr").first).to_contain_text("20.25")
        page.get_by_label("Show").select_option("the last 24 hours")
        expect(page.locator("tbody tr")).to_have_count(5)
        assert page.url.endswith("#/alerts?since=-1d")
        page.get_by_role("link", name="hall-2").first.click()
        expect(page.get_by_role("heading", name="hall-2")).to_be_visible()
