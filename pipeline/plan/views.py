"""Prints an estimate as tables or as JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click
from rich.text import Text

from pipeline.cli.console import out
from pipeline.cli.tables import number, print_table, prose, render
from pipeline.core.notation.text import counted
from pipeline.core.panes.firing import CommitLimits
from pipeline.core.panes.group_sizes import GroupSizes
from pipeline.core.schema.gc_policies import format_policy
from pipeline.plan.estimate import TABLETS, Estimate, Restart, on_dataflow
from pipeline.plan.late import Late
from pipeline.plan.machines import DEFAULT_WORKER, UTILIZATION, MachineType
from pipeline.plan.prices import cheaper
from pipeline.plan.rollups import Rollups
from pipeline.plan.sizes import YEARS
from pipeline.plan.workload import LEAST_BILLED_BYTES, OVERHEAD_BYTES, Messages, Workload, Writes

Costs = dict[int, dict[str, float]]
"""The costs of a month by part, after each of :data:`pipeline.plan.sizes.YEARS`."""


@dataclass(frozen=True)
class Findings:
    """What follows from an estimate.

    Attributes:
        costs: the costs on Dataflow; empty without prices.
        on_one_machine: the costs with one VM in place of Dataflow; empty without prices.
        limits: a line for each limit that the fleet passes.
        outweighing: a line for each cause that costs more than the rest together.
        notes: other lines.
    """

    costs: Costs
    on_one_machine: Costs
    limits: list[str]
    outweighing: list[str]
    notes: list[str]

    def cheaper(self, estimate: Estimate) -> str | None:
        """Returns which is cheaper in a table's first year; see :func:`pipeline.plan.prices.cheaper`."""
        return cheaper(estimate, self.costs.get(YEARS[0], {}), self.on_one_machine.get(YEARS[0], {}))


def estimate_json(estimate: Estimate, findings: Findings) -> dict[str, Any]:
    """Returns the estimate as a JSON object, in bytes and in rates per second."""
    record = asdict(estimate) | {
        "nodes": estimate.nodes,
        "tablets": TABLETS,
        "cheaper": findings.cheaper(estimate),
        "limits_passed": findings.limits,
        "more_than_the_rest": findings.outweighing,
        "notes": findings.notes,
    }
    if not findings.costs:
        return record
    return record | {"costs_a_month": findings.costs, "costs_a_month_on_one_machine": findings.on_one_machine}


def print_estimate(workload: Workload, estimate: Estimate, findings: Findings) -> None:
    """Prints a table for each part of the estimate, and a line for each finding."""
    click.echo(f"{estimate.events_per_second:,.0f} events a second from {workload.sensors:,} sensors, estimated")
    _print(
        ["Pub/Sub", "messages/s", "bytes each", "added each", "data/s", "billed/s"],
        (
            [
                name,
                _number(each.per_second),
                f"{each.bytes:,.0f}",
                f"{each.added_bytes:,.0f}",
                size(each.bytes_per_second),
                size(each.billed_per_second),
            ]
            for name, each in _messages(estimate)
        ),
    )
    batch = estimate.messages[1]
    _explain(
        f"Added to a message's data: its attributes, and {OVERHEAD_BYTES} bytes for its time and id. A message of "
        f"{batch.bytes:,.0f} bytes is billed as {batch.billed_bytes:,.0f} when published, and again when delivered; as "
        f"{LEAST_BILLED_BYTES:,} at least, alone in its request."
    )
    every = [estimate.raw, *estimate.tiers.values()]
    total = Writes(*(sum(getattr(each, what) for each in every) for what in ("rows", "cells", "bytes")))
    _print(
        ["Bigtable writes", "rows/s", "cells (mutations)/s", "bytes/s"],
        (
            [name, _number(each.rows), _number(each.cells), size(each.bytes)]
            for name, each in {"raw rows": estimate.raw, **estimate.tiers, "all": total}.items()
        ),
    )
    sent, stored = estimate.raw_event["sent"], estimate.raw_event["stored"]
    _explain(
        f"Bytes are those of requests: {sent:,.0f} for an event's raw rows. Of these {stored:,.0f} are stored, before "
        "compression: keys, families, columns, values and times. A window's row is written with each pane and stored "
        "once; newer readings replace older ones."
    )
    policies = workload.schema.policies
    _print(
        ["family", "policy", "added a day", *map(_after, YEARS)],
        (
            [
                name,
                format_policy(policies[name]),
                size(estimate.growth[name]),
                *(size(estimate.storage_after[years][name]) for years in YEARS),
            ]
            for name in estimate.storage
        ),
    )
    lines = {
        "Dataflow vCPUs, busy (estimated from measured CPU time)": _number(estimate.vcpus),
        "of these, for panes and their rows": _number(estimate.vcpus_for_panes),
        f"Dataflow workers, {estimate.worker.name}, at {UTILIZATION} % CPU, at least one": f"{estimate.workers:,}",
        "Bigtable nodes for writes and late events, at 70 % CPU, at least one": f"{estimate.nodes_for_writes:,}",
        **{f"Bigtable nodes for storage, {_after(years)}": f"{estimate.nodes_for_storage[years]:,}" for years in YEARS},
        "state in flight, at most": size(estimate.state_bytes),
        "Streaming Engine, a minute": size(60 * estimate.streaming_bytes_per_second),
        "of these, windows that firings read and write": size(60 * estimate.state_traffic_per_second),
        f"hottest of {TABLETS} tablets, of all raw writes": f"{estimate.hottest_tablet:.1%}",
    }
    _print(["other figures", ""], ([name, text] for name, text in lines.items()))
    if estimate.groups is not None:
        _print(["groups of sensors", ""], _groups(estimate.groups, estimate.restart))
    if estimate.rollups is not None:
        _print(["roll-ups", ""], _rollups(estimate.rollups))
    if estimate.late.panes_per_second:
        _print(["late events", ""], _late(estimate.late))
    if findings.costs:
        _print(
            ["cost a month, in the currency of your prices", *map(_after, YEARS)],
            (
                [name, *(f"{of_year[name]:,.2f}" for of_year in totals)]
                for totals in [[_with_total(each) for each in findings.costs.values()]]
                for name in totals[0]
            ),
        )
    _print_machines(estimate, findings)
    for limit in findings.limits:
        click.echo(f"limit passed: {limit}")
    for cause in findings.outweighing:
        click.echo(f"more than the rest together: {cause}")
    for note in findings.notes:
        click.echo(f"note: {note}")


