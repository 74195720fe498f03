"""Times without an offset, in every reader: of --time-zone, else of the tier, else of UTC."""

import json

import pytest
from click.testing import CliRunner

from pipeline import SensorTable
from pipeline.cli.root import main
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time, parse_time
from pipeline.core.schema.toml import parse_schema
from tests.reading.running import arguments, run
from tests.serve.serving import get, serving
from tests.support.rollups import table_with_rollups
from tests.support.tables import HOUR

SCHEMA = parse_schema("""
[tiers]
1h = "hours"
"1d@Europe/Berlin" = "days"
"1mo@Europe/Berlin" = "months"
[rollups]
site = { by = "metadata.site", tiers = ["1d@Europe/Berlin"] }
""")
ZONE, DAYS, MONTHS = "Europe/Berlin", "1d@Europe/Berlin", "1mo@Europe/Berlin"
FIRST = parse_time("2025-09-30T00:30Z")
EVENTS = [Event("s", FIRST + n * HOUR, {"t": float(n)}, {"site": "north"}) for n in range(35 * 24)]
FROM, TO = "2025-10-24", "2025-10-28"  # clocks go back on the 26th
LOCAL_DAYS = [
    "2025-10-24T00:00:00+02:00",
    "2025-10-25T00:00:00+02:00",
    "2025-10-26T00:00:00+02:00",
    "2025-10-27T00:00:00+01:00",
]
UTC_EVENTS = ["2025-10-24T00:30:00Z", "2025-10-27T23:30:00Z"]  # the first and the last
LOCAL_EVENTS = ["2025-10-23T22:30:00Z", "2025-10-27T22:30:00Z"]


@pytest.fixture(scope="module")
def name(bigtable):
    return table_with_rollups(SCHEMA, EVENTS)


@pytest.fixture(scope="module")
def address(name):
    with serving(name) as found:
        yield f"{found}/api/v1"


READS = [
    ("aggregates", "windows", {"tier": DAYS}, LOCAL_DAYS),
    ("aggregates", "windows", {"tier": DAYS, "zone": "UTC"}, [*LOCAL_DAYS[1:], "2025-10-28T00:00:00+01:00"]),
    ("aggregates", "ends", {}, ["2025-10-24T00:00:00Z", "2025-10-27T23:00:00Z"]),
    ("aggregates", "ends", {"zone": ZONE}, ["2025-10-23T22:00:00Z", "2025-10-27T22:00:00Z"]),
    ("range", "ends", {}, UTC_EVENTS),
    ("range", "ends", {"zone": ZONE}, LOCAL_EVENTS),
    ("points", "ends", {}, UTC_EVENTS),
    ("points", "ends", {"zone": ZONE}, LOCAL_EVENTS),
    ("rollups", "windows", {}, LOCAL_DAYS),
    ("rollups", "windows", {"tier": DAYS, "zone": "UTC"}, [*LOCAL_DAYS[1:], "2025-10-28T00:00:00+01:00"]),
]


@pytest.mark.parametrize("reader", ["command line", "HTTP", "Python"])
@pytest.mark.parametrize(("what", "kind", "options", "expected"), READS)
def test_dates(name, address, reader, what, kind, options, expected):
    """A date is that of the zone asked for, else of the tier, else of UTC, and the answer names the zone."""
    read = {"command line": on_the_command_line, "HTTP": over_http, "Python": from_python}[reader]
    found = sorted(read(name, address, what, **options))
    assert (found if kind == "windows" else [found[0], found[-1]]) == expected


def on_the_command_line(name, _address, what, tier="", zone=""):
    command = [
        {"range": "events", "points": "chart-points"}.get(what, what),
        *(["site", "north"] if what == "rollups" else ["s"]),
        "--from",
        FROM,
        "--to",
        TO,
    ]
    command += (
        ["--metric=t"] * (what == "points") + [f"--tier={tier}"] * bool(tier) + [f"--time-zone={zone}"] * bool(zone)
    )
    found = CliRunner().invoke(main, arguments(name, [*command, "--format=json"]))
    assert found.exit_code == 0, found.stderr
    zone = zone or tier.partition("@")[2] or ("UTC" if what != "rollups" else ZONE)
    told = f"in the time zone {ZONE}: from 2025-10-24T00:00:00+02:00 to 2025-10-28T00:00:00+01:00\n"
    assert (told in found.stderr) is (zone != "UTC")
    records = map(json.loads, found.stdout.splitlines())
    return [each.get("window_start") or each["event_time"] for each in records]


