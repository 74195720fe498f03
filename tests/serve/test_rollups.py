"""Roll-ups in the API and on the page, from rows as a job writes them."""

import io
import re
from urllib.parse import urlencode

import pyarrow
import pytest
from playwright.sync_api import expect

from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.schema.toml import parse_schema
from tests.serve.browsing import opened, violations
from tests.serve.serving import HOUR, MINUTE, START, get, serving, table_of
from tests.support.rollups import rows_with_rollups
from tests.support.tables import write

SCHEMA = """\
latest = "latest"
[tiers]
1h = "hours"
1d = "days"
[rollups]
site = { by = "metadata.site" }
model = { by = ["metadata.site", "metadata.model"], tiers = ["1h"] }
fleet = { by = [], metrics = ["t"] }
"""
UNUSUAL = {  # what the page shows of each
    "": "''",
    " ": "' '",
    "<img src=x onerror=alert(1)>": "<img src=x onerror=alert(1)>",
    "\"q\" '%41'\n?": "\"q\" '%41' ?",
    "a" + "€" * 90: "a" + "€" * 19 + "…",
}
HALL = "<b>Halle</b> 7/Süd & #1"
HALL_TEXT = "%3Cb%3EHalle%3C%2Fb%3E%207%2FS%C3%BCd%20%26%20%231"
EVENTS = [
    Event(sensor_id, START + n * 10 * MINUTE, {"t": warm + n, "u": -1.0}, {"site": site, "model": "m1"})
    for sensor_id, site, warm in (("hall-1", HALL, 50.0), ("hall-2", HALL, 60.0), ("roof", "north", 0.0))
    for n in range(24)
]


@pytest.fixture(scope="module")
def address(bigtable):
    table = table_of(EVENTS, SCHEMA)
    write(table, rows_with_rollups(parse_schema(SCHEMA), EVENTS))
    with serving(table) as found:
        yield found


def answer(address, path, **parameters):
    return get(f"{address}/api/v1/{path}?{urlencode(parameters, doseq=True)}")


def test_rollups(address):
    """What sensors are grouped by."""
    described = [
        {"rollup": "site", "by": ["site"], "tiers": ["1h", "1d"], "metrics": ["*"]},
        {"rollup": "model", "by": ["site", "model"], "tiers": ["1h"], "metrics": ["*"]},
        {"rollup": "fleet", "by": [], "tiers": ["1h", "1d"], "metrics": ["t"]},
    ]
    assert answer(address, "rollups").json["rollups"] == described
    assert answer(address, "schema").json["rollups"] == described
    assert answer(address, "rollups", format="flat").json["rows"][1] == {"rollup": "model"}


def test_groups(address):
    """In the order of keys, or ranked; of the newest window, or of a range; with the number of all."""
    found = answer(address, "rollups/groups", rollup="site").json
    assert [each["fields"]["site"] for each in found["groups"]] == [HALL, "north"]
    assert (found["count"], found["more"]) == (2, False)
    first = found["groups"][0]
    assert first["window_start"] == format_time(START + 3 * HOUR)
    assert (first["sensors"], first["reading_count"], first["group"]) == (2, 12, HALL_TEXT)
    start, end = format_time(START), format_time(START + 2 * HOUR)
    top = {"rollup": "model", "start": start, "end": end, "by": "avg_t", "limit": 1}
    found = answer(address, "rollups/groups", **top).json
    assert [(each["windows"], each["metrics"]["t"]["avg"]) for each in found["groups"]] == [(2, 60.5)]
    assert (found["count"], found["more"]) == (2, True)
    [row] = answer(address, "rollups/groups", **top, format="flat").json["rows"]
    assert (row["group"], row["label"], row["metric"], row["avg"]) == (f"{HALL_TEXT}/m1", f"{HALL} / m1", "t", 60.5)


def test_windows(address):
    """The windows of a group, page by page, with gaps if asked for; in each form."""
    asked = {"rollup": "site", "group": HALL_TEXT, "start": format_time(START)}
    found = answer(address, "rollups/windows", **asked, metric="t", limit=3).json
    assert [each["metrics"]["t"]["avg"] for each in found["windows"]] == [57.5, 63.5, 69.5]
    assert found["incomplete_before"] is None
    assert len(get(address + found["next"]).json["windows"]) == 1
    end = format_time(START + 6 * HOUR)
    filled = answer(address, "rollups/windows", **asked, fill="null", end=end).json["windows"]
    assert [each.get("filled", False) for each in filled] == [False] * 4 + [True] * 2
    arrow = answer(address, "rollups/windows", **asked, format="arrow").body
    table = pyarrow.ipc.open_stream(io.BytesIO(arrow)).read_all()
    assert table.column("site").to_pylist() == [HALL] * 4
    assert table.column("sensors").to_pylist() == [2] * 4
    [day] = answer(address, "rollups/windows", rollup="fleet", start=format_time(START - 24 * HOUR), tier="1d").json[
        "windows"
    ][-1:]
    assert (day["group"], day["fields"], list(day["metrics"])) == ("all", {}, ["t"])


