"""The connection of a DoFn that reads a table."""

import inspect
import pkgutil
from contextlib import contextmanager
from importlib import import_module

import apache_beam as beam

import pipeline
from pipeline.cloud.connection.names import TableName
from pipeline.core.queries.reads import RowSelection
from pipeline.core.rows.rows import KeyRange
from pipeline.core.schema.layouts import CellSelection
from pipeline.transforms import tables
from pipeline.transforms.tables import StatefulFn, TableReadingFn

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


def test_every_step_with_state_prepares_its_process():
    """Each DoFn with state or timers is a ``StatefulFn``: none reads a cache that may keep a revoked token."""
    for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    with_state = {each for each in subclasses(beam.DoFn) if each.__module__.startswith("pipeline.") and has_state(each)}
    assert len(with_state) > 5
    assert {each for each in with_state if not issubclass(each, StatefulFn)} == set()


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def has_state(kind):
    state_or_timer = beam.DoFn.StateParam, beam.DoFn.TimerParam
    return any(
        isinstance(parameter.default, state_or_timer)
        for method in vars(kind).values()
        if inspect.isfunction(method)
        for parameter in inspect.signature(method).parameters.values()
    )
