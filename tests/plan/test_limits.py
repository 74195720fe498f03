"""What costs more than the rest together is named; what a job needs at least is not."""

from dataclasses import replace

import pytest

from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import estimate_of, least_costs, outweighing
from pipeline.plan.prices import costs
from pipeline.plan.sizes import YEARS
from pipeline.plan.workload import Workload, names
from tests.plan.list_prices import LIST

SECOND = 1_000_000
SITES = 'tiers = { 1h = "hours", 1d = "days" }\n[rollups]\nsite = { by = "metadata.site" }\n'
FLEET = Workload(parse_schema(SITES), 1_000_000, 60 * SECOND, names("metric", 3), rollup_groups=100_000)


def lines(workload, prices=LIST):
    """Returns the lines for a fleet."""
    plan = estimate_of(workload)
    return outweighing(plan, {years: costs(plan, prices, years) for years in YEARS} if prices else {})


def test_groups_of_roll_ups():
    """A hundred thousand groups take less than the rest together."""
    assert lines(FLEET) == lines(FLEET, None) == []


@pytest.mark.parametrize("sensors", [1, 10_000, 100_000, 300_000])
@pytest.mark.parametrize("late", [0, 0.001])
def test_the_least_that_a_job_needs(sensors, late):
    """A node and a worker may cost more than the rest; roll-ups of a small fleet may be most of little."""
    fleet = replace(FLEET, sensors=sensors, rollup_groups=100, late=late)
    assert lines(fleet) == []
    plan = estimate_of(fleet)
    notes = least_costs(plan, {years: costs(plan, LIST, years) for years in YEARS})
    assert len(notes) == (sensors <= 10_000)
    assert all(note.startswith("Bigtable nodes: 474.50 of ") for note in notes)


def test_late_events():
    """Late events that keep most vCPUs busy are named."""
    fleet = replace(FLEET, schema=parse_schema(""), every_us=600 * SECOND, sensors=10_000_000)
    assert lines(replace(fleet, late=0.01)) == []
    (line,) = lines(replace(fleet, late=0.2))
    assert line.startswith("late events: ")
    assert "busy vCPUs, which read closed windows from the table" in line


def test_a_part_of_the_costs():
    """The part that costs more than all others is named, if all have a price."""
    years = parse_schema('[policies]\nraw = "maxage=3650d"')
    fleet, dear = replace(FLEET, schema=years, every_us=10 * SECOND), replace(LIST, bigtable_gib_month=1.0)
    (line,) = lines(fleet, dear)
    assert line.startswith("Bigtable storage: ")
    assert line.endswith("a month; set shorter ages in the schema's policies")
    assert lines(fleet, replace(dear, pubsub_tib=None)) == []