def test_sensors_of_a_group_and_groups_of_a_sensor(address):
    """From one to the other and back."""
    found = answer(address, "rollups/sensors", rollup="site", group=HALL_TEXT).json
    assert (found["sensors"], found["more"]) == (["hall-1", "hall-2"], False)
    found = answer(address, "rollups/sensors", rollup="fleet", limit=2, before=format_time(START + HOUR)).json
    assert (len(found["sensors"]), found["more"]) == (2, True)
    found = answer(address, "rollups/of", sensor="hall-2").json["groups"]
    assert [(each["rollup"], each["group"]) for each in found] == [
        ("site", HALL_TEXT),
        ("model", f"{HALL_TEXT}/m1"),
        ("fleet", "all"),
    ]


@pytest.mark.parametrize(
    ("path", "parameters", "problem"),
    [
        ("windows", {"rollup": "model"}, "group is missing; the roll-up model is by site and model"),
        ("windows", {"rollup": "model", "group": "a"}, "'a' can't be a group of the roll-up model: it takes percent-"),
        ("windows", {"rollup": "site", "group": "a#b"}, "a percent-encoded value of site; of this one, that is a%23b"),
        ("sensors", {"rollup": "fleet", "group": "x"}, "'x' can't be a group of the roll-up fleet: it takes all"),
        ("groups", {}, "rollup: Field required"),
        ("of", {"sensor": "a#b"}, "sensor"),
    ],
)
def test_what_has_no_answer(address, path, parameters, problem):
    """One line tells what there is."""
    found = answer(address, f"rollups/{path}", **parameters)
    assert found.status == 400
    assert problem in found.json["error"]


@pytest.mark.parametrize("path", ["#/groups?rollup=site&since=-1d", "#/chart?rollup=site&group=north"])
def test_pages_that_all_can_read(chromium, address, path):
    """axe-core finds nothing in the lists of groups and sensors, and on a phone nothing is wider than the screen."""
    options = {"color_scheme": "dark", "viewport": {"width": 360, "height": 800}, "bypass_csp": True}
    with opened(chromium, address, path, **options) as page:
        expect(page.get_by_role("link", name="roof" if "chart" in path else "north", exact=True)).to_be_visible()
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_page(chromium, address):
    """From the sensors to the groups, to a group's chart, to one of its sensors, and back to its groups."""
    with opened(chromium, address) as page:
        page.get_by_role("link", name="site", exact=True).click()
        expect(page.get_by_role("heading", name="Groups by site")).to_be_visible()
        expect(page.locator("tbody tr")).to_have_count(2)
        expect(page.locator("tbody tr").first).to_contain_text(HALL)
        expect(page.locator("[data-status]")).to_contain_text("2 groups in the window of 1h from")
        page.get_by_label("Rank by").select_option("mean of u")
        expect(page.locator("tbody tr").first).to_contain_text("75.5")
        page.get_by_label("Show").select_option("the last 24 hours")
        expect(page.locator("[data-status]")).to_contain_text("2 groups; of each, all windows of 1h together")
        page.get_by_label("Rank by").select_option("sensors")
        assert page.url.endswith("#/groups?rollup=site&since=-1d&by=sensors")
        page.get_by_role("link", name=HALL).click()
        expect(page.get_by_role("heading", name=HALL)).to_be_visible()
        expect(page.locator(".small")).to_have_count(2)
        expect(page.get_by_role("heading", name="2 sensors")).to_be_visible()
        page.locator(".small[data-metric=t]").click()
        expect(page.locator("[data-status]")).to_contain_text("4 windows of 1h")
        page.get_by_text("The same as a table").click()
        expect(page.locator("[data-values] tbody tr")).to_have_count(4)
        expect(page.locator("[data-values] tbody tr").first).to_contain_text(HALL)
        page.get_by_role("link", name="hall-2").click()
        expect(page.get_by_role("heading", name="hall-2")).to_be_visible()
        page.get_by_role("link", name=f"model: {HALL} / m1").click()
        expect(page.get_by_role("heading", name=f"{HALL} / m1")).to_be_visible()
        page.get_by_role("link", name="model", exact=True).click()
        expect(page.get_by_role("heading", name="Groups by site and model")).to_be_visible()


