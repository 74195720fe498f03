"""Hypothesis strategies of valid events and their parts."""

from hypothesis import strategies as st

from pipeline.core.events.event import EARLIEST_US, LATEST_US, RESERVED_SENSOR_IDS, Event

sensor_ids = (
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="#"), min_size=1, max_size=40)
    | st.sampled_from(["a", "a!", "a$", "a-1", "a/1", "~", "!", "%s", "a.", "a{", "(a", "[^a]+", "a\\", "gg"])
).filter(lambda text: text not in RESERVED_SENSOR_IDS)
times = st.integers(EARLIEST_US, LATEST_US)
spans = st.lists(times, min_size=2, max_size=2, unique=True).map(sorted)
names = st.sampled_from(["t", "t.1", "_", "T-0", "a_b.c-d", "sum", "agg", "x" * 128])
values = st.floats(allow_nan=False, allow_infinity=False)
key_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="#"), min_size=1, max_size=8)
"""Metadata that is part of row keys: any text without '#'."""


@st.composite
def events(draw, sensors=sensor_ids, at=times, promoted=("location",)):
    """Draws a valid event with the promoted metadata and an event_id."""
    metadata = draw(st.dictionaries(names, st.text(max_size=8), max_size=3))
    metadata |= {name: draw(key_texts) for name in promoted}
    readings = draw(st.dictionaries(names, values, min_size=1, max_size=4))
    return Event(draw(sensors), draw(at), readings, metadata, draw(key_texts))
