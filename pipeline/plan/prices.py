"""Unit prices, which a user gives as TOML, and the monthly cost of an estimate."""

import math
import tomllib
from dataclasses import dataclass, fields

from pipeline.plan.estimate import WORKER_DISK_GIB, WORKER_VCPUS, Estimate

_HOURS_A_MONTH = 730
_TIB, _GIB = 2**40, 2**30


@dataclass(frozen=True)
class Prices:
    """Unit prices, in any one currency; None leaves a cost out.

    Attributes:
        pubsub_tib: the price of a TiB of throughput, in or out.
        dataflow_vcpu_hour: the price of a worker's vCPU for an hour, with its memory.
        dataflow_disk_gib_month: the price of a GiB of a worker's disk for a month.
        streaming_engine_gib: the price of a GiB that Streaming Engine processes.
        bigtable_node_hour: the price of a node for an hour.
        bigtable_gib_month: the price of a GiB for a month.
    """

    pubsub_tib: float | None = None
    dataflow_vcpu_hour: float | None = None
    dataflow_disk_gib_month: float | None = None
    streaming_engine_gib: float | None = None
    bigtable_node_hour: float | None = None
    bigtable_gib_month: float | None = None


def parse_prices(text: str) -> Prices:
    """Parses TOML such as ``bigtable_node_hour = 0.5``. Raises ValueError, in one line, for anything else."""
    found = tomllib.loads(text)
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
    """Returns the cost of a month of 730 hours, for each part that has a price.

    Args:
        estimate: the estimate.
        prices: the prices.
        years: the age of the table, one of :data:`pipeline.plan.storage.YEARS`.
    """
    seconds = _HOURS_A_MONTH * 3600
    vcpus = estimate.workers * WORKER_VCPUS
    pubsub = estimate.messages[1].billed_per_second
    if estimate.results is not None:
        pubsub += estimate.results.billed_per_second
    amounts = {
        "Pub/Sub": (pubsub * seconds / _TIB, prices.pubsub_tib),
        "Dataflow workers": (vcpus * _HOURS_A_MONTH, prices.dataflow_vcpu_hour),
        "Dataflow disks": (estimate.workers * WORKER_DISK_GIB, prices.dataflow_disk_gib_month),
        "Streaming Engine": (estimate.streaming_bytes_per_second * seconds / _GIB, prices.streaming_engine_gib),
        "Bigtable nodes": (estimate.nodes[years] * _HOURS_A_MONTH, prices.bigtable_node_hour),
        "Bigtable storage": (sum(estimate.storage_after[years].values()) / _GIB, prices.bigtable_gib_month),
    }
    return {what: amount * price for what, (amount, price) in amounts.items() if price is not None}
