"""The page, used in a browser as a person uses it."""

import re
import time
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib.resources import files

import pytest
from playwright.sync_api import expect

from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import record_added_tiers
from pipeline.cloud.tables.tables import Difference
from pipeline.core.events.event import Event
from pipeline.core.rows.aggregate_rows import aggregate_row
from pipeline.core.rows.newest_row import NewestReadings
from pipeline.core.schema.gc_policies import MaxAge, Never
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.core.windows.fixed import HOURLY
from tests.serve.serving import serving, table_of, token_file
from tests.support.rows import decoded
from tests.support.tables import raw_row, write

SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000
NOW = time.time_ns() // 1000
expect.set_options(timeout=20_000)  # the page asks for what is new every five seconds
REFRESH_MS = 5_500  # by then the page has asked again
MARKUP = "<img/src=x/onerror=alert(1)>"


def events():
    """Two days of four sensors, one with a gap, one silent, one named like markup."""
    for sensor_id, silent_us in (("hall-1", 0), ("hall-2", 0), ("roof", 3 * HOUR), (MARKUP, 0)):
        for n in range(96):
            if not (sensor_id == "hall-1" and 20 <= n < 40):
                readings = {"temperature": 20 + n % 7, "humidity": 50 + n % 3}
                yield Event(sensor_id, NOW - silent_us - n * 30 * MINUTE, readings, {"site": f"<b>{sensor_id}</b>"})


@pytest.fixture(scope="module")
def table(bigtable):
    return table_of(events())


@pytest.fixture(scope="module")
def address(table):
    with serving(table) as found:
        yield found


@contextmanager
def opened(chromium, address, path="", **options):
    """A page that logs no error, and asks no other host."""
    problems = []
    with ExitStack() as stack:
        context = chromium.new_context(**options)
        stack.callback(context.close)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: problems.append(f"a script ran: {dialog.message}"))
        page.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
        page.goto(f"{address}/{path}")
        yield page
    assert problems == []


def rows(page):
    return page.locator("tbody tr")


def test_list_and_search(chromium, address):
    """Sensors are listed, searched by name and filtered by silence; the address keeps the search."""
    with opened(chromium, address) as page:
        expect(rows(page)).to_have_count(4)
        expect(page.get_by_role("status")).to_have_text("4 sensors")
        roof = page.locator("tr[data-sensor=roof]")
        expect(roof).to_contain_text("3 hours ago silent")
        expect(roof).to_contain_text("temperature 20")
        expect(page.locator(".badge")).to_have_count(1)
        page.get_by_label("Search").fill("HALL")
        expect(rows(page)).to_have_count(2)
        assert page.url.endswith("#/?search=HALL&silent=1h")
        page.reload()
        expect(page.get_by_label("Search")).to_have_value("HALL")
        expect(rows(page)).to_have_count(2)
        page.get_by_label("Search").fill("nothing like it")
        expect(page.get_by_role("status")).to_have_text("No sensor matches.")
        page.get_by_label("Search").fill("")
        page.get_by_label("Only silent ones").check()
        expect(rows(page)).to_have_count(1)
        page.get_by_label("Silent after").select_option("6 hours")
        expect(page.get_by_role("status")).to_have_text("No sensor matches.")


def test_what_may_be_missing(chromium, bigtable):
    """If a tier was added later, readings complete the chart; if they may have been collected, the page tells."""
    name = table_of(events())
    record_added_tiers(name, ["stats"])
    tables.apply(name, [Difference("raw", Never(), MaxAge(timedelta(days=1)))])
    with serving(name) as address:
        with opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity&from=-20h&to=now") as page:
            expect(page.get_by_role("status")).to_contain_text("points from readings")
        with opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity&from=-2d&to=now") as page:
            expect(page.get_by_role("status")).to_contain_text("some may be missing")


