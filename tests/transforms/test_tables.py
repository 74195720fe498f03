"""The connection of a DoFn that reads a table."""

from contextlib import contextmanager

from pipeline.cloud.connection.names import TableName
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.transforms import tables
from pipeline.transforms.tables import TableReadingFn

NAME = TableName("test-project", "test-instance", "t")


class Reader:
    """Stands in for RowReader; notes each ``open`` and ``close``."""

    def __init__(self):
        self.calls = []

    @contextmanager
    def open(self, name, patience_s):
        self.calls.append(("open", name, patience_s))
        yield self
        self.calls.append("close")

    def read_selection(self, selection):
        return iter([selection])


def test_one_connection(monkeypatch):
    """The first read opens it, further reads share it, and teardown closes it."""
    reader = Reader()
    monkeypatch.setattr(tables, "RowReader", reader)
    reading = TableReadingFn(NAME, 5.0)
    reading.setup()
    assert reader.calls == []
    for reverse in (True, False):
        selection = RowSelection(KeyRange(b"a", b"b"), CellSelection(("raw",)), "a.*", 7, reverse)
        assert list(reading._read(selection)) == [selection]
    assert reader.calls == [("open", NAME, 5.0)]
    reading.teardown()
    assert reader.calls[1:] == ["close"]
