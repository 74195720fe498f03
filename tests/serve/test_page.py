"""The page, used in a browser as a person uses it."""

import csv
import re
import time
from datetime import timedelta
from pathlib import Path

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
from pipeline.core.windows import HOURLY
from tests.serve.browsing import opened, violations
from tests.serve.serving import SCHEMA, serving, table_of, token_file
from tests.support.rows import decoded
from tests.support.tables import raw_row, write

SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000
NOW = time.time_ns() // 1000
REFRESH_MS = 5_500  # by then the page has asked again
MARKUP = "<img/src=x/onerror=alert(1)>"
ENDLESS = """
const ask = window.fetch;
window.fetch = async (address, options) => {
  window.fetch = ask;
  const answer = await ask(address, options);
  answer.json = () => new Promise((_, reject) => {
    options.signal.addEventListener("abort", reject);
    window.isAsked = true;
  });
  return answer;
};
"""  # the first answer comes, and does not end


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


def rows(page):
    return page.locator("tbody tr")


def status(page):
    return page.locator("[data-status]")


def test_list_and_search(chromium, address):
    """Sensors are listed, searched by name and filtered by silence; the address keeps the search."""
    with opened(chromium, address) as page:
        expect(rows(page)).to_have_count(4)
        expect(status(page)).to_have_text("4 sensors; 1 silent for 1 hour or longer")
        expect(rows(page).nth(1).locator("svg path")).to_have_count(2)  # a small chart of each reading
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
        expect(status(page)).to_have_text("No sensor matches.")
        page.get_by_label("Search").fill("")
        page.get_by_role("link", name="1 silent").click()
        expect(page.get_by_label("Only silent ones")).to_be_checked()
        expect(status(page)).to_have_text("1 silent sensor, the longest silent first")
        expect(rows(page)).to_have_count(1)
        page.get_by_label("Silent after").select_option("6 hours")
        expect(status(page)).to_have_text("No sensor matches.")
        page.goto(f"{address}/#/charts")
        expect(page.get_by_role("alert").first).to_have_text("The page has no view /charts. These are the sensors.")


def test_what_may_be_missing(chromium, bigtable):
    """If a tier was added later, readings complete the chart; if they may have been collected, the page tells."""
    name = table_of(events())
    record_added_tiers(name, ["stats"])
    tables.apply(name, [Difference("raw", Never(), MaxAge(timedelta(days=1)))])
    with serving(name) as address:
        with opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity&from=-20h&to=now") as page:
            expect(status(page)).to_contain_text("points from readings")
        with opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity&from=-2d&to=now") as page:
            expect(status(page)).to_contain_text("some may be missing")


def test_a_sensor(chromium, address):
    """A sensor's page draws the chosen metric, range and time zone; the address keeps them."""
    with opened(chromium, address) as page:
        page.get_by_role("link", name="hall-1").click()
        expect(page.get_by_role("heading", name="hall-1")).to_be_visible()
        expect(page.locator("[data-trail]")).to_have_text("Sensors")
        expect(page.locator("dd")).to_have_text("<b>hall-1</b>")
        page.get_by_label("Metric").select_option("humidity")
        expect(status(page)).to_contain_text("windows of 1h")
        chart = page.get_by_role("img")
        expect(chart).to_have_accessible_name(name=chart_name("humidity"))
        page.get_by_label("Metric").select_option("temperature")
        expect(chart).to_have_accessible_name(name=chart_name("temperature"))
        page.get_by_label("Time zone").fill("Asia/Tokyo")
        page.keyboard.press("Enter")
        page.locator("summary").click()
        expect(page.locator("[data-values] th").nth(1)).to_have_text("Time (Asia/Tokyo)")
        page.get_by_label("Range").select_option("week")
        expect(status(page)).to_contain_text("windows of 1h")
        assert "metric=temperature" in page.url
        assert "from=-7d" in page.url
        page.reload()
        expect(page.get_by_label("Time zone")).to_have_value("Asia/Tokyo")
        expect(page.get_by_label("Metric")).to_have_value("temperature")
        page.goto(f"{address}/#/chart?sensor=hall-1&from=2026-02-17T06:00:00Z&to=2026-02-17T18:00&zone=Asia/Tokyo")
        expect(page.get_by_label("From")).to_have_value("2026-02-17T15:00")
        expect(page.get_by_label("To", exact=True)).to_have_value("2026-02-17T18:00")