def over_http(_name, address, what, tier="", zone=""):
    of = "rollup=site&group=north" if what == "rollups" else "sensor=s"
    path = "rollups/windows" if what == "rollups" else what
    more = "&metric=t" * (what == "points") + f"&tier={tier}" * bool(tier) + f"&time_zone={zone}" * bool(zone)
    found = get(f"{address}/{path}?{of}&start={FROM}&end={TO}{more}").json
    assert found["time_zone"] == (zone or tier.partition("@")[2] or ("UTC" if what != "rollups" else ZONE))
    listed = {"range": "events", "rollups": "windows"}.get(what, what)
    return [each.get("window_start") or each.get("event_time") or each["time"] for each in found[listed]]


def from_python(name, _address, what, tier="", zone=""):
    tier = {"tier": tier} if tier else {}
    with SensorTable.open(name.project, name.instance, name.table) as table:
        if what == "points":
            points = table.points("s", "t", FROM, TO, time_zone=zone or None).points
            return [format_time(each.time_us) for each in points]
        if what == "rollups":
            found = table.rollups("site", "north", FROM, TO, **tier, time_zone=zone or None)
        elif what == "range":
            return [format_time(each.event_time_us) for each in table.events("s", FROM, TO, time_zone=zone or None)]
        else:
            found = table.aggregates("s", FROM, TO, **tier, time_zone=zone or None)
        return [each.window.shown(each.start_us) for each in found]


def test_months(name):
    """A month of a zone begins there: October is neither September nor left out."""
    months = ["--from", "2025-10-01", "--to", "2025-11-01", f"--tier={MONTHS}", "--format=json"]
    [october] = map(json.loads, run(name, "aggregates", "s", *months).stdout.splitlines())
    assert october["window_start"] == "2025-10-01T00:00:00+02:00"
    assert october["reading_count"] == 31 * 24 + 1


def test_plots(name, tmp_path):
    """The time axis is in the zone of the tier, or in the one asked for, which it names."""
    of_days = run(name, "plot", "s", "--metric=t", "--from", FROM, "--to", TO, f"--tier={DAYS}")
    assert "2025-10-24 00:00 to 2025-10-28 00:00, Europe/Berlin" in of_days.stdout, of_days.output
    assert "4 windows of 1d@Europe/Berlin" in of_days.stderr
    of_group = run(name, "plot", "--rollup=site", "north", "--metric=t", "--from", FROM, "--to", TO)
    assert "2025-10-24 00:00 to 2025-10-28 00:00, Europe/Berlin" in of_group.stdout, of_group.output
    asked = run(name, "plot", "s", "--metric=t", "--from", FROM, "--to", TO, "--time-zone=Asia/Kolkata")
    assert "2025-10-24 00:00 to 2025-10-28 00:00, Asia/Kolkata" in asked.stdout, asked.output


def test_repair(name):
    """A repair checks the whole local days between dates; without a zone, those between the dates of UTC."""
    repair = [
        "repair",
        *arguments(name, [])[1:],
        "--from",
        FROM,
        "--to",
        TO,
        "--dry-run",
        "--include-unsettled",
        "--format=json",
    ]
    for options, hours, days in ((["--time-zone", ZONE], 97, 4), ([], 96, 3)):
        found = CliRunner().invoke(main, [*repair, *options])
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout.splitlines()[-1])["checked"] == hours + days


@pytest.mark.parametrize(
    ("zone", "answer"),
    [
        ("Europe/Berln", "'Europe/Berln' is not a time zone; did you mean Europe/Berlin?"),
        ("CEST", "is not a time zone"),
    ],
)
def test_other_zones_are_refused(name, address, zone, answer):
    """With the nearest name."""
    refused = run(name, "events", "s", "--time-zone", zone)
    assert (refused.exit_code, answer in refused.stderr) == (2, True), refused.stderr
    over = get(f"{address}/range?sensor=s&time_zone={zone}")
    assert (over.status, answer in over.json["error"]) == (400, True), over.json
    with (
        SensorTable.open(name.project, name.instance, name.table) as table,
        pytest.raises(ValueError, match=answer[:20]),
    ):
        table.events("s", FROM, TO, time_zone=zone)
