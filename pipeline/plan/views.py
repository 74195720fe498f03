"""Prints an estimate as tables or as JSON."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import click
from rich import box
from rich.table import Table

from pipeline.cli.console import out
from pipeline.core.notation.text import counted
from pipeline.core.panes.group_sizes import MAX_COMMIT_BYTES
from pipeline.core.schema.gc_policies import format_policy
from pipeline.plan.estimate import TABLETS, WORKER_VCPUS, Estimate, Groups, Restart
from pipeline.plan.rollups import Rollups
from pipeline.plan.storage import YEARS
from pipeline.plan.traffic import Messages, Writes
from pipeline.plan.workload import Workload

Costs = dict[int, dict[str, float]]
"""The costs of a month by part, after each of :data:`pipeline.plan.storage.YEARS`."""


def as_json(estimate: Estimate, costs: Costs | None, limits: list[str], notes: list[str]) -> dict[str, Any]:
    """Returns the estimate as a JSON object, in bytes and in rates per second."""
    more = {"nodes": estimate.nodes, "tablets": TABLETS, "limits_passed": limits, "notes": notes}
    record = asdict(estimate) | more
    return record if costs is None else record | {"costs_a_month": costs}


def print_estimate(
    workload: Workload,
    estimate: Estimate,
    costs: Costs | None,
    limits: list[str],
    notes: list[str],
) -> None:
    """Prints a table for each part of the estimate, a line for each limit that is passed, and for each note."""
    click.echo(f"{estimate.events_per_second:,.0f} events a second from {workload.sensors:,} sensors, estimated")
    _print(
        ["Pub/Sub", "messages/s", "bytes each", "data/s", "billed/s, in and out"],
        (
            [
                name,
                _number(each.per_second),
                f"{each.bytes:,.0f}",
                size(each.bytes_per_second),
                size(each.billed_per_second),
            ]
            for name, each in _messages(estimate)
        ),
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
        f"Dataflow workers of {WORKER_VCPUS} vCPUs, at 60 % CPU, at least one": f"{estimate.workers:,}",
        "Bigtable nodes for writes, at 70 % CPU, at least one": f"{estimate.nodes_for_writes:,}",
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
    if costs is not None:
        _print(
            ["cost a month, in the currency of your prices", *map(_after, YEARS)],
            (
                [name, *(f"{of_year[name]:,.2f}" for of_year in totals)]
                for totals in [[{**each, "all of these": sum(each.values())} for each in costs.values()]]
                for name in totals[0]
            ),
        )
    for limit in limits:
        click.echo(f"limit passed: {limit}")
    for note in notes:
        click.echo(f"note: {note}")


def _messages(estimate: Estimate) -> Iterator[tuple[str, Messages]]:
    for each in dict.fromkeys(estimate.messages):
        yield f"{each.batch:,} in a message", each
    if estimate.results is not None:
        yield "results of windows", estimate.results


def _groups(groups: Groups, restart: Restart) -> list[list[str]]:
    return [
        ["groups", f"{groups.groups:,}"],
        ["sensors of the largest", f"{groups.sensors:,}"],
        ["its windows and waiting readings, at most", size(groups.windows_bytes + groups.waiting_bytes)],
        [f"its commit, at most, of {size(MAX_COMMIT_BYTES)}", size(groups.commit_bytes)],
        ["its firings an hour", _number(3600 * groups.firings_per_second)],
        ["shards, each written by one thread", f"{groups.shards:,}"],
        ["windows restored by a restart", f"{restart.windows:,.0f}"],
        ["reads of a restart", f"{restart.reads:,.0f}"],
        ["vCPU-hours of a restart", _number(restart.cpu_s / 3600)],
    ]


def _rollups(rollups: Rollups) -> list[list[str]]:
    return [
        ["groups", f"{rollups.groups:,}"],
        ["rows read a second", _number(rollups.reads_per_second)],
        ["vCPUs, without Dataflow's own work and writing rows", _number(rollups.cpu_us_per_second / 1_000_000)],
        ["their state, at most", size(rollups.state_bytes)],
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
    grid = Table(box=box.SIMPLE)
    for index, title in enumerate(head):
        grid.add_column(title, justify="right" if index else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    out.print(grid)
