"""``python -m tests.engine --faults zombies,torn --minutes 30``: counts the histories with faults that end wrong."""

import argparse
import time

from tests.engine.histories import ALL_FAULTS, History


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.engine", description=__doc__)
    parser.add_argument("--faults", default=",".join(ALL_FAULTS), help="names of faults, with commas; all by default")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--histories", type=int, default=1 << 30, help="the most histories")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first history")
    parser.add_argument("--shorten", action="store_true", help="find the shortest history of each seed that ends wrong")
    arguments = parser.parse_args()
    faults, began, wrong, seed = [each for each in arguments.faults.split(",") if each], time.monotonic(), [], 0
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        if time.monotonic() - began > arguments.minutes * 60:
            break
        if problem := problem_of(seed, faults):
            wrong.append(seed)
            steps = "as many as it draws"
            if arguments.shorten:
                steps = next(each for each in range(31) if problem_of(seed, faults, each))
            print(f"seed {seed}, steps {steps}: {problem}", flush=True)
    else:
        seed += 1
    print(f"{', '.join(faults) or 'no faults'}: {len(wrong)} of {seed - arguments.seed} histories end wrong")


def problem_of(seed, faults, steps=None):
    """Returns what is wrong at the end of a history; None if nothing is."""
    try:
        History.of(seed, faults).run(steps)
    except AssertionError as error:
        return (str(error) or "an assertion without a message").splitlines()[0][:200]
    return None


if __name__ == "__main__":
    main()
