import random

from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.stats import WindowStats
from pipeline.core.tiers import ShorterWindows

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
def test_any_order_any_repetition_any_grouping(day, rng: random.Random):
    """A day counts only the last pane of each hour, whatever earlier panes arrive and in whatever order."""
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
def test_inputs_and_earlier_results_do_not_change(day):
    """A result is a copy: changing it, or accumulating more, changes neither the inputs nor earlier results."""
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


def test_received_results_replace_restored_ones():
    """A received result replaces a restored one, however much that counts."""
    day = put_all([(0, stats_of([{"t": 1.0}] * 11))])
    day.restore({0: stats_of([{"t": 1.0}] * 20), 1: stats_of([{"t": 1.0}] * 3)})
    assert day.pane().stats.events == 14
    assert ShorterWindows.from_bytes(day.to_bytes()).pane().stats.events == 14


def test_less_than_the_row_is_incomplete():
    """A pane is incomplete until it counts as much as the aggregate row did."""
    day = ShorterWindows()
    day.restore({0: stats_of([{"t": 1.0}] * 3)}, stats_of([{"t": 1.0}] * 5))
    assert not day.pane().complete
    assert not ShorterWindows.from_bytes(day.to_bytes()).pane().complete
    day.put(1, stats_of([{"t": 1.0}] * 2))
    assert day.pane().complete
