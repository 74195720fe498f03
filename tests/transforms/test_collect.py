"""Aggregate rows are collected before they are written, and in the order of panes."""

from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.typehints import KV

from pipeline.core.panes.pane_order import pane_bytes
from pipeline.core.rows.rows import EncodedRow, EncodedRows
from pipeline.transforms.collect import CollectRows
from tests.support.streams import NOON, clock, stream_clock

_PANES = KV[int, bytes]
FOUND: list[list[tuple[bytes, bytes]]] = []


def pane(group, number, *keys):
    return group, pane_bytes(group, number, EncodedRows(EncodedRow(key, b"%d" % number, 1) for key in keys))


def same(element):
    return element


def keep(rows):
    FOUND.append([(row.key, row.mutations) for row in rows])


def collected(*bundles):
    """Runs bundles of panes, with a second after each that is followed by None. Returns the elements put out."""
    stream = TestStream().advance_watermark_to(NOON)
    for bundle in bundles:
        if bundle is None:
            stream.advance_processing_time(1)
        else:
            stream.add_elements(bundle)
    FOUND.clear()
    with (
        stream_clock(),
        TestPipeline(options=PipelineOptions(streaming=True), runner="BundleBasedDirectRunner") as pipeline,
    ):
        panes = pipeline | stream.advance_watermark_to_infinity() | beam.Map(same).with_output_types(_PANES)
        _ = panes | CollectRows(clock) | beam.Map(keep)
    return FOUND


def test_bundles_of_one_key():
    """However small the bundles, rows come in few elements: at most one for a hundred rows that wait."""
    elements = collected(*([pane(group, 0, b"%d" % group)] for group in range(400)), None)
    assert sum(map(len, elements)) == 400
    assert len(elements) <= 4


def test_many_rows_do_not_wait():
    """A thousand rows of a shard are put out at once, in elements of five hundred at most."""
    elements = collected([pane(0, 0, *(b"%d" % n for n in range(1100)))])
    assert [len(element) for element in elements] == [500, 500, 100]


def test_the_order_of_panes():
    """A row is put out with its last pane; and a pane that comes early waits for those before it."""
    elements = collected(
        [pane(0, 1, b"a", b"b"), pane(0, 0, b"a", b"c")],
        None,
        [pane(0, 3, b"a")],
        None,
        [pane(0, 2, b"a", b"b")],
        None,
    )
    assert [sorted(element) for element in elements] == [
        [(b"a", b"1"), (b"b", b"1"), (b"c", b"0")],
        [(b"a", b"3"), (b"b", b"2")],
    ]


@pytest.mark.parametrize("waits", [True, False], ids=["a second passes", "the job is drained"])
def test_nothing_stays(waits):
    """What waits comes out after a moment, or when a job is drained."""
    bundles = [[pane(group, 0, b"%d" % group)] for group in range(9)]
    elements = collected(*bundles, *([None] if waits else []))
    assert Counter(key for element in elements for key, _ in element) == Counter(b"%d" % group for group in range(9))
