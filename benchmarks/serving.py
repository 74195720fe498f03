"""Prints how fast ``tidetable serve`` answers for 10,000 sensors, and whether it holds out with 50 clients at once.

Without a browser: the page's own requests, by the clock of the client. Memory is that of the server's process.
"""

import statistics
import threading
import time
from collections import Counter
from subprocess import Popen

import requests

from benchmarks.measuring import Lines, arguments, emulators, resident_mb
from pipeline.core.events.event import Event
from pipeline.core.notation.times import format_time
from pipeline.core.rows.newest_row import NewestReadings
from tests.serve.serving import serving, table_of
from tests.support.rows import decoded
from tests.support.tables import write

SENSORS, CLIENTS, SECONDS = 10_000, 50, 60
MINUTE = 60_000_000
WEEK = 7 * 24 * 60


def main() -> None:
    now_us = time.time_ns() // 1000
    busy = [Event("meter-00000", now_us - n * MINUTE, {"power": n % 97 / 10}, {"site": "north"}) for n in range(WEEK)]
    name, newest = table_of(busy), NewestReadings()
    for n in range(1, SENSORS):
        newest.add(f"meter-{n:05}", now_us, [("power", float(n)), ("voltage", 230.0)])
    write(name, map(decoded, newest.rows("latest")))
    start, end = format_time(now_us - WEEK * MINUTE), format_time(now_us + MINUTE)
    week = f"sensor=meter-00000&metric=power&start={start}&end={end}"
    asked = {
        "the first 200 sensors": "latest?limit=200",
        "10,000 sensors": "latest?limit=10000",
        "a search": "latest?search=09999",
        "a week of windows": f"aggregates?{week}&fill=null&fresh=true&limit=10000",
        "a week of points": f"points?{week}",
        "a day of events": "range?sensor=meter-00000&start=-1d&limit=2000",
    }
    processes: list[Popen] = []
    with serving(name, started=processes.append) as address:
        lines = Lines("                request", "median ms", "most ms", "KB")
        for what, path in asked.items():
            times, size = [], 0
            for _ in range(11):
                begun = time.perf_counter()
                answer = requests.get(f"{address}/api/v1/{path}", timeout=30)
                times.append((time.perf_counter() - begun) * 1000)
                answer.raise_for_status()
                size = len(answer.content)
            # The first request of a kind also imports what it needs.
            lines.add(what, f"{statistics.median(times[1:]):.0f}", f"{max(times[1:]):.0f}", f"{size / 1e3:,.0f}")
        print(_under_load(address, list(asked.values()), processes[0].pid))


def _under_load(address: str, paths: list[str], pid: int) -> str:
    """Asks with many clients at once for a while."""
    ends, answers, times, memory = time.monotonic() + SECONDS, Counter[int](), list[float](), list[float]()

    def client(number: int) -> None:
        with requests.Session() as session:
            while time.monotonic() < ends:
                begun = time.perf_counter()
                # Most look at the list and at charts; one in ten asks for everything.
                path = paths[number % len(paths)] if number % 10 == 0 else paths[number % 2 * 3]
                answers[session.get(f"{address}/api/v1/{path}", timeout=60).status_code] += 1
                times.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    while time.monotonic() < ends:
        memory.append(resident_mb(pid))
        time.sleep(1)
    for thread in threads:
        thread.join()
    half = len(memory) // 2
    return (
        f"{CLIENTS} clients for {SECONDS} s: {dict(answers)} answers, median {statistics.median(times):.2f} s, "
        f"most {max(times):.2f} s; memory at most {max(memory[:half]):.0f} MB in the first half, "
        f"{max(memory[half:]):.0f} MB in the second"
    )


if __name__ == "__main__":
    arguments()
    with emulators():
        main()
