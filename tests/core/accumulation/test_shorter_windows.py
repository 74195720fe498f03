import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.shorter_windows import ShorterWindows
from pipeline.core.statistics.member import Member
from pipeline.core.statistics.window_stats import WindowStats

HOUR_US = 3_600_000_000

# The events of each hour, in the order in which they are accumulated.
days = st.dictionaries(
    st.integers(0, 23),
    st.lists(st.dictionaries(st.sampled_from("tuv"), st.floats(-1e6, 1e6)), min_size=1, max_size=6),
    min_size=1,
)


def stats_of(events):
    stats = WindowStats()
    for readings in events:
        stats.add(readings)
    return stats


def contents(stats):
    """Returns all content of the statistics, bit for bit."""
    return stats.events, {
        metric: [getattr(of_metric, name) for name in of_metric.__slots__]
        for metric, of_metric in sorted(stats.metrics.items())
    }


def put_all(panes):
    shorter = ShorterWindows()
    for hour, stats in panes:
        shorter.put(hour * HOUR_US, stats)
    return shorter


@given(days, st.randoms(use_true_random=False))
def test_any_order_and_any_repetition(day, rng: random.Random):
    """A day counts only the last pane of each hour, in whatever order those of different hours arrive.

    Whenever hours were merged that are over, they are restored before one of them is replaced.
    """
    last = [(hour, stats_of(events)) for hour, events in sorted(day.items())]
    panes = [(hour, stats_of(events[:n])) for hour, events in day.items() for n in range(1, len(events))]
    panes = [pane for pane in panes if rng.randrange(2)] + last + rng.choices(last, k=3)
    panes.sort(key=lambda pane: pane[1].events)
    rng.shuffle(order := [hour for hour, _ in panes])
    panes = [panes.pop(next(at for at, pane in enumerate(panes) if pane[0] == hour)) for hour in order]
    found, table = ShorterWindows(), {}
    for hour, stats in panes:
        if hour * HOUR_US < found.settled_us:
            found.unsettle()
            found.restore(table)
        if rng.randrange(2):
            found.settle(min(hour, rng.randrange(24)) * HOUR_US)
        found.put(hour * HOUR_US, stats)
        table[hour * HOUR_US] = stats
        found = ShorterWindows.from_bytes(found.to_bytes())
    assert contents(found.pane().stats) == contents(put_all(last).pane().stats)
    assert found.pane().stats.events == sum(map(len, day.values()))


def test_what_was_merged_is_not_forgotten():
    """It is restored when one of its windows changes."""
    day = put_all([(hour, stats_of([{"t": 1.0}])) for hour in range(5)])
    day.settle(3 * HOUR_US)
    assert (day.settled.events, sorted(day.latest)) == (3, [3 * HOUR_US, 4 * HOUR_US])
    day.unsettle()
    day.put(HOUR_US, stats_of([{"t": 1.0}] * 2))
    day.restore({0: stats_of([{"t": 1.0}]), 2 * HOUR_US: stats_of([{"t": 1.0}])})
    assert day.pane().stats.events == 6


@given(days)
def test_inputs_and_earlier_results_do_not_change(day):
    """A result is a copy: changing it, or accumulating more, changes neither the inputs nor earlier results."""
    panes = [(hour, stats_of(events)) for hour, events in day.items()]
    before = [contents(stats) for _, stats in panes]
    shorter = put_all(panes)
    total = shorter.pane().stats
    taken = contents(total)
    shorter.settle(12 * HOUR_US)
    shorter.put(25 * HOUR_US, stats_of([{"t": 1.0}]))
    assert contents(total) == taken
    total.add({"t": 5.0, "w": 5.0})
    assert [contents(stats) for _, stats in panes] == before
    shorter.pane().stats.add({"t": 5.0})
    shorter.settle(25 * HOUR_US)
    assert [contents(stats) for _, stats in panes] == before


def test_received_results_replace_restored_ones():
    """A received result replaces a restored one, however much that counts."""
    day = put_all([(0, stats_of([{"t": 1.0}] * 11))])
    day.restore({0: stats_of([{"t": 1.0}] * 20), 1: stats_of([{"t": 1.0}] * 3)})
    assert day.pane().stats.events == 14
    assert ShorterWindows.from_bytes(day.to_bytes()).pane().stats.events == 14


@given(st.dictionaries(st.integers(0, 5), st.booleans(), min_size=1), st.integers(0, 6))
def test_a_newest_event_that_tells_nothing(told, settled):
    """A day tells what its newest event tells, also if an hour before is computed again with metadata."""
    found = ShorterWindows()
    for hour, tells in told.items():
        stats = stats_of([{"t": 1.0}])
        stats.member = Member(hour * HOUR_US, "{}") if tells else None
        found.put(hour * HOUR_US, stats)
    newest = max(told)
    found.settle(settled * HOUR_US)
    for each in (found, ShorterWindows.from_bytes(found.to_bytes())):
        assert each.pane().stats.member == (Member(newest * HOUR_US, "{}") if told[newest] else None)
