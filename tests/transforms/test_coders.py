import pytest
from apache_beam.coders import registry
from apache_beam.typehints import KV
from apache_beam.typehints.native_type_compatibility import convert_to_beam_type
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import WindowReadings
from pipeline.core.rows.rows import EncodedRow, EncodedRows
from pipeline.core.statistics.window_stats import WindowStats
from pipeline.transforms.coders import RowsCoder

rows = st.lists(st.builds(EncodedRow, st.binary(max_size=9), st.binary(max_size=300), st.integers(0, 2**32 - 1)))


def test_rows_have_their_coder():
    """The coder is used wherever a step declares rows as its output."""
    assert isinstance(registry.get_coder(EncodedRows), RowsCoder)


def readings_of(*values):
    readings = WindowReadings()
    for time_us, value in enumerate(values):
        readings.add(time_us, {"t": value})
    return readings


STATS = readings_of(1.5, 2.5).pane().stats


@pytest.mark.parametrize(
    ("hint", "element"),
    [
        (tuple[WindowStats], (STATS,)),
        (tuple[str, WindowStats], ("s", STATS)),
        (KV[str, tuple[int, WindowStats]], ("s", (7, STATS))),
    ],
    ids=["alone", "of a sensor", "of a sensor, with its start"],
)
def test_aggregates_have_their_coder(hint, element, monkeypatch):
    """Elements that contain aggregates are encoded in bytes of their own, without the names of classes."""
    monkeypatch.setattr(WindowStats, "__reduce_ex__", lambda *_: pytest.fail("an aggregate is pickled"))
    coder = registry.get_coder(convert_to_beam_type(hint))
    encoded = coder.encode(element)
    assert b"pipeline" not in encoded
    assert b"WindowStats" not in encoded
    found = coder.decode(encoded)
    while isinstance(found, tuple):
        *_, found = found
    assert (type(found), found.events, found.metrics["t"].total) == (WindowStats, 2, 4.0)