REDRAW = """dispatchEvent(new HashChangeEvent("hashchange"))"""
FRAMES = """new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"""


@pytest.mark.parametrize(
    ("path", "link", "asked", "leads_to"),
    [
        ("#/", "[data-status] a", "latest", "only=1"),
        ("#/groups?rollup=site", ".reading >> nth=0", "rollups/groups", "metric=t"),
        ("#/chart?rollup=site&group=north", ".small >> nth=0", "rollups/windows", "metric=t"),
    ],
)
def test_a_click_while_the_page_is_drawn_anew(chromium, address, path, link, asked, leads_to):
    """An answer that comes between the press of a button and its release does not take the click away."""
    with opened(chromium, address, path) as page:
        page.locator(link).hover()
        page.mouse.down()
        with page.expect_response(f"**/api/v1/{asked}?*"):
            page.evaluate(REDRAW)
        page.evaluate(FRAMES)
        page.mouse.up()
        page.wait_for_url(re.compile(leads_to))


def test_a_click_while_a_chart_comes(chromium, address):
    """A chart that comes between the press of a button and its release moves what is below it afterwards."""
    with opened(chromium, address, "#/alerts") as page:
        held = []
        page.route("**/api/v1/points?*", lambda route: held.append(route))
        with page.expect_request("**/api/v1/points?*") as asked:
            page.goto(f"{address}/#/chart?sensor=hall-2&metric=t")
        page.get_by_role("link", name=f"site: {HALL}").hover()
        page.mouse.down()
        with page.expect_response(asked.value.url):
            held.pop().continue_()
        page.evaluate(FRAMES)
        page.mouse.up()
        expect(page.get_by_role("heading", name=HALL)).to_be_visible()


def test_groups_side_by_side(chromium, address):
    """Two groups share a chart; a roll-up of all sensors has one page."""
    with opened(chromium, address, "#/groups?rollup=site") as page:
        expect(page.get_by_role("checkbox")).to_have_count(2)
        for box in page.get_by_role("checkbox").all():
            box.check()
        page.get_by_role("link", name="Compare 2 groups").click()
        page.locator(".small[data-metric=t]").click()
        expect(page.locator("[data-legend]")).to_contain_text("north mean")
        page.goto(f"{address}/#/")
        page.get_by_role("link", name="fleet").click()
        expect(page.get_by_role("heading", name="fleet")).to_be_visible()
        expect(page.locator("[data-status]")).to_contain_text("4 windows of 1h")
        expect(page.get_by_role("heading", name="3 sensors")).to_be_visible()


def test_unusual_names(bigtable, chromium):
    """Groups of any name lead to their sensor, and back: blank names are quoted, long ones end with three dots."""
    events = [Event(f"s-{n}", START, {"t": 1.0}, {"site": site, "model": "/"}) for n, site in enumerate(UNUSUAL)]
    table = table_of(events, SCHEMA)
    write(table, rows_with_rollups(parse_schema(SCHEMA), events))
    with serving(table) as address, opened(chromium, address) as page:
        for number, shown in enumerate(UNUSUAL.values()):
            sensor_id = f"s-{number}"
            found = answer(address, "rollups/of", sensor=sensor_id).json["groups"][0]
            of_group = {"rollup": "site", "group": found["group"]}
            assert answer(address, "rollups/sensors", **of_group).json["sensors"] == [sensor_id]
            [row] = answer(address, "rollups/windows", **of_group, start="-1d", format="flat").json["rows"]
            assert " ".join(row["label"].split()) == shown == " ".join(shown.split())
            page.goto(f"{address}/#/groups?rollup=site&since=-1d")
            page.get_by_role("link", name=shown, exact=True).click()
            expect(page.get_by_role("heading", name=shown, exact=True)).to_be_visible()
            page.get_by_role("link", name=sensor_id, exact=True).click()
            page.get_by_role("link", name=f"site: {shown}", exact=True).click()
            expect(page.get_by_role("heading", name=shown, exact=True)).to_be_visible()


def test_addresses_without_a_group(chromium, address):
    """An address without a group leads to the list; one of a roll-up that is not there says so."""
    with opened(chromium, address, "#/chart?rollup=site") as page:
        expect(page.get_by_role("heading", name="Groups by site")).to_be_visible()
        for view in ("groups", "chart"):
            page.goto(f"{address}/#/{view}?rollup=area&group=x")
            line = "The table has no roll-up area; its roll-ups: site, model, fleet"
            expect(page.get_by_role("alert").filter(has_text=line)).to_be_visible()