def chart_name(metric):
    return re.compile(rf"{metric} from .* to .*, between \d+ and \d+")


def test_units(chromium, bigtable):
    """A metric's label and unit stand beside its values: in the list, at a glance, in the chart, its table and file."""
    units = '[metrics.temperature]\nunit = "°C"\nlabel = "Air"\n'
    with serving(table_of(events(), SCHEMA + units)) as address, opened(chromium, address) as page:
        expect(page.locator("tr[data-sensor=roof] .reading")).to_have_text(["humidity 50", "Air 20 °C"])
        page.goto(f"{address}/#/chart?sensor=hall-2")
        expect(page.locator(".small[data-metric=temperature]")).to_have_text(re.compile("^Air.*20 to 26 °C$"))
        page.locator(".small[data-metric=temperature]").click()
        page.locator(".u-over").hover()
        expect(page.locator("[data-legend]")).to_contain_text(re.compile(r"min to max \d+ to \d+ °C"))
        expect(page.locator("[data-chart]")).to_have_attribute("aria-label", re.compile("between 20 and 26 °C"))
        expect(page.locator("h1")).to_have_text("Air")
        page.get_by_text("The same as a table").click()
        expect(page.locator("[data-values] th").last).to_have_text("avg (°C)")
        with page.expect_download() as saved:
            page.get_by_role("button", name="Download").click()
        header, first, *_ = saved.value.path().read_text().splitlines()
        assert header.startswith("sensor_id,metric,label,unit,time,window,")
        assert first.startswith("hall-2,temperature,Air,°C,")


def test_windows_that_lack_data(chromium, address):
    """The address may ask for windows with enough readings; the chart then has no readings, however few there are."""
    with opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity&from=-5h&to=now&min_count=2") as page:
        expect(status(page)).to_have_text(re.compile(r"^\d windows of 1h$"))
        page.goto(f"{address}/#/chart?sensor=hall-2&metric=humidity&from=-5h&to=now&min_count=3")
        expect(status(page)).to_have_text("No readings in this range.")


def test_zoom(chromium, address):
    """By dragging, and by buttons. Close up, the readings themselves are drawn."""
    with opened(chromium, address, "#/chart?sensor=hall-1&metric=temperature&from=-2d") as page:
        expect(status(page)).to_contain_text("windows of 1h")
        wide = page.url
        box = page.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.80, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 60, steps=5)
        page.mouse.up()
        page.wait_for_url(lambda url: url != wide)
        expect(status(page)).to_contain_text("points from readings")
        close = page.url
        for button in ("Zoom out", "Earlier", "Later", "Zoom in"):
            before = page.url
            page.get_by_role("button", name=button).click()
            page.wait_for_url(lambda url, before=before: url != before)
        page.get_by_label("Windows").select_option("readings")
        expect(status(page)).to_contain_text("points from readings")
        page.goto(close)
        page.go_back()
        expect(page.get_by_label("Windows")).to_have_value("raw")


