"""``python -m tests.model --minutes 30``: tries random sequences until the time is over, and prints their number."""

import argparse
import sys
import time

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Tables

_AT_A_TIME = 100


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first sequences")
    parser.add_argument("--no-shrink", action="store_true", help="report the first violation without simplifying it")
    arguments = parser.parse_args()
    phases = [Phase.generate] if arguments.no_shrink else [Phase.generate, Phase.shrink]
    how = settings(
        max_examples=_AT_A_TIME,
        stateful_step_count=50,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    began, number = time.monotonic(), arguments.seed
    while time.monotonic() - began < arguments.minutes * 60:
        run_state_machine_as_test(seed(number)(Tables), settings=how)
        number += 1
        print(f"{Tables.sequences:,} sequences of {Tables.steps:,} steps", file=sys.stderr)
    print(f"{Tables.sequences:,} sequences of {Tables.steps:,} steps in {arguments.minutes:g} minutes: no violation")


if __name__ == "__main__":
    main()
