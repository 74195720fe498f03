"""Chooses the machines that run a job: Dataflow's workers, or one VM with the DirectRunner."""

import math
from dataclasses import dataclass

from pipeline.core.schema.rate import groups_for
from pipeline.plan.workload import Workload

UTILIZATION = 60
"""The percentage of a machine's CPU time that is used, and of a VM's memory: the target of docs/size-and-cost.md."""

_PULLED, _PULLS = 10, 10  # messages of a pull at most; pulls in a second in which nothing comes
_PULL_US, _GROUP_US = 2_000, 27
"""The DirectRunner's time in µs for a pull, and for each group of sensors in it, whose timers it looks at. Measured."""
_DIRECT_US = {True: (39.82, 114.63), False: (143.05, 133.97)}
"""The DirectRunner's time in µs for an event of three metrics, with a hundred in a message and with one, by whether the
writer is bulk. With the pulls for the hundred sensors of the benchmark, these are the rates of ``direct_bulk``,
``direct_bulk_single``, ``direct_connector`` and ``direct_connector_single`` in benchmarks/bench/result.json.
"""
_PROCESS_BYTES, _BYTES_OF_STATE = 450e6, 10
"""Memory of a process that runs a job, and of each byte of state. Measured, and rounded up."""


@dataclass(frozen=True)
class MachineType:
    """A machine type of Compute Engine; ``vcpus`` are those that it may keep busy for long."""

    name: str
    vcpus: float
    memory_gib: float


WORKERS = (MachineType("n1-standard-1", 1, 3.75), MachineType("n2-standard-2", 2, 8))
"""Types of Dataflow's workers. Its service level agreement excludes those that share a core, which are smaller:
cloud.google.com/dataflow/docs/guides/configure-worker-vm.
"""
DEFAULT_WORKER = WORKERS[-1]
"""The type that ``make template`` sets if ``MACHINE_TYPE`` has no other."""

_VMS = (MachineType("e2-small", 0.5, 2), MachineType("e2-medium", 1, 4), MachineType("e2-standard-2", 2, 8))


@dataclass(frozen=True)
class OneMachine:
    """One VM that runs the job with the DirectRunner.

    Attributes:
        machine_type: the smallest type that serves, or the largest if none does.
        busy: the share of its time for which the process would be busy.
        memory_bytes: the memory of the process.
        problem: why one machine does not carry the fleet; None if it does.
    """

    machine_type: MachineType
    busy: float
    memory_bytes: float
    problem: str | None


def between(of_hundred: float, of_one: float, batch: int) -> float:
    """Returns the cost of an event, which falls with 1/batch, between those with a hundred and one in a message."""
    return of_hundred + (of_one - of_hundred) * (1 / batch - 0.01) / 0.99


def workers_for(vcpus: float) -> tuple[MachineType, int]:
    """Returns the type and the number of workers that so many busy vCPUs need: one of the smallest type may do."""
    for machine_type in WORKERS:
        workers = max(1, math.ceil(vcpus * 100 / (machine_type.vcpus * UTILIZATION)))
        if workers == 1:
            break
    return machine_type, workers


def one_machine(workload: Workload, vcpus_for_panes: float, state_bytes: float) -> OneMachine:
    """Returns the VM that serves.

    A process has one thread that does all work, so more than one vCPU does not help it. It pulls messages all the time,
    a few at once, and looks at all groups of sensors with each pull: messages of one event cost most.

    Args:
        workload: the fleet.
        vcpus_for_panes: the vCPUs that panes keep busy, without Dataflow's own work.
        state_bytes: the bytes of all state.
    """
    groups = min(workload.sensors, groups_for(workload.rate)) if workload.schema.tiers else 0
    pull, pulls = (_PULL_US + _GROUP_US * groups) / 1_000_000, workload.events_per_second / workload.batch / _PULLED
    work = (
        workload.events_per_second * between(*_DIRECT_US[workload.bulk], workload.batch) / 1_000_000 + vcpus_for_panes
    )
    idle = _PULLS * pull  # a second of waiting costs that much
    busy = max(work + pulls * pull, (work + idle) / (1 + idle))
    memory = _PROCESS_BYTES + _BYTES_OF_STATE * state_bytes
    part, problem = UTILIZATION / 100, None
    for machine_type in _VMS:
        in_memory = memory <= part * machine_type.memory_gib * 2**30
        if busy <= part * min(1, machine_type.vcpus) and in_memory:
            break
    else:
        most = f"{UTILIZATION} % that leave room to catch up"
        problem = f"its one thread would be busy for {100 * busy:,.0f} % of the time, over the {most}"
        if busy <= part:
            most = f"{UTILIZATION} % of {machine_type.memory_gib} GiB"
            problem = f"its process would take {memory / 1e9:,.1f} GB of memory, over {most}"
    return OneMachine(machine_type, busy / min(1, machine_type.vcpus), memory, problem)
