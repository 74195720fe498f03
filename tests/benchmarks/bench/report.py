"""Reports measurements as a table and as JSON, and compares them with the floors."""

import json
import os
import platform
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RESULT = Path(__file__).parent / "result.json"
FLOORS = Path(__file__).parent / "floors.toml"
DATAFLOW_SHARE = 0.5
"""The share of the local runner's rate that docs/performance.md expects on Dataflow; the page says why."""


@dataclass
class Measured:
    """One program's rates in events per second, in the order of the rounds.

    Attributes:
        key: its name in the floors.
        name: its name in tables.
        batch: events per message.
        events: events per run.
        rates: the rate of each run.
        ratios: each run's rate relative to the hand loop's in the same round.
        first_row_rates: from the first row to the last, if that is another rate.
    """

    key: str
    name: str
    batch: int
    events: int
    rates: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    first_row_rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)


def print_table(measured: Sequence[Measured], console: Console) -> None:
    table = Table("program", "events a message", "events/s", "least to most", "to the hand loop", "runs")
    for column in table.columns[1:]:
        column.justify = "right"
    for each in measured:
        spread = f"{min(each.rates):,.0f} – {max(each.rates):,.0f}"
        table.add_row(
            each.name, str(each.batch), f"{each.rate:,.0f}", spread, f"{each.ratio:.3f}", str(len(each.rates))
        )
    console.print(table)


def write_json(measured: Sequence[Measured], remarks: Sequence[str], path: Path) -> None:
    programs = [asdict(each) | {"rate": round(each.rate, 1), "ratio": round(each.ratio, 4)} for each in measured]
    for program in programs:
        for name, digits in (("rates", 1), ("ratios", 4), ("first_row_rates", 1)):
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
    """Returns the tables that docs/performance.md quotes from the JSON, a line each."""
    result = json.loads(path.read_text())
    machine = result["machine"]
    rows = (
        f"| {each['name']} | {each['batch']} | {each['rate']:,.0f} | {each['ratio']:.2f} |"
        for each in result["programs"]
    )
    return [
        "| program | events a message | events/s | to the hand loop |",
        "|---|---|---|---|",
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


def _two_digits(number: float) -> int:
    return int(float(f"{number:.1e}"))


def below_floors(path: Path) -> list[str]:
    """Returns a line for every ratio of the JSON that is below its floor or missing."""
    ratios = {program["key"]: program["ratio"] for program in json.loads(path.read_text())["programs"]}
    problems = []
    for key, floor in tomllib.loads(FLOORS.read_text()).items():
        if key not in ratios:
            problems.append(f"{key} was not measured, and its floor is {floor}")
        elif ratios[key] < floor:
            problems.append(f"{key} is {ratios[key]:.3f} of the hand loop, below its floor of {floor}")
    return problems


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