def test_a_sensor(chromium, address):
    """A sensor's page draws the chosen metric, range and time zone; the address keeps them."""
    with opened(chromium, address) as page:
        page.get_by_role("link", name="hall-1").click()
        expect(page.get_by_role("heading", name="hall-1")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("windows of 1h")
        expect(page.locator("dd")).to_have_text("<b>hall-1</b>")
        chart = page.get_by_role("img")
        expect(chart).to_have_accessible_name(name=chart_name("humidity"))
        page.get_by_label("Metric").select_option("temperature")
        expect(chart).to_have_accessible_name(name=chart_name("temperature"))
        page.get_by_label("Time zone").fill("Asia/Tokyo")
        page.keyboard.press("Enter")
        page.locator("summary").click()
        expect(page.locator("[data-values] th").nth(1)).to_have_text("Time (Asia/Tokyo)")
        page.get_by_label("Last").select_option("week")
        expect(page.get_by_role("status")).to_contain_text("windows of 1h")
        assert "metric=temperature" in page.url
        assert "from=-7d" in page.url
        page.reload()
        expect(page.get_by_label("Time zone")).to_have_value("Asia/Tokyo")
        expect(page.get_by_label("Metric")).to_have_value("temperature")


def chart_name(metric):
    return re.compile(rf"{metric} from .* to .*, between \d+ and \d+")


def test_zoom(chromium, address):
    """By dragging, and by buttons. Close up, the readings themselves are drawn."""
    with opened(chromium, address, "#/chart?sensor=hall-1&metric=temperature&from=-2d") as page:
        expect(page.get_by_role("status")).to_contain_text("windows of 1h")
        wide = page.url
        box = page.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.80, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 60, steps=5)
        page.mouse.up()
        page.wait_for_url(lambda url: url != wide)
        expect(page.get_by_role("status")).to_contain_text("points from readings")
        close = page.url
        for button in ("Zoom out", "Earlier", "Later", "Zoom in"):
            before = page.url
            page.get_by_role("button", name=button).click()
            page.wait_for_url(lambda url, before=before: url != before)
        page.get_by_label("Windows").select_option("readings")
        expect(page.get_by_role("status")).to_contain_text("points from readings")
        page.goto(close)
        page.go_back()
        expect(page.get_by_label("Windows")).to_have_value("raw")


def test_gaps(chromium, address):
    """Nothing is drawn where the sensor sent nothing: it was silent from 20 to 10 hours ago."""
    with opened(chromium, address, "#/chart?sensor=hall-1&metric=temperature&from=-2d&line=avg") as page:
        expect(page.get_by_role("status")).to_contain_text("windows of 1h")
        coloured = """(hours) => {
            const canvas = document.querySelector("canvas"), of = canvas.getContext("2d");
            const area = document.querySelector(".u-over"), scale = canvas.width / canvas.clientWidth;
            const left = area.offsetLeft * scale, width = area.clientWidth * scale;
            const { data } = of.getImageData(left + width * (1 - hours / 48), 0, width / 24, canvas.height * .8);
            return data.some((value, index) => index % 4 === 2 && value > data[index - 2] + 60);
        }"""
        assert [page.evaluate(coloured, hours) for hours in (40, 25, 17, 14, 5)] == [True, True, False, False, True]


def test_compare(chromium, address):
    """Selected sensors are drawn in one chart."""
    with opened(chromium, address) as page:
        expect(page.get_by_role("link", name="Compare")).to_be_hidden()
        for sensor in ("hall-1", "hall-2", "roof"):
            page.get_by_label(f"Compare {sensor}").check()
        page.get_by_role("link", name="Compare 3 sensors").click()
        expect(page.locator(".legend li")).to_have_count(3)
        expect(page.get_by_role("heading", level=1)).to_have_text("hall-1, hall-2, roof")


def test_a_sensor_that_metadata_locates(chromium, bigtable):
    """Its chart shows where it was last, and any other place on request; several sensors may be in several places."""
    moved = [("a", "south, old", 20.0), ("a", "north", 30.0), ("b", "south, old", 25.0)]
    given = [
        Event(sensor, NOW - (9 - n) * MINUTE, {"t": value}, {"site": site})
        for n, (sensor, site, value) in enumerate(moved)
    ]
    text = 'latest = "latest"\nkey = "{metadata.site}#{sensor_id}#{reverse_us}"'
    with serving(table_of(given, text)) as address, opened(chromium, address) as page:
        page.get_by_role("link", name="a", exact=True).click()
        place = page.get_by_label("Place")
        expect(place).to_have_value("site=north")
        expect(page.locator("dd")).to_have_text("north")
        page.get_by_text("The same as a table").click()
        values = page.locator("[data-values] tbody")
        expect(values).to_contain_text("30")
        place.select_option("site=south, old")
        expect(page.locator("dd")).to_have_text("south, old")
        expect(values).to_contain_text("20")
        page.reload()
        expect(page.get_by_label("Place")).to_have_value("site=south, old")
        page.goto(f"{address}/#/chart?sensor=a&sensor=b")
        expect(page.locator(".legend li")).to_have_count(2)
        expect(page.get_by_label("Place")).to_be_hidden()
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(page.get_by_role("status")).to_have_text("There are no readings.")


def test_a_sensor_whose_places_are_gone(chromium, bigtable):
    """Its raw rows are collected, and its windows are drawn."""
    name, stats = table_of([], 'key = "{metadata.site}#{sensor_id}#{reverse_us}"'), WindowStats()
    stats.add({"t": 20.0})
    write(name, [aggregate_row(HOURLY, "a", HOURLY.start_of(NOW - 2 * HOUR), stats, "stats")])
    with serving(name) as address, opened(chromium, address, "#/chart?sensor=a&metric=t&from=-6h") as page:
        expect(page.get_by_role("status")).to_contain_text("1 window of 1h")
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(page.get_by_role("status")).to_have_text("There are no readings.")


