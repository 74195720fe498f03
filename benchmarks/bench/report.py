"""Reports measurements as a table and as JSON, and compares them with the floors."""

import json
import os
import platform
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

RESULT = Path(__file__).parent / "result.json"
FLOORS = Path(__file__).parent / "floors.toml"
DATAFLOW_SHARE = 0.5
"""The share of the local runner's rate that docs/throughput.md expects on Dataflow; the page says why."""


class Run(NamedTuple):
    """What one run showed.

    Attributes:
        rate: events per second.
        cpu_s: CPU seconds a million events, of all threads of the program's process.
        first_row_rate: events per second from the first row to the last, if that is another rate.
    """

    rate: float
    cpu_s: float
    first_row_rate: float | None = None


@dataclass
class Measured:
    """What one program's runs showed, in the order of the rounds.

    Attributes:
        key: its name in the floors.
        name: its name in tables.
        batch: events per message.
        events: events per run.
        rates: the events per second of each run.
        ratios: each run's rate relative to the hand loop's in the same round.
        cpu_s: the CPU seconds a million events of each run.
        cpu_ratios: the hand loop's CPU seconds relative to each run's: like ``ratios``, more is better.
        first_row_rates: events per second from the first row to the last, if that is another rate.
    """

    key: str
    name: str
    batch: int
    events: int
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    cpu_ratios: list[float] = field(default_factory=list)
    first_row_rates: list[float] = field(default_factory=list)

    def add(self, run: Run, of_hand_loop: Run) -> None:
        """Adds a run, and the hand loop's of the same round."""
        self.rates.append(run.rate)
        self.ratios.append(run.rate / of_hand_loop.rate)
        self.cpu_s.append(run.cpu_s)
        self.cpu_ratios.append(of_hand_loop.cpu_s / run.cpu_s)
        if run.first_row_rate:
            self.first_row_rates.append(run.first_row_rate)

    @property
    def medians(self) -> dict[str, float]:
        """The median of all runs of each figure."""
        return {
            "rate": round(statistics.median(self.rates), 1),
            "ratio": round(statistics.median(self.ratios), 4),
            "cpu": round(statistics.median(self.cpu_s), 2),
            "cpu_ratio": round(statistics.median(self.cpu_ratios), 4),
        }


def print_table(measured: Sequence[Measured], console: Console) -> None:
    names = ("program", "a message", "events/s", "least to most", "to hand loop", "CPU s/10⁶", "to hand loop", "runs")
    table = Table(*names)
    for column in table.columns[1:]:
        column.justify = "right"
    for each in measured:
        medians = each.medians
        table.add_row(
            each.name,
            str(each.batch),
            f"{medians['rate']:,.0f}",
            f"{min(each.rates):,.0f} – {max(each.rates):,.0f}",
            f"{medians['ratio']:.3f}",
            f"{medians['cpu']:.1f}",
            f"{medians['cpu_ratio']:.3f}",
            str(len(each.rates)),
        )
    console.print(table)


def write_json(measured: Sequence[Measured], remarks: Sequence[str], path: Path) -> None:
    programs = [asdict(each) | each.medians for each in measured]
    for program in programs:
        for name, digits in (("rates", 1), ("ratios", 4), ("cpu_s", 2), ("cpu_ratios", 4), ("first_row_rates", 1)):
            program[name] = [round(value, digits) for value in program[name]]
    machine = {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    text = json.dumps({"machine": machine, "programs": programs, "remarks": list(remarks)}, indent=2)
    path.write_text(f"{text}\n")


def quoted_lines(path: Path) -> list[str]:
    """Returns the tables that docs/throughput.md quotes from the JSON, a line each."""
    result = json.loads(path.read_text())
    machine = result["machine"]
    rows = (
        f"| {each['name']} | {each['batch']} | {each['rate']:,.0f} | {each['ratio']:.2f} | {_cpu(each)} |"
        for each in result["programs"]
    )
    return [
        "| program | events a message | events/s | to the hand loop | CPU s a million events |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"({machine['cores']} cores of {machine['processor']}, Python {machine['python']})",
        "",
        "| on Dataflow | events a message | events/s to begin with, a vCPU |",
        "|---|---|---|",
        *(
            f"| {each['name']} | {each['batch']} | {_two_digits(each['rate'] * DATAFLOW_SHARE):,} |"
            for each in result["programs"]
            if each["key"].startswith(("connector", "bulk"))
        ),
    ]


def one_machine_lines(path: Path) -> list[str]:
    """Returns the table that docs/run-on-one-machine.md quotes from the JSON, a line each."""
    rows = (
        f"| {each['name'].partition(', ')[2]} | {each['batch']} | {_two_digits(each['rate']):,} | {_cpu(each)} |"
        for each in json.loads(path.read_text())["programs"]
        if each["key"].startswith("direct")
    )
    return [
        "| `--bigtable_writer` | events a message | events/s | CPU s a million events |",
        "|---|---|---|---|",
        *rows,
    ]


def _cpu(program: dict[str, Any]) -> str:
    return f"{program['cpu']:.0f}" if "cpu" in program else "–"  # results of earlier releases have none


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))


def below_floors(path: Path) -> list[str]:
    """Returns a line for every ratio of the JSON that is below its floor or missing."""
    programs = {program["key"]: program for program in json.loads(path.read_text())["programs"]}
    problems = []
    for figure, floors in tomllib.loads(FLOORS.read_text()).items():
        for key, floor in floors.items():
            if figure not in programs.get(key, {}):
                problems.append(f"{key} was not measured, and its floor of {figure} is {floor}")
            elif programs[key][figure] < floor:
                problems.append(f"{key}: {figure} to the hand loop is {programs[key][figure]:.3f}, below {floor}")
    return problems


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
