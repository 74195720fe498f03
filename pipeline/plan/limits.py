"""Names the limits that a fleet passes, and what costs more than the rest together."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from pipeline.core.panes.group_sizes import commit_problem
from pipeline.core.schema.sizing import rollup_problem, state_problem
from pipeline.plan.estimate import Estimate, on_dataflow
from pipeline.plan.storage import YEARS
from pipeline.plan.workload import Workload

MAX_STREAMING_BYTES_A_MINUTE = 60 * 10**9
"""What Streaming Engine processes in a region, by a project's default quota."""

_MUCH_TRAFFIC = 10**9  # bytes a minute, a sixtieth of the quota: less is no reason for an exit code
_CHEAPER = {
    "Pub/Sub": "publish more events in a message",
    "Dataflow workers": "use --bigtable-writer bulk, or publish more events in a message",
    "Streaming Engine": "set a longer --early-firing, or have it billed by its compute units",
    "Bigtable nodes": "set a longer --early-firing or --newest-every",
    "Bigtable storage": "set shorter ages in the schema's policies",
}
"""What to do about each part of the costs, if it is the largest. The comparison needs the prices of all of them."""


def limits_passed(workload: Workload, estimate: Estimate) -> list[str]:
    """Returns a line for each limit of Dataflow that the fleet passes."""
    schema = replace(workload.schema, rate=workload.rate)
    found = [state_problem(schema), rollup_problem(schema)]
    found += [commit_problem(workload.aggregation, schema.rate)] if schema.tiers else []
    per_minute = estimate.streaming_bytes_per_second * 60
    if per_minute > MAX_STREAMING_BYTES_A_MINUTE:
        found.append(
            f"Streaming Engine would process {per_minute / 1e9:,.0f} GB a minute, of which firings read and write "
            f"{estimate.state_traffic_per_second * 60 / 1e9:,.0f} GB of windows, over the "
            f"{MAX_STREAMING_BYTES_A_MINUTE // 10**9} GB of a region's quota; set a longer --early-firing, send less, "
            "divide the fleet among regions, or ask Google for more"
        )
    return [each for each in found if each is not None]


def outweighing(estimate: Estimate, costs: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Returns a line for each cause or part of the costs that is larger than the rest together.

    What a job needs at least is none, since no choice makes it smaller; see :func:`least_costs`.
    """
    found = list(_causes(estimate, costs.get(YEARS[0], {}).get("Streaming Engine")))
    return found + [f"{text}; {_CHEAPER[name]}" for name, text in _largest(costs) if not _is_least(estimate, name)]


def least_costs(estimate: Estimate, costs: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Returns a line if the one worker or the one node that a job needs at least costs more than the rest together."""
    return [
        f"{text}, more than the rest together, for the one that runs all the time"
        for name, text in _largest(costs)
        if _is_least(estimate, name)
    ]


def _largest(costs: Mapping[int, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    of_year = costs.get(YEARS[0], {})
    if _CHEAPER.keys() <= of_year.keys():
        name, total = max(_CHEAPER, key=of_year.__getitem__), sum(of_year.values())
        if 2 * of_year[name] > total:
            yield name, f"{name}: {of_year[name]:,.2f} of {total:,.2f} a month"


def _is_least(estimate: Estimate, name: str) -> bool:
    return {"Dataflow workers": estimate.workers, "Bigtable nodes": estimate.nodes[YEARS[0]]}.get(name) == 1


def _causes(estimate: Estimate, streaming_cost: float | None) -> Iterator[str]:
    late, all_bytes = estimate.late, estimate.streaming_bytes_per_second * 60
    part = 60 * late.traffic_per_second
    if part > _MUCH_TRAFFIC and 2 * part > all_bytes:
        cost = "" if streaming_cost is None else f", some {streaming_cost * part / all_bytes:,.0f} a month"
        of_all = f"{part / 1e9:,.1f} of the {all_bytes / 1e9:,.1f} GB a minute of Streaming Engine{cost}"
        yield f"late events: {of_all}; set a longer --allowed-lateness or --late_firing"
    if estimate.workers > 1 and 2 * (busy := on_dataflow(late.vcpus)) > estimate.vcpus:
        yield (
            f"late events: {busy:,.1f} of {estimate.vcpus:,.1f} busy vCPUs, which read closed windows from the table; "
            "set a longer --allowed-lateness, or a shorter first tier"
        )
