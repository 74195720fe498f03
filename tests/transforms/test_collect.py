"""Aggregate rows are collected before they are written, and in the order of batches."""

from collections import Counter

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.test_stream import TestStream
from apache_beam.typehints import KV

from pipeline.core.panes.row_batches import batch_bytes
from pipeline.core.rows.rows import EncodedRow, EncodedRows
from pipeline.transforms.collect import CollectRows, _with_shard
from tests.support.streams import NOON, clock, stream_clock

_BATCHES = KV[int, bytes]
FOUND: list[list[tuple[bytes, bytes]]] = []


def batch(group, number, *keys):
    return group, batch_bytes(group, number, EncodedRows(EncodedRow(key, b"%d" % number, 1) for key in keys))


def same(element):
    return element


def keep(rows):
    FOUND.append([(row.key, row.mutations) for row in rows])


def collected(*bundles):
    """Runs bundles of batches, with a second after each that is followed by None. Returns the elements put out."""
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
        batches = pipeline | stream.advance_watermark_to_infinity() | beam.Map(same).with_output_types(_BATCHES)
        _ = batches | CollectRows(clock) | beam.Map(keep)
    return FOUND


def test_bundles_of_one_key():
    """However small the bundles, rows come in few elements: one for each shard."""
    elements = collected(*([batch(group, 0, b"%d" % group)] for group in range(120)), None)
    assert sum(map(len, elements)) == 120
    assert len(elements) <= 4


def test_many_rows_do_not_wait():
    """A thousand rows of a shard are put out at once, in elements of five hundred at most."""
    elements = collected([batch(0, 0, *(b"%d" % n for n in range(1100)))])
    assert [len(element) for element in elements] == [500, 500, 100]


def test_the_order_of_batches():
    """A row is put out with its last batch; and a batch that comes early waits for those before it."""
    elements = collected(
        [batch(0, 1, b"a", b"b"), batch(0, 0, b"a", b"c")],
        None,
        [batch(0, 3, b"a")],
        None,
        [batch(0, 2, b"a", b"b")],
        None,
    )
    assert [sorted(element) for element in elements] == [
        [(b"a", b"1"), (b"b", b"1"), (b"c", b"0")],
        [(b"a", b"3"), (b"b", b"2")],
    ]


@pytest.mark.parametrize("waits", [True, False], ids=["a second passes", "the job is drained"])
def test_nothing_stays(waits):
    """What waits comes out after a moment, or when a job is drained."""
    bundles = [[batch(group, 0, b"%d" % group)] for group in range(9)]
    elements = collected(*bundles, *([None] if waits else []))
    assert Counter(key for element in elements for key, _ in element) == Counter(b"%d" % group for group in range(9))


@pytest.mark.parametrize(("groups", "shards"), [(1, 4), (256, 4), (1024, 16), (131_072, 2048)])
def test_more_groups_are_written_by_more_threads(groups, shards):
    """All shards are used, and a group keeps to one."""
    collect = CollectRows(groups=groups)
    used = [_with_shard((group, b""), collect._shards)[0] for group in range(max(groups, shards))]
    assert set(used) == set(range(shards))