def test_live(chromium, bigtable):
    """A new reading, and a new sensor, appear without reloading, and without losing the focus."""
    table = table_of(events())
    with serving(table) as address, opened(chromium, address) as page:
        expect(rows(page)).to_have_count(4)
        page.get_by_label("Compare hall-1").focus()
        newest = NewestReadings()
        for sensor, value in (("hall-1", 99.25), ("newcomer", 1.0)):
            write(table, [raw_row(Event(sensor, NOW + MINUTE, {"temperature": value}, {}))])
            newest.add(sensor, NOW + MINUTE, [("temperature", value)])
        write(table, map(decoded, newest.rows("latest")))
        expect(page.locator("tr[data-sensor=hall-1]")).to_contain_text("99.25")
        expect(page.locator("tr[data-sensor=newcomer]")).to_be_visible()
        expect(page.get_by_label("Compare hall-1")).to_be_focused()


def test_an_empty_table(chromium, bigtable):
    """A table without sensors, or a sensor without readings, says so."""
    with serving(table_of([])) as address, opened(chromium, address) as page:
        expect(page.get_by_role("status")).to_have_text("The table has no sensors yet.")
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(page.get_by_role("status")).to_have_text("There are no readings.")


def test_ten_thousand_sensors(chromium, bigtable):
    """The list shows the first of them at once, and more on request; a search finds the last."""
    table, newest = table_of([]), NewestReadings()
    for n in range(10_000):
        newest.add(f"meter-{n:05}", NOW, [("power", float(n))])
    write(table, map(decoded, newest.rows("latest")))
    with serving(table) as address, opened(chromium, address) as page:
        expect(page.get_by_role("status")).to_have_text("The first 200 sensors")
        page.get_by_role("button", name="Show more").click()
        expect(page.get_by_role("status")).to_have_text("The first 400 sensors")
        page.get_by_label("Search").fill("09999")
        expect(rows(page)).to_have_count(1)
        expect(page.get_by_role("status")).to_have_text("1 sensor")


def test_markup_is_text(chromium, address):
    """Names and metadata that look like markup are text."""
    with opened(chromium, address) as page:
        page.get_by_role("link", name=MARKUP).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
        expect(page.locator("dd")).to_have_text(f"<b>{MARKUP}</b>")
        assert page.locator("img, dd b").count() == 0


def test_server_gone_and_back(chromium, table):
    """The page says that the server is gone, and continues when it is back."""
    page = chromium.new_page()
    page.clock.install()
    with serving(table) as address:
        page.goto(address)
        expect(rows(page)).to_have_count(4)
    page.clock.fast_forward(REFRESH_MS)
    expect(page.get_by_role("alert")).to_have_text("The server does not answer. This page tries again.")
    expect(rows(page)).to_have_count(4)  # what was known stays
    with serving(table, port=int(address.rpartition(":")[2])):
        page.clock.fast_forward(REFRESH_MS)
        expect(page.get_by_role("alert")).to_be_hidden(timeout=20_000)
    page.close()


def test_a_token(chromium, table, tmp_path):
    """The page asks for the token until it is right, and remembers it."""
    path, token = token_file(tmp_path)
    with serving(table, f"--token-file={path}") as address:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(address)
        for attempt in ("wrong", token):
            page.get_by_label("This server needs a token.").fill(attempt)
            page.get_by_role("button", name="Continue").click()
        expect(rows(page)).to_have_count(4)
        page.reload()
        expect(rows(page)).to_have_count(4)
        context.close()


def test_by_keyboard(chromium, address):
    """A person without a mouse can search and open a sensor."""
    with opened(chromium, address) as page:
        expect(rows(page)).to_have_count(4)
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        page.get_by_label("Search").focus()
        page.keyboard.type("hall-2")
        expect(rows(page)).to_have_count(1)
        link = page.get_by_role("link", name="hall-2")
        for _ in range(12):
            page.keyboard.press("Tab")
            if link.evaluate("link => link === document.activeElement"):
                break
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="hall-2")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "scheme", "width"),
    [
        ("", "light", 1280),
        ("#/chart?sensor=hall-1&from=-1d", "light", 1280),
        ("#/chart?sensor=hall-1&sensor=roof&from=-2d", "dark", 360),
        pytest.param("", "dark", 360, marks=pytest.mark.exhaustive),
        pytest.param("#/chart?sensor=hall-1&sensor=roof&from=-2d", "light", 1280, marks=pytest.mark.exhaustive),
    ],
)
def test_accessibility(chromium, address, path, scheme, width):
    """axe-core finds nothing, in both colour schemes; on a phone, nothing is wider than the screen."""
    # The page's own policy would refuse a script that a test adds.
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "bypass_csp": True}
    with opened(chromium, address, path, **options) as page:
        expect(page.locator("tbody tr, .u-over").first).to_be_attached()
        page.wait_for_function("document.querySelector('[role=status]').textContent !== ''")
        page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text())
        found = page.evaluate("axe.run()")["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