def test_at_a_glance(chromium, address):
    """A sensor shows all its metrics small, one of them large, and the way back: to all, and to the list as it was."""
    with opened(chromium, address) as page:
        page.get_by_label("Search").fill("hall")
        expect(rows(page)).to_have_count(2)
        page.get_by_role("link", name="hall-2", exact=True).click()
        expect(page.locator(".small .name")).to_have_text(["humidity", "temperature"])
        expect(page.locator(".small svg path").first).to_have_attribute("d", re.compile("^M"))
        page.get_by_role("link", name="temperature").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("temperature")
        expect(page.get_by_role("img")).to_be_visible()
        expect(page.locator(".small")).to_have_count(0)
        page.get_by_role("navigation").get_by_role("link", name="hall-2").click()
        expect(page.locator(".small")).to_have_count(2)
        page.get_by_role("link", name="Sensors").click()
        expect(page.get_by_label("Search")).to_have_value("hall")


def test_the_time_at_the_cursor(chromium, address):
    """The chart tells the window and the reading at the cursor; else its range, in the browser's time zone."""
    view = "#/chart?sensor=roof&metric=temperature&from=-9h"
    with opened(chromium, address, view, timezone_id="Asia/Tokyo") as page:
        times = page.locator(".times")
        expect(times).to_contain_text("Asia/Tokyo")
        box = page.locator(".u-over").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 50)
        expect(times).to_have_text(re.compile(r"\d:00 to (\S+ )?\d\d:00$"))
        expect(page.locator(".legend")).to_contain_text(re.compile(r"readings 2\d at \d\d:\d\d:\d\d"))


def test_a_chart_of_quantiles(chromium, bigtable):
    """Without minimum and maximum, the outer quantiles bound the band, and the median stands for the window."""
    table = table_of(events(), 'latest = "latest"\n[statistics]\nother = ["p5", "p50", "p95"]\n')
    with serving(table) as address, opened(chromium, address, "#/chart?sensor=hall-2&metric=humidity") as page:
        expect(page.locator(".legend li:has(.line)")).to_have_text(["p5 to p95 ", "p50 ", "readings "])


DAY = "1d@Europe/Berlin"


@pytest.mark.parametrize("key", ["{sensor_id}#{reverse_us}", "{sensor_id}#{iso_us}"])
def test_days_of_a_time_zone(chromium, bigtable, key):
    """The day that contains the start of the range is drawn too; times without an offset are in the tier's zone."""
    table = table_of(events(), f'key = "{key}"\n[tiers]\n1h = "stats"\n"{DAY}" = "daily"\n')
    view = f"#/chart?sensor=hall-2&metric=humidity&from=yesterday&tier={DAY}"
    with serving(table) as address, opened(chromium, address, view) as page:
        expect(page.get_by_label("Time zone")).to_have_value("Europe/Berlin")
        expect(status(page)).to_contain_text(f"2 windows of {DAY}")
        expect(page.locator(".times")).to_have_text(re.compile(r"^\S+ 00:00 to .*, Europe/Berlin$"))
        page.get_by_role("button", name="Zoom in").click()
        expect(page.get_by_role("textbox", name="From")).to_have_value(
            re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d)?$")
        )
        expect(status(page)).to_contain_text(f"windows of {DAY}")


