"""Which machines run a job, and when one is enough."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.core.schema.toml import parse_schema
from pipeline.plan.estimate import estimate_of
from pipeline.plan.machines import DEFAULT_WORKER, one_machine
from pipeline.plan.prices import cheaper, costs, costs_on_one_machine
from pipeline.plan.workload import Workload, names
from tests.plan.list_prices import LIST

ONE_SECOND = 1_000_000
FLEET = Workload(parse_schema(""), 1, ONE_SECOND, names("metric", 3))


@pytest.mark.parametrize(
    ("key", "bulk", "batch"),
    [
        ("direct_bulk", True, 100), ("direct_bulk_single", True, 1),
        ("direct_connector", False, 100), ("direct_connector_single", False, 1),
    ],
)  # fmt: skip
def test_one_machine_carries_60_percent_of_what_was_measured(key, bulk, batch):
    """A process takes 60 % of the benchmark's events a second, with each writer and message size."""
    result = json.loads((Path(__file__).parents[2] / "benchmarks/bench/result.json").read_text())
    (rate,) = (program["rate"] for program in result["programs"] if program["key"] == key)
    for part, carries in ((0.59, True), (0.61, False)):
        fleet = replace(FLEET, sensors=100, every_us=round(100e6 / part / rate), bulk=bulk, batch=batch)
        found = one_machine(fleet, 0, 0)
        assert found.busy == pytest.approx(part, rel=0.01)
        assert (found.problem is None) == carries
        assert carries or "its one thread would be busy for 61 % of the time" in found.problem


@pytest.mark.parametrize(("batch", "measured"), [(100, 0.136), (1, 0.203)])
def test_a_small_fleet_keeps_a_process_busy_with_pulls(batch, measured):
    """10,000 sensors, 163 events/s: the CPU time of a process in a minute, of which idle ones take most."""
    plan = estimate_of(replace(FLEET, sensors=10_000, every_us=round(10_000e6 / 163), batch=batch))
    on_a_whole_core = plan.one_machine.busy * plan.one_machine.machine_type.vcpus
    assert on_a_whole_core == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("panes", "state", "name"),
    [(0.27, 0, "e2-small"), (0.31, 0, "e2-medium"), (0, 2e8, "e2-medium"), (0, 4e8, "e2-standard-2")],
)
def test_the_smallest_vm_that_serves(panes, state, name):
    """A shared core counts by its part, and memory by what the process may take."""
    found = one_machine(FLEET, panes, state)
    assert (found.machine_type.name, found.problem) == (name, None)


def test_the_default_worker_is_the_templates():
    """A plan prints the option of a launch for other types than the one that flex.sh sets."""
    script = Path(__file__).parent.parent.parent / "templates/flex.sh"
    assert f'"${{MACHINE_TYPE:-{DEFAULT_WORKER.name}}}"' in script.read_text()


def test_more_state_than_memory():
    """A fleet whose state does not fit is not carried, however little it sends."""
    assert "memory, over 60 % of 8 GiB" in one_machine(FLEET, 0, 1e9).problem


def test_a_small_fleet_is_cheaper_on_one_machine():
    """10,000 sensors at an event a minute: a VM costs less than a worker and Streaming Engine; the rest is the same."""
    plan = estimate_of(replace(FLEET, sensors=10_000, every_us=60 * ONE_SECOND))
    on_dataflow = costs(plan, LIST, 1)
    on_one = costs_on_one_machine(plan, LIST, on_dataflow)
    assert on_one == {
        "VM": pytest.approx(0.5 * 730 * 0.0335),
        **{what: on_dataflow[what] for what in ("Pub/Sub", "Bigtable nodes", "Bigtable storage")},
    }
    assert cheaper(plan, on_dataflow, on_one) == "one machine"
    assert cheaper(plan, {}, {}) == "one machine"
    dear = costs_on_one_machine(plan, replace(LIST, vm_vcpu_hour=1.0), on_dataflow)
    assert cheaper(plan, on_dataflow, dear) == "Dataflow"


def test_a_large_fleet_needs_dataflow():
    """What one machine does not carry is not cheaper on it."""
    plan = estimate_of(replace(FLEET, sensors=1_000_000, every_us=60 * ONE_SECOND))
    assert plan.one_machine.problem is not None
    on_dataflow = costs(plan, LIST, 1)
    assert cheaper(plan, on_dataflow, costs_on_one_machine(plan, LIST, on_dataflow)) == "Dataflow"
