"""Rates, nodes, storage, state and cost, against measurements and by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.events.event import Event
from pipeline.core.panes.group_sizes import sensor_bytes, waiting_event_bytes
from pipeline.core.results.window_results import ResultRules
from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import (
    TABLETS,
    Restart,
    estimate_of,
    hottest_share,
    least_costs,
    messages,
    nodes_for_writes,
    outweighing,
    panes,
    restart_of,
    tier_writes,
    vcpus_for_events,
)
from pipeline.plan.prices import Prices, costs, parse_prices
from pipeline.plan.sizes import YEARS
from pipeline.plan.workload import Workload, Writes, names
from tests.plan import simulation
from tests.plan.list_prices import LIST
from tests.support.groups import MINUTE, Group

SECOND = 1_000_000
DAYS_TEXT = 'tiers = { 1h = "hours", 1d = "days" }'
DAYS = parse_schema(DAYS_TEXT)
WORKLOAD = Workload(parse_schema(""), 1_000_000, 60 * SECOND, names("metric", 4))
START = 1_771_286_400_000_000

SITES = 'tiers = { 1h = "hours", 1d = "days" }\n[rollups]\nsite = { by = "metadata.site" }\n'
FLEET = Workload(parse_schema(SITES), 1_000_000, 60 * SECOND, names("metric", 3), rollup_groups=100_000)


@pytest.mark.parametrize("early", [0, 10, 300, 1200])
@pytest.mark.parametrize("every", [1, 10, 90])
def test_rows_with_panes(early, every):
    """Aggregate rows of both tiers, with their panes, are as many as the job's own windows write in a day."""
    group = Group(DAYS, START, early_us=early * SECOND)
    for minute in range(0, 24 * 60, every):
        group.pass_time_to(START + minute * MINUTE + MINUTE // 2)
        group.receive(Event("s", group.now_us, {"t": 1.0}, {}))
    group.pass_time_to(START + 26 * 60 * MINUTE)
    workload = Workload(DAYS, 1, every * MINUTE, ("t",), early_us=early * SECOND)
    for text, prefix in (("1h", b"agg#hourly"), ("1d", b"agg#daily")):
        written = sum(row.key.startswith(prefix) for row in group.written)
        assert tier_writes(workload)[text].rows * 86_400 == pytest.approx(written, rel=0.1), text


@pytest.mark.parametrize("which", ["final", "all"])
@pytest.mark.parametrize("every", [5, 90])
def test_results_are_those_of_the_jobs_windows(which, every):
    """As many results as a day of windows publishes, of their size; Pub/Sub counts them in and out."""
    group = Group(DAYS, START, early_us=5 * MINUTE, results=ResultRules(START, which == "all"))
    for minute in range(0, 24 * 60, every):
        group.pass_time_to(START + minute * MINUTE + MINUTE // 2)
        group.receive(Event("sensor_000000000", group.now_us, {"t": 1.5, "u": 2.0}, {}))
    group.pass_time_to(START + 26 * 60 * MINUTE)
    workload = Workload(DAYS, 1, every * MINUTE, ("t", "u"), results=which)
    found = estimate_of(workload).results
    assert found.per_second * 86_400 == pytest.approx(len(group.published), rel=0.15)
    sizes = [result.ByteSize() for result in group.published]
    assert found.bytes == pytest.approx(sum(sizes) / len(sizes), rel=0.1)
    assert found.billed_per_second == pytest.approx(2000 * found.per_second)
    assert estimate_of(replace(workload, results=None)).results is None
    of_both, of_none = (
        costs(estimate_of(each), Prices(pubsub_tib=1.0), 1)["Pub/Sub"]
        for each in (workload, replace(workload, results=None))
    )
    assert of_both - of_none == pytest.approx(found.billed_per_second * 730 * 3600 / 2**40)


def test_cpu_is_the_benchmarks():
    """vCPUs for events are twice the benchmark's CPU seconds for as many events."""
    result = json.loads((Path(__file__).parents[2] / "benchmarks/bench/result.json").read_text())
    of = {program["key"]: program["cpu"] for program in result["programs"]}
    for key, bulk, batch in (
        ("bulk", True, 100), ("bulk_single", True, 1), ("connector", False, 100), ("connector_single", False, 1),
    ):  # fmt: skip
        one = replace(WORKLOAD, sensors=60_000_000, bulk=bulk, batch=batch)
        assert vcpus_for_events(one) == pytest.approx(2 * of[key]), key


def test_small_messages_are_billed_as_a_thousand_bytes():
    """Each request counts 1,000 bytes, so that one event in a message costs more than a batch."""
    one, batch = messages(WORKLOAD, 1), messages(WORKLOAD, 100)
    assert one.billed_per_second == pytest.approx(2 * 1000 * 1_000_000 / 60)
    assert batch.per_second == one.per_second / 100
    assert batch.bytes_per_second < batch.billed_per_second / 2 < one.billed_per_second / 6


def test_what_is_added_to_messages_and_left_out_of_storage():
    """A message counts with its attributes, time and id; a request's framing of a raw row is not stored."""
    workload = replace(WORKLOAD, metrics=names("metric", 8), metadata=names("field", 3), batch=6)
    message = messages(workload, 6)
    attributes = ("message_type", "tidetable.v1.SensorEventBatch", "event_id", "f" * 32)
    attributes += ("event_time", "2026-02-17T10:30:00.123456Z")
    assert message.added_bytes == len("".join(attributes)) + 20 + 16
    assert message.billed_bytes == message.bytes + message.added_bytes
    assert message.billed_per_second == 2 * message.billed_bytes * message.per_second
    plan = estimate_of(workload)
    assert plan.raw_event["sent"] * workload.events_per_second == pytest.approx(plan.raw.bytes)
    of_raw_rows = plan.growth["raw"] + plan.growth["meta"]
    assert plan.raw_event["stored"] * workload.events_per_second * 86_400 == pytest.approx(of_raw_rows)


@pytest.mark.parametrize(("ssd", "per_node"), [(True, 9800), (False, 7000)])
def test_nodes_for_writes(ssd, per_node):
    """A node takes 70 % of its rows a second; rows above 1 KB count for several."""
    workload = replace(WORKLOAD, ssd=ssd)
    assert nodes_for_writes(workload, [Writes(3 * per_node, 0, 0)]) == 3
    assert nodes_for_writes(workload, [Writes(3 * per_node + 1, 0, 0)]) == 4
    assert nodes_for_writes(workload, [Writes(per_node, 0, 5 * 1000 * per_node)]) == 5


def test_storage_follows_the_policies():
    """A family keeps what comes within its age; one that is never collected grows without end."""
    plan = estimate_of(WORKLOAD)
    assert plan.storage["raw"] == pytest.approx(90 * plan.growth["raw"])
    assert plan.storage["stats"] == pytest.approx(730 * plan.growth["stats"])
    year = {"raw": plan.storage["raw"], "stats": 365.25 * plan.growth["stats"]}
    assert plan.storage_after[1] == pytest.approx(year | {"meta": 0})
    assert plan.storage_after[5] == plan.storage
    nodes = {years: -(-sum(sizes.values()) // 3.5e12) for years, sizes in plan.storage_after.items()}
    assert plan.nodes_for_storage == nodes
    never = estimate_of(replace(WORKLOAD, schema=parse_schema('[policies]\nstats = "never"')))
    assert never.storage["stats"] is None
    assert never.storage_after[5]["stats"] == 5 * never.storage_after[1]["stats"] == 5 * 365.25 * never.growth["stats"]
    assert costs(never, Prices(bigtable_gib_month=1), 5)["Bigtable storage"] > sum(plan.storage.values()) / 2**30


@pytest.mark.parametrize(("sensors", "vcpus", "workers"), [(20_000, 1, 1), (300_000, 2, 1), (10_000_000, 2, 20)])
def test_a_small_fleet_costs_a_worker_and_a_node(sensors, vcpus, workers):
    """However little they do, they run all the time. A worker of one vCPU takes what keeps 60 % of it busy; a larger
    fleet keeps 60 % of two vCPUs of each worker busy."""
    plan = estimate_of(replace(WORKLOAD, sensors=sensors))
    assert plan.workers == workers == max(1, -(-plan.vcpus // 1.2))
    assert plan.worker.vcpus == vcpus == (1 if plan.vcpus <= 0.6 else 2)
    prices = Prices(dataflow_vcpu_hour=1, dataflow_disk_gib_month=1)
    assert costs(plan, prices, 1) == {"Dataflow workers": vcpus * 730 * workers, "Dataflow disks": 30 * workers}
    if sensors == 20_000:
        assert costs(plan, Prices(bigtable_node_hour=1), 1) == {"Bigtable nodes": 730}


def test_state_is_that_of_the_groups():
    """All sensors together hold what the largest group holds for each of its sensors."""
    plan = estimate_of(WORKLOAD)
    of_sensor = sensor_bytes(WORKLOAD.aggregation, WORKLOAD.rate).peak + 5 * waiting_event_bytes(4)
    assert plan.state_bytes == pytest.approx(1_000_000 * of_sensor)
    assert plan.groups.groups == 1024


def test_panes_by_hand():
    """A pane and its row take 126 µs, a sensor of the group to which nothing came 8; Dataflow doubles both."""
    every_minute = estimate_of(WORKLOAD)
    firings = 1_000_000 * 14 / 3600
    busy_us = every_minute.tiers["1h"].rows * 126 + (firings - every_minute.tiers["1h"].rows) * 8
    assert every_minute.vcpus_for_panes == pytest.approx(2 * busy_us / 1e6)
    assert every_minute.vcpus == vcpus_for_events(WORKLOAD) + every_minute.vcpus_for_panes
    sparse = estimate_of(replace(WORKLOAD, every_us=3600 * SECOND))
    assert sparse.vcpus_for_panes > 4 * vcpus_for_events(replace(WORKLOAD, every_us=3600 * SECOND))


def test_streaming_engine_by_hand():
    """Messages pass once; readings and rows are shuffled, stored and read; windows are read and written."""
    plan = estimate_of(WORKLOAD)
    others = 3 * (1_000_000 / 60 * (60 + 8 + 32) + plan.tiers["1h"].bytes) + plan.state_traffic_per_second
    assert plan.streaming_bytes_per_second == pytest.approx(plan.messages[1].bytes_per_second + others)
    assert costs(plan, Prices(streaming_engine_gib=1), 1) == {
        "Streaming Engine": pytest.approx(plan.streaming_bytes_per_second * 730 * 3600 / 2**30)
    }


def test_a_restart():
    """Each open window is read once, with others, and half of its rows are there: thirty events of an hour. Of sensors
    that seldom send, some have none."""
    reads, cpu_us = 1e6 / 100 + 30e6 / 1000, 1e6 * 80 + 30e6 * 25
    assert estimate_of(replace(WORKLOAD, schema=DAYS)).restart == Restart(1e6, reads, cpu_us / 1e6)
    assert restart_of(replace(WORKLOAD, every_us=2 * 3600 * SECOND)).windows == 500_000


def test_a_hundred_million_sensors_are_a_multiple():
    """Everything grows in proportion; nothing is counted one by one."""
    small, large = estimate_of(WORKLOAD), estimate_of(replace(WORKLOAD, sensors=100_000_000))
    assert large.raw.rows == pytest.approx(100 * small.raw.rows)
    assert large.storage["raw"] == pytest.approx(100 * small.storage["raw"])
    assert panes(WORKLOAD, WORKLOAD.schema.tiers[0]) == 12


def test_costs_by_hand():
    """Only what has a price has a cost: amount times price."""
    plan = estimate_of(WORKLOAD)
    assert costs(plan, Prices(bigtable_node_hour=2), 5) == {"Bigtable nodes": plan.nodes[5] * 1460}
    assert costs(plan, parse_prices("dataflow_vcpu_hour = 1"), 1) == {"Dataflow workers": plan.workers * 1460}


@pytest.mark.parametrize("text", ["", "nodes = 1", "pubsub_tib = -1", 'pubsub_tib = "x"', "pubsub_tib = nan", "x"])
def test_bad_prices(text):
    """Text without known and positive prices is refused."""
    with pytest.raises(ValueError, match=r"."):
        parse_prices(text)


def test_newest_readings():
    """A row for each sensor, written with each pane of the shortest tier and with raw rows, and stored once."""
    plain, newest = (
        estimate_of(Workload(parse_schema(text), 1000, 60 * SECOND, names("metric", 2)))
        for text in ("", 'latest = "now"')
    )
    with_panes, written = newest.tiers["1h"].rows, newest.tiers["newest readings"]
    assert (written.rows, written.cells) == (with_panes + 1000 / 60, 2 * written.rows)
    assert newest.storage["now"] == pytest.approx(
        1000 * (len("latest#") + 16 + 2 * (3 + len("metric_000000000") + 4.89 + 8))
    )
    assert plain.tiers["1h"] == newest.tiers["1h"]


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


def share(key, sensors=1_000_000):
    """Returns the share by arithmetic. The simulation's is as large, or larger by chance."""
    schema = parse_schema(f'key = "{key}"')
    workload = Workload(schema, sensors, MINUTE, names("metric", 1), schema.key.metadata_names)
    estimated = hottest_share(workload)
    assert 0.85 * estimated <= simulation.hottest_share(workload) < 2 * estimated
    return estimated


@pytest.mark.parametrize("time", ["{iso_us}", "{reverse_us}", "{bucket:1d}#{iso_us}"])
def test_time_first(time):
    """Keys that begin with the time write everything to one tablet."""
    assert share(f"{time}#{{sensor_id}}") == 1


@pytest.mark.parametrize("key", ["{sensor_id}#{reverse_us}", "{sensor_id}#{iso_us}"])
def test_sensor_first(key):
    """Keys that begin with the sensor spread evenly, whichever way time runs."""
    assert 1 / TABLETS <= share(key) < 2 / TABLETS


@pytest.mark.parametrize("key", ["{salt:2}#{sensor_id}#{reverse_us}", "{shard:16}#{sensor_id}#{reverse_us}"])
def test_salted_and_sharded(key):
    """Salts and shards before the sensor spread as evenly."""
    assert 1 / TABLETS <= share(key) < 2 / TABLETS


@pytest.mark.parametrize("shards", [4, 16])
def test_shards_before_the_time(shards):
    """Shards before the time divide the one hot tablet among so many."""
    assert 1 / shards <= share(f"{{shard:{shards}}}#{{iso_us}}#{{sensor_id}}") < 2 / shards


def test_few_sensors():
    """No more tablets take writes than there are sensors."""
    assert share("{sensor_id}#{reverse_us}", sensors=3) == pytest.approx(1 / 3)