@pytest.mark.parametrize(
    ("text", "zone", "time"),
    [
        ("2026-02-17T12:00", "Europe/Berlin", "2026-02-17T11:00:00Z"),
        ("2026-02-17T12:00Z", "Europe/Berlin", "2026-02-17T12:00:00Z"),
        ("2026-02-17 12:00:30+01:00", "Asia/Tokyo", "2026-02-17T11:00:30Z"),
        ("2026-02-17", "America/New_York", "2026-02-17T05:00:00Z"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00Z"),  # twice: the first
        ("2026-10-25T03:00", "Europe/Berlin", "2026-10-25T02:00:00Z"),
        ("2026-03-29T02:30", "Europe/Berlin", "2026-03-29T01:30:00Z"),  # never: as if clocks had not changed
        ("today", "Europe/Berlin", "2026-03-29T22:00:00Z"),
        ("Yesterday", "Europe/Berlin", "2026-03-28T23:00:00Z"),  # a day of 23 hours
        ("-90m", "Europe/Berlin", "2026-03-30T08:30:00Z"),
        ("tomorrow", "UTC", None),
    ],
)
def test_moments(blank, text, zone, time):
    """What a person writes is a time of the chosen zone, unless it has an offset."""
    script = """async ([text, zone]) => {
        const { iso, moment } = await import("/static/times.js");
        const found = moment(text, Date.parse("2026-03-30T10:00:00Z") / 1000, zone);
        return Number.isNaN(found) ? null : iso(found);
    }"""
    assert blank.evaluate(script, [text, zone]) == time


def test_steps(blank):
    """Each window is a step up to its own end: before a gap, at the end, and in a calendar's longer days."""
    script = """async () => {
        const { bounded, steps } = await import("/static/windows.js");
        const at = (hour, value) => ({
            window_start: new Date(hour * 3600e3).toISOString(),
            metrics: value === null ? {} : { t: { avg: value } },
        });
        const records = [at(0, 1), at(24, 2), at(49, 3), at(73, null), at(97, 4), at(121, null), at(145, 5)];
        const { times, values } = steps(bounded(records, [30 * 3600, 130 * 3600], 86400), "t", "avg");
        return times.map((time, index) => [Math.round(time / 36) / 100, values[index]]);
    }"""
    assert blank.evaluate(script) == [
        [24, 2], [49, 2],  # a day of 25 hours, which began before the range
        [49, 3], [73, 3], [73, None],
        [97, 4], [121, 4], [121, None],
    ]  # fmt: skip


@pytest.fixture(scope="module")
def blank(chromium, address):
    """The page, for its functions alone."""
    page = chromium.new_page()
    page.goto(f"{address}/#/?search=nothing")
    yield page
    page.close()


def test_gaps(chromium, address):
    """Nothing is drawn where the sensor sent nothing: it was silent from 20 to 10 hours ago."""
    with opened(chromium, address, "#/chart?sensor=hall-1&metric=temperature&from=-2d&line=avg") as page:
        expect(status(page)).to_contain_text("windows of 1h")
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
        expect(page.get_by_role("heading", level=1)).to_have_text("hall-1, hall-2, roof")
        expect(page.locator("[data-metric=humidity] path")).to_have_count(3)
        page.get_by_role("link", name="humidity").click()
        expect(page.locator(".legend .line")).to_have_count(3)


def test_a_chart_compares_six_sensors(chromium, bigtable):
    """The seventh tick is refused with the reason."""
    given = [Event(f"s{n}", NOW, {"t": 1.0}, {}) for n in range(7)]
    with serving(table_of(given, 'latest = "latest"')) as address, opened(chromium, address) as page:
        for n in range(7):
            page.get_by_label(f"Compare s{n}").click()
        expect(page.locator("[data-most]")).to_contain_text("A chart compares 6 sensors at most.")
        expect(page.locator("input:checked")).to_have_count(6)
        page.get_by_label("Compare s0").click()
        page.get_by_label("Compare s6").click()
        expect(page.locator("[data-most]")).to_have_text("")
        expect(page.get_by_label("Compare s6")).to_be_checked()


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
        expect(page.locator(".legend .line")).to_have_count(2)
        expect(page.get_by_label("Place")).to_be_hidden()
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(status(page)).to_have_text("There are no readings.")


def test_a_sensor_whose_places_are_gone(chromium, bigtable):
    """Its raw rows are collected, and its windows are drawn."""
    name, stats = table_of([], 'key = "{metadata.site}#{sensor_id}#{reverse_us}"'), WindowStats()
    stats.add({"t": 20.0})
    write(name, [aggregate_row(HOURLY, "a", HOURLY.start_of(NOW - 2 * HOUR), stats, "stats")])
    with serving(name) as address, opened(chromium, address, "#/chart?sensor=a&metric=t&from=-6h") as page:
        expect(status(page)).to_contain_text("1 window of 1h")
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(status(page)).to_have_text("There are no readings.")


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
        expect(status(page)).to_have_text("The table has no sensors yet.")
        page.goto(f"{address}/#/chart?sensor=nobody")
        expect(status(page)).to_have_text("There are no readings.")


def test_ten_thousand_sensors(chromium, bigtable):
    """The list shows the first of them at once, and more on request; a search finds the last."""
    table, newest = table_of([]), NewestReadings()
    for n in range(10_000):
        newest.add(f"meter-{n:05}", NOW, [("power", float(n))])
    write(table, map(decoded, newest.rows("latest")))
    with serving(table) as address, opened(chromium, address) as page:
        expect(status(page)).to_have_text("The first 200 sensors")
        page.get_by_role("button", name="Show more").click()
        expect(status(page)).to_have_text("The first 400 sensors")
        page.get_by_label("Search").fill("09999")
        expect(rows(page)).to_have_count(1)
        expect(status(page)).to_have_text("1 sensor")


def test_a_search_goes_on(chromium, address):
    """Sensors that begin with the text come first. A search that has not looked at all says so, and can go on."""
    with opened(chromium, address) as page:
        page.get_by_label("Search").fill("r")
        expect(rows(page)).to_have_count(2)
        expect(rows(page).first).to_have_attribute("data-sensor", "roof")
        part = {"sensors": [], "more": True, "searched_to": "m", "next": "/api/v1/latest?search=hall&after=m"}
        page.route(re.compile(r"/latest\?search="), lambda route: route.fulfill(json=part))
        page.get_by_label("Search").fill("hall")
        expect(status(page)).to_have_text("2 sensors; searched as far as m")
        expect(rows(page)).to_have_count(2)
        page.unroute_all()
        page.get_by_role("button", name="Search on").click()
        expect(status(page)).to_have_text("2 sensors")


def test_the_rows_do_not_wait_for_the_count(chromium, bigtable):
    """The first sensors are listed whether or not the silent ones of all can be counted, and a count says its time."""
    table, newest = table_of([]), NewestReadings()
    for n in range(250):
        newest.add(f"meter-{n:03}", NOW - (8 * HOUR if n % 50 == 0 else 0), [("power", float(n))])
    write(table, map(decoded, newest.rows("latest")))
    page = chromium.new_page()
    page.route(re.compile("silent_for"), lambda route: route.fulfill(status=504, json={"error": "It took too long"}))
    with serving(table) as address:
        page.goto(address)
        expect(rows(page)).to_have_count(200)
        expect(status(page)).to_have_text("The first 200 sensors; the silent ones are not counted: It took too long")
        page.unroute_all()
        page.get_by_label("Silent after").select_option("6 hours")
        counted = r"The first 200 sensors; of all, 5 silent for 6 hours or longer, counted at \d\d:\d\d:\d\d"
        expect(status(page)).to_have_text(re.compile(counted))
    page.close()


def saved(page):
    """Returns the lines of the file that the button saves."""
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as CSV").click()
    with Path(download.value.path()).open(newline="") as file:
        return download.value.suggested_filename, list(csv.DictReader(file))


def test_what_is_drawn_as_a_file(chromium, address):
    """A button saves what is listed or drawn, with its values in full."""
    with opened(chromium, address) as page:
        expect(rows(page)).to_have_count(4)
        name, found = saved(page)
        assert (name, len(found)) == ("sensors.csv", 8)
        assert found[0] | {"time": ""} == {"sensor_id": MARKUP, "metric": "humidity", "time": "", "value": "50"}
        page.goto(f"{address}/#/chart?sensor=hall-2&from=-7d&to=now")
        expect(status(page)).to_contain_text("2 metrics")
        _, found = saved(page)
        assert {line["metric"] for line in found} == {"humidity", "temperature"}
        page.goto(f"{address}/#/chart?sensor=hall-2&sensor=roof&metric=temperature&from=-7d&to=now&tier=1h")
        expect(status(page)).to_contain_text("windows of 1h")
        name, found = saved(page)
        assert name == "hall-2_roof_temperature_-7d_now.csv"
        assert {line["sensor_id"] for line in found} == {"hall-2", "roof"}
        assert list(found[0]) == ["sensor_id", "metric", "time", "window", "avg"]
        assert all(20 <= float(line["avg"]) <= 26 and line["window"] == "1h" for line in found)


def test_small_charts_stand_in_line(chromium, address):
    """On a narrow phone too, a reading has its name, value and chart side by side; charts form a column."""
    with opened(chromium, address, viewport={"width": 320, "height": 640}) as page:
        readings = page.locator("tr[data-sensor=hall-2] .reading")
        expect(readings.locator("svg")).to_have_count(2)
        boxes = [[each.bounding_box() for each in reading.locator(".name, b, svg").all()] for reading in readings.all()]
        for name, value, chart in boxes:
            assert name["x"] + name["width"] <= value["x"] < value["x"] + value["width"] <= chart["x"]
            assert chart["x"] + chart["width"] <= 320
            assert name["y"] < chart["y"] + chart["height"] / 2 < name["y"] + name["height"]
        assert len({chart["x"] for _, _, chart in boxes}) == 1


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


def test_a_sensor_whose_first_answer_failed(chromium, address):
    """The page asks again for all that it needs."""
    page = chromium.new_page()
    page.clock.install()
    page.route("**/api/v1/metrics?*", lambda route: route.abort(), times=1)
    page.goto(f"{address}/#/chart?sensor=hall-1")
    expect(page.get_by_role("alert")).to_have_text("The server does not answer. This page tries again.")
    page.clock.fast_forward(REFRESH_MS)
    expect(page.locator(".small")).to_have_count(2)
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
            refused = page.get_by_text("The server refused this token.")
            expect(refused).to_be_visible(visible=attempt == "wrong")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_documentation_follows_the_colour_scheme(chromium, address, scheme):
    """The API's documentation is dark where the system is, and logs no error."""
    with opened(chromium, address, "api/docs", color_scheme=scheme) as page:
        expect(page.get_by_text("Windows of sensors, the oldest first")).to_be_visible()
        ground = re.compile(r"^rgb\(\d\d, \d\d, \d\d\)$" if scheme == "dark" else r"^rgba\(0, 0, 0, 0\)$")
        expect(page.locator("html")).to_have_css("background-color", ground)


@pytest.mark.parametrize(
    ("path", "scheme", "width"),
    [
        ("", "light", 1280),
        ("#/chart?sensor=hall-1&metric=humidity&from=-1d", "light", 1280),
        ("#/chart?sensor=hall-1", "dark", 360),
        ("#/chart?sensor=hall-1&sensor=roof&metric=humidity&from=-2d", "dark", 360),
        pytest.param("", "dark", 360, marks=pytest.mark.exhaustive),
        pytest.param(
            "#/chart?sensor=hall-1&sensor=roof&metric=humidity&from=-2d", "light", 1280, marks=pytest.mark.exhaustive
        ),
    ],
)
def test_accessibility(chromium, address, path, scheme, width):
    """axe-core finds nothing, in both colour schemes; on a phone, nothing is wider than the screen."""
    # The page's own policy would refuse a script that a test adds.
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}, "bypass_csp": True}
    with opened(chromium, address, path, **options) as page:
        expect(page.locator("tbody tr, .u-over, .small").first).to_be_attached()
        page.wait_for_function("document.querySelector('[data-status]').textContent !== ''")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_another_address_while_an_answer_comes(chromium, address):
    """What is interrupted within an answer shows nothing, and stands in nobody's way."""
    with opened(chromium, address, script=ENDLESS, bypass_csp=True) as page:
        page.wait_for_function("window.isAsked")
        page.goto(f"{address}/#/groups")
        expect(status(page)).to_have_text("The table has no roll-ups.")