def _print_machines(estimate: Estimate, findings: Findings) -> None:
    """Prints Dataflow beside one machine, and which is cheaper."""
    worker, workers, one = estimate.worker, estimate.workers, estimate.one_machine
    carried = one.problem is None
    totals = [
        [
            f"all costs a month, {_after(years)}",
            f"{sum(of_year.values()):,.2f}",
            f"{sum(other.values()):,.2f}" * carried,
        ]
        for (years, of_year), other in zip(findings.costs.items(), findings.on_one_machine.values(), strict=True)
        if "VM" in other and "Dataflow workers" in of_year
    ]
    _print(
        ["where the job runs", "Dataflow", "one machine"],
        [
            ["machines", f"{workers:,} × {worker.name}", f"1 × {one.machine_type.name}"],
            ["each has", _of_machine(worker), _of_machine(one.machine_type)],
            ["busy", f"{estimate.vcpus / workers / worker.vcpus:.1%}", f"{one.busy:.1%}"],
            ["a restart reads windows for", "", f"{estimate.restart.cpu_s:,.0f} s"],
            *totals,
        ],
    )
    if worker != DEFAULT_WORKER:
        option = f"MACHINE_TYPE={worker.name}"
        _explain(f"Pass the type of the worker: make launch {option} ..., or make template {option} for all launches.")
    if not carried:
        click.echo(f"one machine does not carry this: {one.problem}")
    elif (found := findings.cheaper(estimate)) is not None:
        of_year, other = (sum(each.get(YEARS[0], {}).values()) for each in (findings.costs, findings.on_one_machine))
        why = (
            f", by {abs(of_year - other):,.2f} a month" if totals else ", at usual prices: it needs no Streaming Engine"
        )
        click.echo(f"cheaper: {found}{why}")


def _explain(text: str) -> None:
    render(out, Text(text))


def _with_total(costs: dict[str, float]) -> dict[str, float]:
    return {**costs, "all of these": sum(costs.values())}


def _of_machine(machine_type: MachineType) -> str:
    return f"{machine_type.vcpus:g} vCPU, {machine_type.memory_gib:g} GiB"


def _late(late: Late) -> list[list[str]]:
    return [
        ["late events a second", _number(late.events_per_second)],
        ["late panes a second", _number(late.panes_per_second)],
        ["requests a second that read their windows", _number(late.reads_per_second)],
        ["vCPUs that read them", _number(on_dataflow(late.vcpus))],
        ["state that late panes read and write, a minute", size(60 * late.traffic_per_second)],
    ]


def _messages(estimate: Estimate) -> Iterator[tuple[str, Messages]]:
    for each in dict.fromkeys(estimate.messages):
        yield f"{each.batch:,} in a message", each
    if estimate.results is not None:
        yield "results of windows", estimate.results


def _groups(groups: GroupSizes, restart: Restart) -> list[list[str]]:
    return [
        ["groups", f"{groups.groups:,}"],
        ["sensors of the largest", f"{groups.sensors:,}"],
        ["its waiting readings, at most", size(groups.waiting_bytes)],
        [f"its windows, at most, of {size(CommitLimits().state_bytes)}", size(groups.windows_bytes)],
        ["its firings an hour", _number(3600 * groups.firings_per_second)],
        ["windows restored by a restart", f"{restart.windows:,.0f}"],
        ["reads of a restart", f"{restart.reads:,.0f}"],
        ["vCPU-hours of a restart", _number(restart.cpu_s / 3600)],
    ]


def _rollups(rollups: Rollups) -> list[list[str]]:
    return [
        ["groups", f"{rollups.groups:,}"],
        ["rows read a second", _number(rollups.reads_per_second)],
        ["vCPUs, without Dataflow's own work and writing rows", _number(rollups.cpu_us_per_second / 1_000_000)],
    ]


def size(count: float) -> str:
    """Returns bytes in the largest decimal unit: ``12.3 GB``."""
    for unit, length in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= length:
            return f"{count / length:,.1f} {unit}"
    return f"{count:,.0f} bytes"


def _after(years: int) -> str:
    return f"after {counted(years, 'year')}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _print(head: list[str], rows: Iterable[list[str]]) -> None:
    print_table([prose(head[0]), *map(number, head[1:])], rows)
