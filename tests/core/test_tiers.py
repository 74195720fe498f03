import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows

HOUR_US = 3_600_000_000

# The readings of each hour, as its accumulators see them one after the other.
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
    """Everything that an accumulator holds, bit for bit."""
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
def test_any_order_any_repetition_any_grouping(day, rng: random.Random):
    """Whatever panes of an hour come, as long as its last is among them, the day is that of the last ones alone."""
    last = [(hour, stats_of(events)) for hour, events in sorted(day.items())]
    panes = [(hour, stats_of(events[:n])) for hour, events in day.items() for n in range(1, len(events))]
    panes = [pane for pane in panes if rng.randrange(2)] + last + rng.choices(last, k=3)
    rng.shuffle(panes)
    parts = [put_all(panes[i : i + 3]) for i in range(0, len(panes), 3)]
    while len(parts) > 1:
        one, other = parts.pop(rng.randrange(len(parts))), parts.pop(rng.randrange(len(parts)))
        one.merge(other)
        parts.append(one)
    assert contents(parts[0].pane().stats) == contents(put_all(last).pane().stats)
    assert parts[0].pane().stats.events == sum(map(len, day.values()))


@given(days)
def test_nothing_that_was_given_or_taken_changes(day):
    """Totals are new, and neither adding to one nor going on changes what it was made of, or an earlier one."""
    panes = [(hour, stats_of(events)) for hour, events in day.items()]
    before = [contents(stats) for _, stats in panes]
    shorter = put_all(panes)
    total = shorter.pane().stats
    taken = contents(total)
    other = put_all([(25, stats_of([{"t": 1.0}]))])
    shorter.merge(other)
    assert contents(total) == taken
    total.add({"t": 5.0, "w": 5.0})
    assert [contents(stats) for _, stats in panes] == before
    assert contents(other.pane().stats) == contents(stats_of([{"t": 1.0}]))


def test_what_came_replaces_what_was_recalled():
    """However much a stored row counted: what came goes on from it, or puts it right."""
    day = put_all([(0, stats_of([{"t": 1.0}] * 11))])
    day.restore({0: stats_of([{"t": 1.0}] * 20), 1: stats_of([{"t": 1.0}] * 3)})
    assert day.pane().stats.events == 14
    assert ShorterWindows.from_bytes(day.to_bytes()).pane().stats.events == 14


def test_less_than_the_row_is_not_whole():
    """A pane that counts less than the aggregate row did is not whole, until it does."""
    day = ShorterWindows()
    day.restore({0: stats_of([{"t": 1.0}] * 3)}, stats_of([{"t": 1.0}] * 5))
    assert not day.pane().complete
    assert not ShorterWindows.from_bytes(day.to_bytes()).pane().complete
    day.put(1, stats_of([{"t": 1.0}] * 2))
    assert day.pane().complete
