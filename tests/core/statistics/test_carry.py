"""Statistics that depend on the last reading before a window."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.core.schema.toml import parse_schema
from tests.core.statistics.test_rows import DAY, HOUR, MIDNIGHT, event, restarted, rows_of
from tests.courses import SCHEMA, check
from tests.groups import LATENESS, MINUTE, Group

READINGS = st.dictionaries(
    st.integers(0, 30 * 60 - 1).map(lambda minute: MIDNIGHT + minute * MINUTE),
    st.dictionaries(st.sampled_from(["t", "u", "v"]), st.integers(-50, 50).map(float), min_size=1),
    min_size=1,
    max_size=14,
)


@settings(max_examples=100, phases=[Phase.generate], deadline=None)
@given(READINGS, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_rows(readings, chance):
    """In any batches, however often delivered, with late readings of any age and with restarts."""
    group = Group(parse_schema(SCHEMA), MIDNIGHT + 2 * DAY)
    deliveries = list(readings.items()) * 2
    chance.shuffle(deliveries)
    while deliveries:
        some = [deliveries.pop() for _ in range(min(len(deliveries), chance.randint(1, 5)))]
        group.receive(*(event("s", time_us, of_event) for time_us, of_event in some))
        if chance.random() < 0.3:
            group.watermark(MIDNIGHT + chance.randint(0, 40) * HOUR)
        if chance.random() < 0.3:
            group.pass_time(chance.choice([2, 30]) * MINUTE)
        if chance.random() < 0.2:
            group = restarted(group)
    group.watermark(MIDNIGHT + 3 * DAY + LATENESS)
    group.pass_time(2 * MINUTE)
    check(rows_of(group), readings)
