"""What benchmarks share: arguments, emulators, programs that take turns, tables, and readings of a fleet.

A benchmark is a module that ``.venv/bin/python -m benchmarks.NAME`` runs: its docstring, which ``--help`` prints,
says what it measures.
"""

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pipeline.local.emulators import BIGTABLE, Emulator, running_emulator

METRICS = ("metric_0", "metric_1", "metric_2")


def arguments(**options: object) -> argparse.Namespace:
    """Parses the arguments of the benchmark that runs.

    Args:
        options: the default of each option, or the type of an option without one.
    """
    main = sys.modules["__main__"]
    parser = argparse.ArgumentParser(
        prog=f"python -m {main.__spec__.name.removesuffix('.__main__')}",
        description=main.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default in options.items():
        of_values = default[0] if isinstance(default, list) else default
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, type):
            parser.add_argument(f"--{name}", type=default)
        else:
            many = "+" if isinstance(default, list) else None
            help_text = f"{' '.join(map(str, default)) if many else default} by default"
            parser.add_argument(f"--{name}", type=type(of_values), nargs=many, default=default, help=help_text)
    return parser.parse_args()


@contextmanager
def emulators(*needed: Emulator) -> Iterator[None]:
    """Runs emulators, by default Bigtable's, for this process, unless the environment names them."""
    with ExitStack() as running:
        for emulator in needed or (BIGTABLE,):
            if emulator.variable not in os.environ:
                os.environ[emulator.variable] = running.enter_context(running_emulator(emulator))
        yield


def in_turn(
    programs: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Returns the seconds that programs take, which take turns after a round that warms them up."""
    found: dict[str, list[float]] = {what: [] for what in programs}
    for number in range(rounds + 1):
        for what, program in programs.items():
            began = clock()
            program()
            if number:
                found[what].append(clock() - began)
    return found


def spread(values: list[float], form: str = ",.0f") -> tuple[str, str]:
    """Returns the median of values, and the least and the most of them."""
    return f"{statistics.median(values):{form}}", f"{min(values):{form}} – {max(values):{form}}"


class Lines:
    """A table on standard output, line by line.

    Args:
        headings: the columns' headings, which are as wide as the columns.
    """

    def __init__(self, *headings: str) -> None:
        self._widths = [max(len(heading), 6) for heading in headings]
        self.add(*headings)

    def add(self, *values: object) -> None:
        """Prints a line."""
        print("  ".join(f"{value:>{width}}" for value, width in zip(values, self._widths, strict=True)), flush=True)


def readings(rng: random.Random) -> dict[str, float]:
    """Returns the readings of an event with three metrics."""
    return {name: round(rng.gauss(20 + number, 1), 2) for number, name in enumerate(METRICS)}


def rate_of(every_us: int) -> str:
    """Returns the name of a sensor's rate: an event a minute, or a second."""
    return "1/min" if every_us >= 60_000_000 else "1 Hz"


def resident_mb(pid: int | str = "self") -> float:
    """Returns the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
