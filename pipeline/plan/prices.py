"""Unit prices, which a user gives as TOML, and the monthly cost of an estimate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from pipeline.core.notation.documents import parse_toml
from pipeline.plan.estimate import Estimate

DATAFLOW = ("Dataflow workers", "Dataflow disks", "Streaming Engine")
"""The parts of the costs that one machine does not have."""

_HOURS_A_MONTH = 730
_TIB, _GIB = 2**40, 2**30
_WORKER_DISK_GIB = 30  # of Streaming Engine: cloud.google.com/dataflow/docs/reference/pipeline-options


@dataclass(frozen=True)
class Prices:
    """Unit prices, in any one currency; None leaves a cost out.

    Attributes:
        pubsub_tib: the price of a TiB of throughput, in or out.
        dataflow_vcpu_hour: the price of a worker's vCPU for an hour, with its memory.
        dataflow_disk_gib_month: the price of a GiB of a worker's disk for a month.
        streaming_engine_gib: the price of a GiB that Streaming Engine processes.
        vm_vcpu_hour: the price of an E2 VM's vCPU for an hour, with its memory; a shared core counts by its part.
        bigtable_node_hour: the price of a node for an hour.
        bigtable_gib_month: the price of a GiB for a month.
    """

    pubsub_tib: float | None = None
    dataflow_vcpu_hour: float | None = None
    dataflow_disk_gib_month: float | None = None
    streaming_engine_gib: float | None = None
    vm_vcpu_hour: float | None = None
    bigtable_node_hour: float | None = None
    bigtable_gib_month: float | None = None


def parse_prices(text: str) -> Prices:
    """Parses TOML such as ``bigtable_node_hour = 0.5``. Raises ValueError, in one line, for anything else."""
    found = parse_toml(text)
    known = [field.name for field in fields(Prices)]
    for name, price in found.items():
        if name not in known:
            raise ValueError(f"{name!r} is not a price; the prices are {', '.join(known)}")
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < math.inf:
            raise ValueError(f"{name}: write a number that is not negative, like {name} = 0.5")
    if not found:
        raise ValueError(f"it has no price; the prices are {', '.join(known)}")
    return Prices(**found)


def costs(estimate: Estimate, prices: Prices, years: int) -> dict[str, float]:
    """Returns the cost of a month of 730 hours on Dataflow, for each part that has a price.

    Args:
        estimate: the estimate.
        prices: the prices.
        years: the age of the table, one of :data:`pipeline.plan.sizes.YEARS`.
    """
    seconds = _HOURS_A_MONTH * 3600
    vcpus = estimate.workers * estimate.worker.vcpus
    pubsub = estimate.messages[1].billed_per_second
    if estimate.results is not None:
        pubsub += estimate.results.billed_per_second
    amounts = {
        "Pub/Sub": (pubsub * seconds / _TIB, prices.pubsub_tib),
        "Dataflow workers": (vcpus * _HOURS_A_MONTH, prices.dataflow_vcpu_hour),
        "Dataflow disks": (estimate.workers * _WORKER_DISK_GIB, prices.dataflow_disk_gib_month),
        "Streaming Engine": (estimate.streaming_bytes_per_second * seconds / _GIB, prices.streaming_engine_gib),
        "Bigtable nodes": (estimate.nodes[years] * _HOURS_A_MONTH, prices.bigtable_node_hour),
        "Bigtable storage": (sum(estimate.storage_after[years].values()) / _GIB, prices.bigtable_gib_month),
    }
    return {what: amount * price for what, (amount, price) in amounts.items() if price is not None}


def costs_on_one_machine(estimate: Estimate, prices: Prices, on_dataflow: Mapping[str, float]) -> dict[str, float]:
    """Returns the cost of a month with one VM in place of Dataflow: of the other parts, and of the VM.

    Args:
        estimate: the estimate.
        prices: the prices.
        on_dataflow: the costs on Dataflow.
    """
    found = {what: cost for what, cost in on_dataflow.items() if what not in DATAFLOW}
    if prices.vm_vcpu_hour is not None:
        found["VM"] = estimate.one_machine.machine_type.vcpus * _HOURS_A_MONTH * prices.vm_vcpu_hour
    return found


def cheaper(estimate: Estimate, on_dataflow: Mapping[str, float], on_one_machine: Mapping[str, float]) -> str | None:
    """Returns which is cheaper: ``one machine``, or ``Dataflow``; None if the prices do not tell.

    Without prices, a VM with no more vCPUs than Dataflow's workers is cheaper: it has no Streaming Engine, and Dataflow
    charges more for a vCPU than Compute Engine.
    """
    if estimate.one_machine.problem is not None:
        return "Dataflow"
    if "VM" in on_one_machine and "Dataflow workers" in on_dataflow:
        return "one machine" if sum(on_one_machine.values()) < sum(on_dataflow.values()) else "Dataflow"
    vcpus = estimate.workers * estimate.worker.vcpus
    return "one machine" if estimate.one_machine.machine_type.vcpus <= vcpus else None
